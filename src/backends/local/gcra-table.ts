/**
 * Cells: the keys of those who bring their limit along with every call.
 *
 * A clock, a table of keys and the rule, as `LocalShare`; only that the terms come with the question
 * and the key as bytes. An entry is 16 bytes. Instants count from when this was made: far from zero a
 * number cannot hold a microsecond exactly, and at a million calls a second that is an interval.
 */

import { type Clock, type Millis, turnClock } from '../../core/clock.ts';
import type { Hasher } from '../../core/hash.ts';
import { CellRule, cell } from '../../policies/gcra.ts';
import type { TableCopy } from '../backend.ts';
import { KEYS_MAX_DEFAULT, KeyTable } from './table.ts';

/** The longest that anything taken may count, some thirty thousand years: beyond it time has no grain. */
const TOLERANCE_MS_MAX: Millis = 1e15;

export interface CellsOptions {
  readonly hasher: Hasher;
  /** Default: the system's, looked at once for a run of asks. */
  readonly clock?: Clock;
  readonly keysMax?: number;
}

export class Cells extends CellRule {
  /** What was asked for and let through, or not; looks are not counted. */
  allowed = 0;
  denied = 0;
  readonly #table: KeyTable;
  readonly #hasher: Hasher;
  readonly #clock: Clock;
  readonly #startedAt: Millis;

  constructor({ hasher, clock = turnClock(), keysMax = KEYS_MAX_DEFAULT }: CellsOptions) {
    super();
    this.#hasher = hasher;
    this.#clock = clock;
    this.#startedAt = clock.now();
    this.#table = new KeyTable(cell, hasher, keysMax);
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
    if (intervalMs * limit > TOLERANCE_MS_MAX) return false;
    const now = this.#clock.now() - this.#startedAt;
    const hasher = this.#hasher;
    hasher.hashBytes(bytes, from, to);
    const i = this.#table.placeHashed(hasher.low, hasher.high, now);
    this.ask(this.#table.cells, i, limit, intervalMs, quantity, now);
    if (this.isLimited) this.denied++;
    else if (quantity > 0) this.allowed++;
    return true;
  }

  /** Lays down the state of all keys, for a successor with the same hasher. */
  copy(): TableCopy {
    return moved(this.#table.copy(this.#clock.now() - this.#startedAt), this.#startedAt);
  }

  /** Goes on from where another has stopped. */
  takeOver(copy: TableCopy): void {
    const now = this.#clock.now() - this.#startedAt;
    this.#table.takeOver(moved(copy, -this.#startedAt), now);
  }
}

/** The same instants, counted from elsewhere. Every second number of an entry is one. */
function moved({ entries, freshAt }: TableCopy, byMs: Millis): TableCopy {
  const shifted = entries.slice();
  for (let n = 1; n < shifted.length; n += 2) shifted[n] += byMs;
  return { entries: shifted, freshAt: freshAt?.map((at) => at + byMs) };
}
