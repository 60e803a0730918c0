/**
 * The overshoot bound of a fleet: calls above burst + rate × span, in any span.
 *
 * A node allows a call only if its own count has a token. Its count lacks only the hits of peers that it has not
 * received yet. If every hit reaches every node within X, the missing hits were served in the last X:
 *
 *   - no more than the demand in that time, and
 *   - per peer no more than its own bucket allows: burst + rate × X.
 *
 * So the overshoot is at most the smaller of demand(X) and (N - 1) × (burst + rate × X). During a network partition
 * there are two such fleets. Each lacks the hits of the other until the partition has healed and its reports are
 * retransmitted: burst and rate over that time count twice. A crash loses unreported hits, and the node has no state
 * until the transfer. A clock jump ahead adds the rate over the jump. Proof: docs/explanation/accuracy-of-peers.md.
 */

import { PEER_DEFAULTS, type PeerOptions } from '../../backends/peers/context.ts';
import type { Millis } from '../../core/clock.ts';
import type { FleetOptions } from './fleet.ts';
import { networkOf } from './network.ts';

export const peersOf = ({ peers }: FleetOptions): PeerOptions => ({ ...PEER_DEFAULTS, ...peers });

/** A lost report is detected by the next heartbeat, this much later, unless that is lost too. */
const HEARTBEAT_MS: Millis = 1000;
const HEARTBEATS_LOST = 3;

/** NACKs and retransmissions may be lost as well: assumed attempts, and the time of each. */
const RETRANSMIT_ATTEMPTS = 20;
const RETRANSMIT_MS: Millis = 60;

/** Keys that fit into one datagram in any case. */
const KEYS_PER_DATAGRAM = 100;

/** The longest time from a hit to its arrival at every node on the same side of a partition. */
export function propagationBoundMs(options: FleetOptions): Millis {
  const { exchange, flushThreshold, maxReports, intervalMs } = peersOf(options);
  const { delayMs, jitterMs, loss } = networkOf(options);
  const wayMs = delayMs + jitterMs;
  // Twice the report budget's interval: the periodic report may just have spent a token. A report of several datagrams
  // exceeds the budget, and the periodic interval applies.
  const isImmediate =
    exchange === 'eager' && flushThreshold <= 1 && options.clients <= KEYS_PER_DATAGRAM;
  const waitMs = isImmediate ? Math.min(intervalMs, 2000 / maxReports) : intervalMs;
  // Anti-entropy compares levels that are up to a round trip old.
  const comparisonMs = exchange === 'eager' ? 2 * wayMs : 0;
  const clockStopMs = Math.max(0, -(options.clockStep?.byMs ?? 0));
  return waitMs + wayMs + comparisonMs + (loss > 0 ? retransmitBoundMs(options) : 0) + clockStopMs;
}

/** The longest time until a lost report is retransmitted. */
function retransmitBoundMs(options: FleetOptions): Millis {
  const { delayMs, jitterMs } = networkOf(options);
  const heartbeatMs = Math.max(HEARTBEAT_MS, peersOf(options).intervalMs);
  return (
    HEARTBEATS_LOST * heartbeatMs + RETRANSMIT_ATTEMPTS * (RETRANSMIT_MS + 2 * (delayMs + jitterMs))
  );
}

/**
 * `demand` is the most calls of one client within the propagation bound. Real fleets may crash more than once: each
 * crash counts.
 */
export function overshootBound(
  options: FleetOptions,
  demand: number,
  crashes = options.crash ? 1 : 0,
): number {
  const { nodes, rate, burst, clockStep, network } = options;
  const { split } = network;
  const withinMs = propagationBoundMs(options);
  const each = burst + (rate * withinMs) / 1000;
  const unreceived = Math.min(demand, (nodes - 1) * each);
  const crashed = crashes * 2 * Math.min(demand, each);
  const jumped = (rate * Math.max(0, clockStep?.byMs ?? 0)) / 1000;
  const apartMs = split ? split.toMs - split.fromMs + withinMs + retransmitBoundMs(options) : 0;
  const partitioned = split ? unreceived + burst + (rate * apartMs) / 1000 : 0;
  return unreceived + partitioned + crashed + jumped + 1;
}

/** The most calls of one client within any span of a given length, counted online. */
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
