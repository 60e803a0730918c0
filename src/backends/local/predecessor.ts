/**
 * The keys of a limit before its rule changed, until all of them have moved to the table of the new rule.
 *
 *     call of a key ──▶ new table ──miss──▶ old table: convert the key, mark it as moved
 *     timer ──────────▶ some slots of the old table: the same, a slice at a time
 *
 * A key is converted as of the instant of the change, no matter when it moves: from then on the new rule counts.
 */

import type { Millis } from '../../core/clock.ts';
import type { KeyConverter, State } from '../../policies/policy.ts';
import type { KeyTable, KeyVisitor } from './table.ts';

export class Predecessor {
  /** When the rule changed. */
  readonly changedAt: Millis;
  readonly #table: KeyTable;
  readonly #convert: KeyConverter;
  #cursor = 0;
  #moved = 0;

  constructor(table: KeyTable, convert: KeyConverter, changedAt: Millis) {
    this.#table = table;
    this.#convert = convert;
    this.changedAt = changedAt;
  }

  /** Keys that have not moved. */
  get size(): number {
    return Math.max(0, this.#table.size - this.#moved);
  }

  has(low: number, high: number): boolean {
    return this.#table.findHashed(low, high) >= 0;
  }

  /** Converts a key into `state` at `i` and marks it as moved; does nothing if it is unknown. */
  move(low: number, high: number, state: State, i: number): void {
    const { storage, lifecycle } = this.#table;
    const j = this.#table.findHashed(low, high);
    if (j < 0 || lifecycle.removableAt(storage, j) <= this.changedAt) return; // unknown, or moved before
    this.#convert(state, i, storage, j, this.changedAt);
    lifecycle.init(storage, j, this.changedAt);
    this.#moved++;
  }

  /** Visits the keys in so many slots more; false after the last. */
  visitSlots(count: number, visit: KeyVisitor): boolean {
    this.#cursor = this.#table.scan(this.#cursor, Infinity, this.changedAt, visit, count);
    return this.#cursor > 0;
  }
}
