/**
 * How often each key was counted lately, and in the last hours: tables of the most frequent keys, one after the other.
 *
 *     count ──▶ these 10 s ──▶ the 10 s before ──▶ this hour ──▶ the hour before
 *               └─────── span `now` ─────────┘
 *               └──────────────────── span `hour` ──────────────────────────┘
 *
 * A table that is over is merged into that of the hour, so a span always covers at least 10 s, or one hour.
 */

import type { Millis } from '../../core/clock.ts';
import type { KeyHash } from '../../core/hash.ts';
import { type CountedKey, SpaceSaving } from './space-saving.ts';

const INTERVAL_MS: Millis = 10_000;
const HOUR_MS: Millis = 3_600_000;

/** The last 10 to 20 s, or the last one to two hours. */
export type Span = 'now' | 'hour';

/** When a span begins that ends now. */
export function spanStart(span: Span, now: Millis): Millis {
  const lengthMs = span === 'now' ? INTERVAL_MS : HOUR_MS;
  return now - (now % lengthMs) - lengthMs;
}

type KeyCount = Pick<CountedKey<unknown>, 'count' | 'error'>;

export class SpanCounts<T> {
  readonly #combine: ((own: T, other: T) => T) | undefined;
  #current = new SpaceSaving<T>();
  #previous: SpaceSaving<T> | undefined;
  #hour: SpaceSaving<T> | undefined;
  #previousHour: SpaceSaving<T> | undefined;
  #intervalEnd: Millis = Number.NEGATIVE_INFINITY;
  #hourEnd: Millis = Number.NEGATIVE_INFINITY;

  /** `combine` makes one value of two of the same key; default: the first stays. */
  constructor(combine?: (own: T, other: T) => T) {
    this.#combine = combine;
  }

  /** Counts a key. Returns its slot in these 10 s, which is valid until the next call. */
  add(low: number, high: number, now: Millis, count = 1): number {
    if (now >= this.#intervalEnd) this.#advance(now);
    return this.#current.add(low, high, count);
  }

  /** How often the key was certainly counted in these 10 s. */
  hitsAt(slot: number): number {
    return this.#current.hitsAt(slot);
  }

  valueAt(slot: number): T | undefined {
    return this.#current.valueAt(slot);
  }

  setValueAt(slot: number, value: T): void {
    this.#current.setValueAt(slot, value);
  }

  /** The sum of the counts of all keys in the span. */
  total(span: Span, now: Millis): number {
    return this.#tables(span, now).reduce((sum, { total }) => sum + total, 0);
  }

  /** The keys that were counted most in the span. */
  top(span: Span, now: Millis, max: number): CountedKey<T>[] {
    const merged = new SpaceSaving<T>();
    for (const table of this.#tables(span, now)) merged.merge(table, this.#combine);
    return merged.top(max);
  }

  /** How often a key was counted in the span, and the error of that; undefined if no table has it. */
  countOf({ low, high }: KeyHash, span: Span, now: Millis): KeyCount | undefined {
    let [count, error] = [0, 0];
    for (const table of this.#tables(span, now)) {
      const found = table.get(low, high);
      count += found?.count ?? 0;
      error += found?.error ?? table.maxUntracked;
    }
    return count === 0 ? undefined : { count, error };
  }

  #tables(span: Span, now: Millis): SpaceSaving<T>[] {
    if (now >= this.#intervalEnd) this.#advance(now);
    const hours = span === 'hour' ? [this.#previousHour, this.#hour] : [];
    const tables = [...hours, this.#previous, this.#current];
    return tables.filter((table) => table !== undefined);
  }

  /** Begins a new interval; what is older than the one before it goes to the counts of the hour. */
  #advance(now: Millis): void {
    const isNext = now < this.#intervalEnd + INTERVAL_MS;
    this.#intervalEnd = now - (now % INTERVAL_MS) + INTERVAL_MS;
    if (this.#previous) this.#addToHour(this.#previous, now);
    if (this.#current.total > 0 && !isNext) this.#addToHour(this.#current, now);
    this.#previous = isNext && this.#current.total > 0 ? this.#current : undefined;
    if (this.#current.total > 0) this.#current = new SpaceSaving();
    this.#advanceHour(now);
  }

  #addToHour(counts: SpaceSaving<T>, now: Millis): void {
    this.#advanceHour(now);
    this.#hour ??= new SpaceSaving();
    this.#hour.merge(counts, this.#combine);
  }

  #advanceHour(now: Millis): void {
    if (now < this.#hourEnd) return;
    this.#previousHour = now < this.#hourEnd + HOUR_MS ? this.#hour : undefined;
    this.#hour = undefined;
    this.#hourEnd = now - (now % HOUR_MS) + HOUR_MS;
  }
}
