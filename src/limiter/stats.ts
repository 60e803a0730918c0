/**
 * What a limiter has done, counted as it goes.
 *
 * A labelled counter of a metrics library costs more than a decision. So these are plain numbers in
 * typed arrays, always on, and turned into anybody's metrics when somebody asks for them.
 */

import type { Millis } from '../core/clock.ts';
import { type Decision, OUTCOMES, type Outcome } from '../core/decision.ts';

/** How many of something were no longer than each bound; the last counts what was longer still. */
export interface Histogram {
  /** Upper bounds in milliseconds, smallest first. */
  readonly boundsMs: readonly Millis[];
  /** One more than there are bounds; not summed up. */
  readonly counts: readonly number[];
  readonly count: number;
  readonly sumMs: Millis;
}

/** From a fast local call to a slow job, each about twice the one before. */
export const BOUNDS_MS: readonly Millis[] = [
  1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 30_000, 60_000,
];

class Spans {
  readonly #counts = new Float64Array(BOUNDS_MS.length + 1);
  #sumMs = 0;

  add(ms: Millis): void {
    let n = 0;
    while (n < BOUNDS_MS.length && ms > BOUNDS_MS[n]) n++;
    this.#counts[n]++;
    this.#sumMs += ms;
  }

  read(): Histogram {
    const counts = [...this.#counts];
    const count = counts.reduce((sum, own) => sum + own, 0);
    return { boundsMs: BOUNDS_MS, counts, count, sumMs: this.#sumMs };
  }
}

/** Everything that was counted, from the start of the limiter on. */
export interface Counted {
  /** Calls let through, at once or after a wait. */
  readonly allowed: number;
  /** Of these, how many had to wait. */
  readonly waited: number;
  /** Calls refused. */
  readonly denied: number;
  /** Calls that gave up waiting. */
  readonly left: number;
  /** Permits that were never settled. */
  readonly lost: number;
  /** Calls settled, by outcome. */
  readonly settled: Readonly<Record<Outcome, number>>;
  /** How long those waited who had to. */
  readonly waitMs: Histogram;
  /** How long calls took that went well. */
  readonly rttMs: Histogram;
}

const ALLOWED = 0;
const WAITED = 1;
const DENIED = 2;
const LEFT = 3;
const LOST = 4;

export class Counts {
  readonly #numbers = new Float64Array(5);
  readonly #settled = new Float64Array(OUTCOMES.length);
  readonly #waits = new Spans();
  readonly #rtts = new Spans();

  decided(decision: Decision, waitedMs: Millis): void {
    if (decision.verdict === 'deny') {
      this.#numbers[DENIED]++;
      return;
    }
    this.#numbers[ALLOWED]++;
    const ms = decision.verdict === 'wait' ? decision.waitMs : waitedMs;
    if (ms <= 0) return;
    this.#numbers[WAITED]++;
    this.#waits.add(ms);
  }

  left(): void {
    this.#numbers[LEFT]++;
  }

  lost(): void {
    this.#numbers[LOST]++;
  }

  settled(outcome: Outcome, rttMs: Millis | undefined): void {
    this.#settled[OUTCOMES.indexOf(outcome)]++;
    if (outcome === 'ok' && rttMs !== undefined) this.#rtts.add(rttMs);
  }

  read(): Counted {
    const [allowed, waited, denied, left, lost] = this.#numbers;
    const settled = Object.fromEntries(OUTCOMES.map((name, n) => [name, this.#settled[n]]));
    return {
      allowed,
      waited,
      denied,
      left,
      lost,
      settled: settled as Record<Outcome, number>,
      waitMs: this.#waits.read(),
      rttMs: this.#rtts.read(),
    };
  }
}

/** Counts of several, added up: numbers, and whatever is made of them. */
export function sumOf<T extends Counted>(a: T, b: T): T {
  const names = Object.keys(a) as (keyof T)[];
  return Object.fromEntries(names.map((name) => [name, added(a[name], b[name])])) as unknown as T;
}

function added(a: unknown, b: unknown): unknown {
  if (typeof a === 'number') return a + (b as number);
  return isHistogram(a)
    ? addedSpans(a, b as Histogram)
    : addedOutcomes(a as Outcomes, b as Outcomes);
}

type Outcomes = Counted['settled'];

const addedOutcomes = (a: Outcomes, b: Outcomes): Record<string, number> =>
  Object.fromEntries(OUTCOMES.map((name) => [name, a[name] + b[name]]));

const isHistogram = (value: unknown): value is Histogram => 'boundsMs' in (value as object);

const addedSpans = (a: Histogram, b: Histogram): Histogram => ({
  boundsMs: a.boundsMs,
  counts: a.counts.map((count, n) => count + b.counts[n]),
  count: a.count + b.count,
  sumMs: a.sumMs + b.sumMs,
});
