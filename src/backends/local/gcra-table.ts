/**
 * GCRA keys whose rate and burst come with every call (CL.THROTTLE).
 *
 * A clock, a key table and the algorithm, as in `LocalBackend`, but terms are arguments and keys are bytes.
 * A client chooses the terms, so the time that a key can owe is bounded: `maxToleranceMs`. An eviction leaves at most
 * that behind for its hash bucket, and a fresh key of the bucket takes on at most one burst of its own terms.
 *
 * An entry has 16 bytes. Instants count from the creation of the table: far from zero a number cannot hold
 * a microsecond exactly, which is the interval at a million calls a second.
 */

import { type Clock, coarseClock, type Millis } from '../../core/clock.ts';
import type { Hasher } from '../../core/hash.ts';
import { Gcra, GcraLifecycle } from '../../policies/gcra.ts';
import type { TableSnapshot } from '../backend.ts';
import { DEFAULT_MAX_KEYS, KeyTable } from './table.ts';

/** The longest interval × limit: enough for a daily quota with twice its burst. */
export const DEFAULT_MAX_TOLERANCE_MS: Millis = 172_800_000;

export interface GcraTableOptions {
  readonly hasher: Hasher;
  /** Default: the coarse system clock, read once per run of checks. */
  readonly clock?: Clock;
  readonly maxKeys?: number;
  /** The longest interval × limit that a call may ask for. Default: two days. */
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
   * May `quantity` happen for the key in `bytes[from, to)`, at `count` per period and up to `limit` at once?
   * The decision is in the fields. False if the terms are invalid.
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

  /** The state of all keys, for a successor with the same hasher. */
  snapshot(): TableSnapshot {
    return shiftTimes(this.#table.snapshot(this.#clock.now() - this.#originMs), this.#originMs);
  }

  /** A key that owes more than the bound may come from a daemon with another one. */
  restore(snapshot: TableSnapshot): void {
    const now = this.#clock.now() - this.#originMs;
    this.#table.restore(shiftTimes(snapshot, -this.#originMs, now + this.maxToleranceMs), now);
  }
}

/** Shifts the origin of time, to instants of at most `latest`. Every second number of an entry is an instant. */
function shiftTimes(
  { entries, debtUntil }: TableSnapshot,
  byMs: Millis,
  latest = Infinity,
): TableSnapshot {
  const shift = (at: Millis): Millis => Math.min(at + byMs, latest);
  const shifted = entries.slice();
  for (let n = 1; n < shifted.length; n += 2) shifted[n] = shift(shifted[n]);
  return { entries: shifted, debtUntil: debtUntil?.map(shift) };
}
