/**
 * Cells: the keys of those who bring their limit along with every call.
 *
 * A clock, a table of keys and the rule, as `LocalShare`; only that the terms come with the question
 * and the key as bytes. An entry is 16 bytes. Instants count from when this was made: far from zero a
 * number cannot hold a microsecond exactly, and at a million calls a second that is an interval.
 */

import { type Clock, coarseClock, type Millis } from '../../core/clock.ts';
import type { Hasher } from '../../core/hash.ts';
import { Gcra, gcraLifecycle } from '../../policies/gcra.ts';
import type { TableSnapshot } from '../backend.ts';
import { DEFAULT_MAX_KEYS, KeyTable } from './table.ts';

/** The longest that anything taken may count, some thirty thousand years: beyond it time has no grain. */
const MAX_TOLERANCE_MS: Millis = 1e15;

export interface GcraTableOptions {
  readonly hasher: Hasher;
  /** Default: the system's, looked at once for a run of asks. */
  readonly clock?: Clock;
  readonly maxKeys?: number;
}

export class GcraTable extends Gcra {
  /** What was asked for and let through, or not; looks are not counted. */
  allowed = 0;
  denied = 0;
  readonly #table: KeyTable;
  readonly #hasher: Hasher;
  readonly #clock: Clock;
  readonly #originMs: Millis;

  constructor({ hasher, clock = coarseClock(), maxKeys = DEFAULT_MAX_KEYS }: GcraTableOptions) {
    super();
    this.#hasher = hasher;
    this.#clock = clock;
    this.#originMs = clock.now();
    this.#table = new KeyTable(gcraLifecycle, hasher, maxKeys);
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
   * May `quantity` happen for the key between these places, at `count` in a period and up to `limit` at
   * once? The answer stands in the fields. False if such terms make no sense.
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
    if (intervalMs * limit > MAX_TOLERANCE_MS) return false;
    const now = this.#clock.now() - this.#originMs;
    const hasher = this.#hasher;
    hasher.hashBytes(bytes, from, to);
    const i = this.#table.findOrAddHashed(hasher.low, hasher.high, now);
    this.check(this.#table.storage, i, limit, intervalMs, quantity, now);
    if (this.isLimited) this.denied++;
    else if (quantity > 0) this.allowed++;
    return true;
  }

  /** Lays down the state of all keys, for a successor with the same hasher. */
  snapshot(): TableSnapshot {
    return shiftTimes(this.#table.snapshot(this.#clock.now() - this.#originMs), this.#originMs);
  }

  /** Goes on from where another has stopped. */
  restore(snapshot: TableSnapshot): void {
    const now = this.#clock.now() - this.#originMs;
    this.#table.restore(shiftTimes(snapshot, -this.#originMs), now);
  }
}

/** The same instants, counted from elsewhere. Every second number of an entry is one. */
function shiftTimes({ entries, debtUntil }: TableSnapshot, byMs: Millis): TableSnapshot {
  const shifted = entries.slice();
  for (let n = 1; n < shifted.length; n += 2) shifted[n] += byMs;
  return { entries: shifted, debtUntil: debtUntil?.map((at) => at + byMs) };
}
