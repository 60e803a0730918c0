/**
 * The limits that a node keeps together with others.
 *
 * Each has an id, the same for all of the fleet. Two with the same id, of which one may be about to take the
 * place of the other, hear what others served and what the other one does; the one that came last is asked.
 */

import type { Millis } from '../../core/clock.ts';
import { ENTRY_WIDTH, type Entries, type KeyRefillTimes } from './messages.ts';

/** One limit, as the engine meets it. */
export interface PeerLimit {
  /** What all of the fleet call it: the same rule under the same name is the same number. */
  readonly id: number;
  /** Whether hits just add up, so that what was put on it can be taken off again: it is one bucket. */
  readonly isAdditive: boolean;
  /** Others served so many, so long ago. */
  applyRemoteHits(low: number, high: number, hits: number, agoMs: Millis): void;
  /** How many buckets each key has. */
  readonly buckets: number;
  /** How keys stand from a place on, at most so many, and where to go on; 0: that was all. */
  readPage(
    cursor: number,
    most: number,
  ): { readonly refillTimes: KeyRefillTimes; readonly next: number };
  /** A key's buckets are full in so long each, and no sooner; not counting so many hits. */
  raiseLevel(low: number, high: number, fullInMs: readonly Millis[], hits: number): void;
  /** How much of a key is spent; 0 if it is as good as new, or not known. */
  level(low: number, high: number): number;
  /** Counts so much more as spent, or so much less. */
  adjustLevel(low: number, high: number, by: number): void;
}

export class PeerLimits {
  readonly #byId = new Map<number, readonly PeerLimit[]>();
  /** Whether some id has more than one. */
  #hasSiblings = false;

  add(limit: PeerLimit): void {
    this.#set(limit.id, [...this.#siblings(limit), limit]);
  }

  remove(limit: PeerLimit): void {
    this.#set(limit.id, this.#siblings(limit));
  }

  /** The one that came last. */
  byId(id: number): PeerLimit | undefined {
    return this.#byId.get(id)?.at(-1);
  }

  get ids(): number[] {
    return [...this.#byId.keys()];
  }

  /** One served so many: those with the same id have to know. */
  applyToSiblings(limit: PeerLimit, low: number, high: number, hits: number): void {
    if (!this.#hasSiblings) return;
    for (const own of this.#siblings(limit)) own.applyRemoteHits(low, high, hits, 0);
  }

  /** Others served these, so long ago. How many of them are of limits that are not known here. */
  applyRemoteHits(entries: Entries, agoMs: Millis): number {
    let unknown = 0;
    for (let at = 0; at < entries.length; at += ENTRY_WIDTH) {
      const limits = this.#byId.get(entries[at]);
      if (!limits) unknown++;
      else
        for (const own of limits)
          own.applyRemoteHits(entries[at + 1], entries[at + 2], entries[at + 3], agoMs);
    }
    return unknown;
  }

  /** How a key stands elsewhere, where so many hits were not counted. */
  raiseLevel(
    id: number,
    low: number,
    high: number,
    fullInMs: readonly Millis[],
    hits: number,
  ): void {
    for (const own of this.#withId(id)) own.raiseLevel(low, high, fullInMs, hits);
  }

  #withId(id: number): readonly PeerLimit[] {
    return this.#byId.get(id) ?? [];
  }

  /** Those with the same id. */
  #siblings(limit: PeerLimit): readonly PeerLimit[] {
    return this.#withId(limit.id).filter((own) => own !== limit);
  }

  #set(id: number, limits: readonly PeerLimit[]): void {
    if (limits.length === 0) this.#byId.delete(id);
    else this.#byId.set(id, limits);
    this.#hasSiblings = [...this.#byId.values()].some((own) => own.length > 1);
  }
}
