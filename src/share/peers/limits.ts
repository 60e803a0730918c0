/**
 * The limits that a node keeps together with others.
 *
 * Here each has a number, by which calls are counted: it is never given twice, so that a limit which was
 * left is not taken for another. On the wire it has an id, the same for all of the fleet. While one limit
 * takes the place of another with the same id, both may count, and the one that came last hears.
 */

import type { Millis } from '../../clock.ts';
import type { Entries } from './wire.ts';

/** One limit, as the engine meets it. */
export interface PeerLimit {
  /** What all of the fleet call it: the same rule under the same name is the same number. */
  readonly id: number;
  /** Whether hits just add up, so that what was put on it can be taken off again: it is one bucket. */
  readonly addsUp: boolean;
  /** Others served so many. */
  hear(low: number, high: number, hits: number): void;
  /** How keys stand from a place on, at most so many: entries without their limit, and where to go on. */
  stateFrom(cursor: number, most: number): { readonly entries: Entries; readonly next: number };
  /** A key is as good as new in so long, and no sooner. */
  raise(low: number, high: number, freshInMs: Millis): void;
  /** How much of a key is spent; 0 if it is as good as new, or not known. */
  level(low: number, high: number): number;
  /** Counts so much more as spent, or so much less. */
  move(low: number, high: number, by: number): void;
}

export class Limits {
  readonly #byNumber = new Map<number, PeerLimit>();
  readonly #byId = new Map<number, PeerLimit>();
  #last = 0;

  join(limit: PeerLimit): number {
    this.#last++;
    this.#byNumber.set(this.#last, limit);
    this.#byId.set(limit.id, limit);
    return this.#last;
  }

  leave(number: number): void {
    const left = this.#byNumber.get(number);
    if (!left || !this.#byNumber.delete(number)) return;
    this.#byId.delete(left.id);
    for (const other of this.#byNumber.values()) {
      if (other.id === left.id) this.#byId.set(other.id, other);
    }
  }

  /** What all of the fleet call the limit with this number; undefined if it was left. */
  idOf(number: number): number | undefined {
    return this.#byNumber.get(number)?.id;
  }

  byId(id: number): PeerLimit | undefined {
    return this.#byId.get(id);
  }

  get ids(): number[] {
    return [...this.#byId.keys()];
  }
}
