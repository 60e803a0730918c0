/** A sender on virtual time, and servers that it sends to: for tests of a policy that limits calls in flight. */

import { type Outcome, WHEN_SETTLED } from '../../src/core/decision.ts';
import { Heap } from '../../src/core/heap.ts';
import { exponentialVariate, type Random, seededRandom } from '../../src/core/random.ts';
import { createPolicy } from '../../src/policies/limit.ts';
import type { KeyState, Policy } from '../../src/policies/policy.ts';

const noRandom = (): number => {
  throw new Error('random must not be called');
};

export const policyOf = (options: object = {}, random: Random = noRandom): Policy =>
  createPolicy({ adaptive: options }, random);

/** How a server replies to a call that is sent now. */
export type Reply = (now: number) => readonly [outcome: Outcome, rttMs: number];

export const replyAfter =
  (rttMs: number, outcome: Outcome = 'ok'): Reply =>
  () => [outcome, rttMs];

/** So many workers, and a queue without bound: exponential service times. */
export function workers(count: number, meanMs: number, seed: number): Reply {
  const random = seededRandom(seed);
  const freeAt = new Array<number>(count).fill(0);
  return (now) => {
    const next = freeAt.indexOf(Math.min(...freeAt));
    freeAt[next] = Math.max(now, freeAt[next]) + meanMs * exponentialVariate(random);
    return ['ok', freeAt[next] - now];
  };
}

/** Without a reply from one time to another: replies of that time are lost, or held until its end. */
export const silent =
  (server: Reply, fromMs: number, toMs: number, timeoutMs: number, isHeld = false): Reply =>
  (now) => {
    const isLost = !isHeld && now >= fromMs && now < toMs;
    const [outcome, rttMs] = isLost ? (['ok', Infinity] as const) : server(now);
    const at = now + rttMs;
    const isSilent = now < toMs && at >= fromMs && (!isHeld || at < toMs);
    const tookMs = !isSilent ? rttMs : isHeld ? toMs - now : Infinity;
    return tookMs <= timeoutMs ? [outcome, tookMs] : ['timeout', timeoutMs];
  };

/** A sender on virtual time that has as many calls in flight as it may, up to its demand. */
export class Sender {
  readonly policy: Policy;
  readonly state: Float64Array;
  now: number;
  /** How far the clock of the rule is ahead. */
  aheadMs = 0;
  succeeded = 0;
  inFlight = 0;
  /** Most calls in flight since it was last reset. */
  peak = 0;
  readonly sentAt: number[] = [];
  #sequence = 0;
  readonly #pending = new Heap<{ at: number; sequence: number; end: () => void }>(
    (a, b) => a.at < b.at || (a.at === b.at && a.sequence < b.sequence),
  );

  constructor(options: object = {}, startAt = 0, freshAt?: number, random?: Random) {
    this.policy = policyOf(options, random);
    this.state = new Float64Array(this.policy.width);
    this.policy.init(this.state, 0, startAt, freshAt);
    this.now = startAt;
  }

  get #clock(): number {
    return this.now + this.aheadMs;
  }

  get key(): KeyState {
    return this.policy.keyState(this.state, 0, this.#clock);
  }

  get limit(): number {
    return this.key.limit ?? 0;
  }

  /** Goes on for so long, and returns the successes a second. */
  run(ms: number, reply: Reply, { demand = Infinity, cost = 1, hasRtt = true } = {}): number {
    const until = this.now + ms;
    const before = this.succeeded;
    for (let step = 0; step < 2e6 && this.now < until; step++) {
      const wakeAt = this.#send(reply, demand, cost, hasRtt);
      const next = this.#pending.peek();
      this.now = Math.min(until, wakeAt, next?.at ?? until);
      if (next && next.at <= this.now) this.#pending.pop()?.end();
    }
    return (1000 * (this.succeeded - before)) / ms;
  }

  sentBetween(fromMs: number, toMs: number): number[] {
    return this.sentAt.filter((at) => at >= fromMs && at < toMs);
  }

  /** Starts calls; returns when the next one may start if no call settles until then. */
  #send(reply: Reply, demand: number, cost: number, hasRtt: boolean): number {
    while (this.inFlight < demand) {
      const decision = this.policy.check(this.state, 0, cost, this.#clock);
      if (decision.verdict === 'deny') {
        const { retryAfterMs } = decision;
        return retryAfterMs === WHEN_SETTLED ? Infinity : this.now + Math.max(1, retryAfterMs);
      }
      this.#call(reply(this.now), cost, hasRtt);
    }
    return Infinity;
  }

  #call([outcome, rttMs]: readonly [Outcome, number], cost: number, hasRtt: boolean): void {
    const sentAt = this.now;
    const dueAt = this.#clock;
    this.sentAt.push(sentAt);
    this.inFlight++;
    this.peak = Math.max(this.peak, this.inFlight);
    const end = (): void => {
      this.inFlight--;
      if (outcome === 'ok') this.succeeded++;
      const settlement = { outcome, cost, dueAt, ...(hasRtt && { rttMs: this.now - sentAt }) };
      this.policy.settle(this.state, 0, settlement, this.#clock);
    };
    this.#pending.push({ at: this.now + rttMs, sequence: this.#sequence++, end });
  }
}
