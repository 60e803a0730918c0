/**
 * GCRA keys whose rate and burst come with every call (CL.THROTTLE).
 *
 * A clock, a key table and the algorithm, as in `LocalBackend`, but terms are arguments and keys are bytes.
 * An entry has 16 bytes. Instants count from the creation of the table: far from zero a number cannot hold
 * a microsecond exactly, which is the interval at a million calls a second.
 */

import { type Clock, coarseClock, type Millis } from '../../core/clock.ts';
import type { Hasher } from '../../core/hash.ts';
import { Gcra, gcraLifecycle } from '../../policies/gcra.ts';
import type { TableSnapshot } from '../backend.ts';
import { DEFAULT_MAX_KEYS, KeyTable } from './table.ts';

/** The longest interval × limit, some thirty thousand years: beyond it milliseconds are not representable. */
const MAX_TOLERANCE_MS: Millis = 1e15;

export interface GcraTableOptions {
  readonly hasher: Hasher;
  /** Default: the coarse system clock, read once per run of checks. */
  readonly clock?: Clock;
  readonly maxKeys?: number;
}

export class GcraTable extends Gcra {
  /** Decisions so far; a quantity of 0 is not counted. */
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

  /** The state of all keys, for a successor with the same hasher. */
  snapshot(): TableSnapshot {
    return shiftTimes(this.#table.snapshot(this.#clock.now() - this.#originMs), this.#originMs);
  }

  restore(snapshot: TableSnapshot): void {
    const now = this.#clock.now() - this.#originMs;
    this.#table.restore(shiftTimes(snapshot, -this.#originMs), now);
  }
}

/** Shifts the origin of time. Every second number of an entry is an instant. */
function shiftTimes({ entries, debtUntil }: TableSnapshot, byMs: Millis): TableSnapshot {
  const shifted = entries.slice();
  for (let n = 1; n < shifted.length; n += 2) shifted[n] += byMs;
  return { entries: shifted, debtUntil: debtUntil?.map((at) => at + byMs) };
}
