/**
 * GCRA keys whose rate and burst come with every call (CL.THROTTLE).
 *
 * It combines a clock, a key table and the algorithm, as `LocalBackend` does, but terms are arguments and keys are
 * bytes. A client chooses the terms, so the time that a key can owe is bounded by `maxToleranceMs`. An eviction leaves
 * at most that debt for its hash bucket, and a fresh key of the bucket takes on at most one burst of its own terms.
 *
 * An entry has 16 bytes. Instants count from the creation of the table: a large number cannot represent 1 µs exactly,
 * which is the interval at a million calls per second.
 */

import { type Clock, coarseClock, type Millis } from '../../core/clock.ts';
import type { Hasher, KeyHash } from '../../core/hash.ts';
import { Gcra, GcraLifecycle } from '../../policies/gcra.ts';
import type { KeyBound, TableSnapshot } from '../backend.ts';
import { collectSlices, type TableSlices } from '../table-slices.ts';
import { DEFAULT_MAX_KEYS, KeyTable } from './table.ts';

/** The longest interval × limit: two days, enough for a daily quota with twice its burst. */
export const DEFAULT_MAX_TOLERANCE_MS: Millis = 172_800_000;

export interface GcraTableOptions {
  readonly hasher: Hasher;
  /** Default: the coarse system clock, read once per run of checks. */
  readonly clock?: Clock;
  readonly maxKeys?: KeyBound;
  /** The longest interval × limit that a call may specify. Default: two days. */
  readonly maxToleranceMs?: Millis;
}

export class GcraTable extends Gcra {
  /** Decisions so far; a quantity of 0 is not counted. */
  allowed = 0;
  denied = 0;
  readonly maxToleranceMs: Millis;
  readonly #lifecycle = new GcraLifecycle();
  readonly #table: KeyTable;
  readonly #hasher: Hasher;
  readonly #clock: Clock;
  readonly #originMs: Millis;

  constructor({
    hasher,
    clock = coarseClock(),
    maxKeys = DEFAULT_MAX_KEYS,
    maxToleranceMs = DEFAULT_MAX_TOLERANCE_MS,
  }: GcraTableOptions) {
    super();
    this.maxToleranceMs = maxToleranceMs;
    this.#hasher = hasher;
    this.#clock = clock;
    this.#originMs = clock.now();
    this.#table = new KeyTable(this.#lifecycle, hasher, maxKeys);
  }

  get keys(): number {
    return this.#table.size;
  }

  get evicted(): number {
    return this.#table.evicted;
  }

  get bytes(): number {
    return this.#table.bytes;
  }

  /**
   * Checks `quantity` for the key in `bytes[from, to)`, at `count` per period with bursts of up to `limit`. The
   * decision is in the fields. Returns false if the terms are invalid.
   */
  throttle(
    bytes: Uint8Array,
    from: number,
    to: number,
    limit: number,
    count: number,
    periodMs: Millis,
    quantity: number,
  ): boolean {
    const intervalMs = periodMs / count;
    if (!(intervalMs > 0 && limit >= 1 && quantity >= 0)) return false;
    const toleranceMs = intervalMs * limit;
    if (toleranceMs > this.maxToleranceMs) return false;
    const now = this.#clock.now() - this.#originMs;
    const hasher = this.#hasher;
    hasher.hashBytes(bytes, from, to);
    let i = this.#table.findHashed(hasher.low, hasher.high);
    if (i < 0) {
      this.#lifecycle.toleranceMs = toleranceMs;
      i = this.#table.findOrAddHashed(hasher.low, hasher.high, now);
    }
    this.check(this.#table.storage, i, limit, intervalMs, quantity, now);
    if (this.isLimited) this.denied++;
    else if (quantity > 0) this.allowed++;
    return true;
  }

  /** The hash of the key that was checked last; the next use of the hasher changes it. */
  get keyHash(): KeyHash {
    return this.#hasher;
  }

  /** The state of all keys, for a successor with the same hasher. */
  snapshot(): TableSnapshot {
    return collectSlices(this.slices());
  }

  /** `snapshot` in slices, without a pause: calls may be decided between two slices. */
  *slices(): TableSlices {
    const slices = this.#table.slices(() => this.#clock.now() - this.#originMs);
    const shift = (slice: Float64Array): Float64Array => shiftTimes(slice, 1, 2, this.#originMs);
    let slice = slices.next();
    for (; !slice.done; slice = slices.next()) yield shift(slice.value);
    return slice.value && shiftTimes(slice.value, 0, 1, this.#originMs);
  }

  /**
   * Restores a snapshot. `setBackMs`: how far the clock was set back since. Debts are capped, because the snapshot may
   * come from a daemon with a larger bound.
   */
  restore({ entries, debtUntil }: TableSnapshot, setBackMs: Millis = 0): void {
    const now = this.#clock.now() - this.#originMs;
    const latest = now + this.maxToleranceMs;
    const byMs = -this.#originMs - setBackMs;
    const snapshot = {
      entries: shiftTimes(entries.slice(), 1, 2, byMs, latest),
      debtUntil: debtUntil && shiftTimes(debtUntil.slice(), 0, 1, byMs, latest),
    };
    this.#table.restore(snapshot, now);
  }
}

/** Shifts every `step`th number from `first` on in place, to instants of at most `latest`. */
function shiftTimes(
  numbers: Float64Array,
  first: number,
  step: number,
  byMs: Millis,
  latest = Infinity,
): Float64Array {
  for (let n = first; n < numbers.length; n += step) {
    numbers[n] = Math.min(numbers[n] + byMs, latest);
  }
  return numbers;
}
