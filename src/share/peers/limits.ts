/**
 * The limits that a node keeps together with others.
 *
 * Each has an id, the same for all of the fleet. While one limit takes the place of another with the same
 * id, both may count, and the one that came last hears.
 */

import type { Millis } from '../../clock.ts';
import { ENTRY, type Entries, type Standings } from './wire.ts';

/** One limit, as the engine meets it. */
export interface PeerLimit {
  /** What all of the fleet call it: the same rule under the same name is the same number. */
  readonly id: number;
  /** Others served so many, so long ago. */
  hear(low: number, high: number, hits: number, agoMs: Millis): void;
  /** How many buckets each key has. */
  readonly buckets: number;
  /** How keys stand from a place on, at most so many, and where to go on; 0: that was all. */
  stateFrom(cursor: number, most: number): { readonly standings: Standings; readonly next: number };
  /** A key's buckets are full in so long each, and no sooner. */
  raise(low: number, high: number, fullInMs: readonly Millis[]): void;
  /** How much of a key is spent; 0 if it is as good as new, or not known. */
  level(low: number, high: number): number;
  /** Counts so much more as spent, or so much less. */
  move(low: number, high: number, by: number): void;
}

export class Limits {
  readonly #all = new Set<PeerLimit>();
  readonly #byId = new Map<number, PeerLimit>();

  join(limit: PeerLimit): void {
    this.#all.add(limit);
    this.#byId.set(limit.id, limit);
  }

  leave(limit: PeerLimit): void {
    if (!this.#all.delete(limit)) return;
    this.#byId.delete(limit.id);
    for (const other of this.#all) if (other.id === limit.id) this.#byId.set(other.id, other);
  }

  byId(id: number): PeerLimit | undefined {
    return this.#byId.get(id);
  }

  get ids(): number[] {
    return [...this.#byId.keys()];
  }

  /** Others served these, so long ago. */
  hear(entries: Entries, agoMs: Millis): void {
    for (let at = 0; at < entries.length; at += ENTRY) {
      const limit = this.#byId.get(entries[at]);
      limit?.hear(entries[at + 1], entries[at + 2], entries[at + 3], agoMs);
    }
  }
}
