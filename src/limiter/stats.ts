/**
 * Counters and histograms of a limiter in typed arrays. A metrics adapter converts them when it reads them: a labelled
 * counter of a metrics library costs more than a decision.
 */

import type { Millis } from '../core/clock.ts';
import { type Decision, OUTCOMES, type Outcome } from '../core/decision.ts';

/** How many durations are in each bucket; the last bucket has no upper bound. */
export interface Histogram {
  /** Upper bounds in milliseconds, smallest first. */
  readonly boundsMs: readonly Millis[];
  /** One more than `boundsMs`; not cumulative. */
  readonly counts: readonly number[];
  readonly count: number;
  readonly sumMs: Millis;
}

/** From a fast local call to a slow job, each bound 2 to 3 times the one before. */
export const HISTOGRAM_BOUNDS_MS: readonly Millis[] = [
  1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000,
];

/** Counts values by bucket: one per bound, which it includes, and one above all of them. */
export class BucketCounter {
  readonly bounds: readonly number[];
  readonly counts: Float64Array;
  sum = 0;

  constructor(bounds: readonly number[]) {
    this.bounds = bounds;
    this.counts = new Float64Array(bounds.length + 1);
  }

  add(value: number): void {
    const { bounds } = this;
    let n = 0;
    while (n < bounds.length && value > bounds[n]) n++;
    this.counts[n]++;
    this.sum += value;
  }
}

function toHistogram({ bounds, counts, sum }: BucketCounter): Histogram {
  const count = counts.reduce((total, one) => total + one, 0);
  return { boundsMs: bounds, counts: [...counts], count, sumMs: sum };
}

/** All counters since the limiter was created. */
export interface CounterSnapshot {
  /** Calls allowed, at once or after a wait. */
  readonly allowed: number;
  /** Calls allowed after a wait. */
  readonly waited: number;
  /** Slots that `check` reserved ahead: decided `wait`. A part of `waited`. */
  readonly reserved: number;
  /** Calls refused. */
  readonly denied: number;
  /** Waiting calls whose signal aborted. */
  readonly cancelled: number;
  /** Permits not settled within `permitTimeout`. */
  readonly expiredPermits: number;
  /** Retries that the retry budget of a throttled function refused. */
  readonly deniedRetries: number;
  /** Calls settled, by outcome. */
  readonly settled: Readonly<Record<Outcome, number>>;
  /** Calls refused because a lock-out had locked their key. A part of `denied`. */
  readonly locked: number;
  /** Calls refused, by the rule that refused; empty for a limit with one rule, and where a server decides. */
  readonly deniedByRule: Readonly<Record<string, number>>;
  /** Wait of the calls that waited. */
  readonly waitMs: Histogram;
  /** Round-trip time of the calls settled as ok. */
  readonly rttMs: Histogram;
  /** Round-trip time of the calls with any other outcome. */
  readonly unsuccessfulRttMs: Readonly<Record<Exclude<Outcome, 'ok'>, Histogram>>;
}

const ALLOWED = 0;
const WAITED = 1;
const DENIED = 2;
const CANCELLED = 3;
const EXPIRED = 4;
const RESERVED = 5;
const DENIED_RETRIES = 6;
const LOCKED = 7;

export class Counters {
  readonly #totals = new Float64Array(8);
  readonly #settledByOutcome = new Float64Array(OUTCOMES.length);
  readonly #waitHistogram = new BucketCounter(HISTOGRAM_BOUNDS_MS);
  readonly #rttByOutcome = OUTCOMES.map(() => new BucketCounter(HISTOGRAM_BOUNDS_MS));
  readonly #deniedByRule = new Map<string, { count: number }>();

  get denied(): number {
    return this.#totals[DENIED];
  }

  get allowed(): number {
    return this.#totals[ALLOWED];
  }

  recordDecision(decision: Decision, waitedMs: Millis): void {
    if (decision.verdict === 'deny') {
      this.#totals[DENIED]++;
      if (decision.reason === 'locked') this.#totals[LOCKED]++;
      if (decision.rule !== undefined) this.#countRule(decision.rule);
      return;
    }
    this.#totals[ALLOWED]++;
    const ms = decision.verdict === 'wait' ? decision.waitMs : waitedMs;
    if (ms <= 0) return;
    this.#totals[WAITED]++;
    if (decision.verdict === 'wait') this.#totals[RESERVED]++;
    this.#waitHistogram.add(ms);
  }

  #countRule(rule: string): void {
    const known = this.#deniedByRule.get(rule);
    if (known) known.count++;
    else this.#deniedByRule.set(rule, { count: 1 });
  }

  recordCancelled(): void {
    this.#totals[CANCELLED]++;
  }

  recordExpired(): void {
    this.#totals[EXPIRED]++;
  }

  recordDeniedRetry(): void {
    this.#totals[DENIED_RETRIES]++;
  }

  recordSettled(outcome: Outcome, rttMs: Millis | undefined): void {
    const n = OUTCOMES.indexOf(outcome);
    this.#settledByOutcome[n]++;
    if (rttMs !== undefined) this.#rttByOutcome[n].add(rttMs);
  }

  snapshot(): CounterSnapshot {
    const [allowed, waited, denied, cancelled, expiredPermits, reserved, deniedRetries, locked] =
      this.#totals;
    const settled = Object.fromEntries(
      OUTCOMES.map((name, n) => [name, this.#settledByOutcome[n]]),
    );
    const { ok: rttMs, ...unsuccessfulRttMs } = Object.fromEntries(
      OUTCOMES.map((name, n) => [name, toHistogram(this.#rttByOutcome[n])]),
    ) as Record<Outcome, Histogram>;
    return {
      allowed,
      waited,
      reserved,
      denied,
      cancelled,
      expiredPermits,
      deniedRetries,
      locked,
      settled: settled as Record<Outcome, number>,
      deniedByRule: Object.fromEntries(
        [...this.#deniedByRule].map(([rule, { count }]) => [rule, count]),
      ),
      waitMs: toHistogram(this.#waitHistogram),
      rttMs,
      unsuccessfulRttMs,
    };
  }
}

/** The sum of two snapshots: every number is added, in nested objects and arrays too, except the bounds. */
export function mergeSnapshots<T>(a: T, b: T): T {
  if (a === undefined) return b; // a rule that only one of them has
  if (b === undefined) return a;
  if (typeof a === 'number') return (a + (b as number)) as T;
  if (Array.isArray(a)) return a.map((one, n) => mergeSnapshots(one, (b as T & unknown[])[n])) as T;
  const [one, other] = [a, b] as Record<string, unknown>[];
  const merge = (name: string): unknown =>
    name === 'boundsMs' ? one[name] : mergeSnapshots(one[name], other[name]);
  const names = Object.keys({ ...one, ...other });
  return Object.fromEntries(names.map((name) => [name, merge(name)])) as T;
}
