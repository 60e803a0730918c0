/**
 * What a fleet can never exceed: calls beyond burst + rate × span, in any span.
 *
 * A node lets a call through only if by its own count there is a token. Its count lacks what others
 * served and it has not heard yet, and nothing else. If whatever is served is heard everywhere within X,
 * what it lacks was served in the last X:
 *
 *   - no more than was asked for in that time, and
 *   - by each of the N - 1 others no more than its own bucket lets through: burst + rate × X.
 *
 * So the excess is at most the smaller of asked(X) and (N - 1) × (burst + rate × X). While a network is
 * split there are two such fleets, and each lacks what the other served until it is healed and made up
 * for: burst and rate over that time, once more. A crash takes with it
 * what it told nobody, and whoever comes back has to be told first; a clock that jumps ahead lets in as
 * much as it jumps. The reasoning is spelled out in docs/accuracy.md.
 */

import { PEER_DEFAULTS } from '../../backends/peers/context.ts';
import type { Millis } from '../../core/clock.ts';
import type { FleetOptions } from './fleet.ts';
import { DEFAULT_NETWORK } from './network.ts';

/** A lost report is missed by the next sign of life, at most so much later, unless that is lost too. */
const HEARTBEAT_MS: Millis = 1000;
const HEARTBEATS_LOST = 3;

/** Each question for what is missing, and its answer, may be lost: so many in a row never are. */
const RETRANSMIT_ATTEMPTS = 20;
const RETRANSMIT_MS: Millis = 60;

/** So many keys surely fit into one datagram. */
const KEYS_PER_DATAGRAM = 100;

/** How long it takes at most, from being served to being heard by everybody on the same side of a split. */
export function propagationBoundMs(options: FleetOptions): Millis {
  const { exchange, flushThreshold, maxReports, intervalMs } = {
    ...PEER_DEFAULTS,
    ...options.peers,
  };
  const { delayMs, jitterMs, loss } = { ...DEFAULT_NETWORK, ...options.network };
  const wayMs = delayMs + jitterMs;
  // Two turns of the budget: the report of the interval may just have taken one. A report of several
  // datagrams takes more than there is, and the interval is what is left.
  const isAtOnce =
    exchange === 'eager' && flushThreshold <= 1 && options.clients <= KEYS_PER_DATAGRAM;
  const waitMs = isAtOnce ? Math.min(intervalMs, 2000 / maxReports) : intervalMs;
  // Where nodes compare how they stand, news on its way there and back blurs what they see.
  const blurMs = exchange === 'eager' ? 2 * wayMs : 0;
  const standsMs = Math.max(0, -(options.clockStep?.byMs ?? 0));
  return waitMs + wayMs + blurMs + (loss > 0 ? retransmitBoundMs(options) : 0) + standsMs;
}

/** How long it takes at most to have what was lost. */
function retransmitBoundMs({ peers, network }: FleetOptions): Millis {
  const { delayMs, jitterMs } = { ...DEFAULT_NETWORK, ...network };
  const signMs = Math.max(HEARTBEAT_MS, peers.intervalMs ?? PEER_DEFAULTS.intervalMs);
  return (
    HEARTBEATS_LOST * signMs + RETRANSMIT_ATTEMPTS * (RETRANSMIT_MS + 2 * (delayMs + jitterMs))
  );
}

/**
 * `asked` is the most that was asked for by one client in any span of that length. Real fleets may see
 * more than one `crash`: each of them counts.
 */
export function overshootBound(
  options: FleetOptions,
  asked: number,
  crashes = options.crash ? 1 : 0,
): number {
  const { nodes, rate, burst, clockStep, network } = options;
  const { split } = network;
  const withinMs = propagationBoundMs(options);
  const each = burst + (rate * withinMs) / 1000;
  const unheard = Math.min(asked, (nodes - 1) * each);
  const crashed = crashes * 2 * Math.min(asked, each);
  const jumped = (rate * Math.max(0, clockStep?.byMs ?? 0)) / 1000;
  const apartMs = split ? split.toMs - split.fromMs + withinMs + retransmitBoundMs(options) : 0;
  const splitUp = split ? unheard + burst + (rate * apartMs) / 1000 : 0;
  return unheard + splitUp + crashed + jumped + 1;
}

/** The most that falls into any span of a length, for each of many clients, counted as it comes. */
export class PeakCounter {
  readonly #spanMs: Millis;
  readonly #times: Millis[][];
  readonly #heads: number[];
  peak = 0;

  constructor(spanMs: Millis, clients: number) {
    this.#spanMs = spanMs;
    this.#times = Array.from({ length: clients }, () => []);
    this.#heads = Array<number>(clients).fill(0);
  }

  add(client: number, at: Millis): void {
    const times = this.#times[client];
    times.push(at);
    let head = this.#heads[client];
    while (at - times[head] > this.#spanMs) head++;
    this.peak = Math.max(this.peak, times.length - head);
    if (head > 1024 && head * 2 > times.length) head -= times.splice(0, head).length;
    this.#heads[client] = head;
  }
}
