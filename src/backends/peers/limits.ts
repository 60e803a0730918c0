/**
 * The limits that a node shares with its peers, by id. A limit's id is equal on all nodes.
 *
 * Two limits with one id are siblings: one may be about to replace the other. Both get remote hits and each other's
 * hits. Levels are read from the newer one.
 */

import type { Millis } from '../../core/clock.ts';
import { ENTRY_WIDTH, type Entries, type KeyRefillTimes } from './messages.ts';

/** One limit, as the protocol uses it. Keys are the two halves of their hash. */
export interface PeerLimit {
  /** Derived from name and rule. */
  readonly id: number;
  /** Whether hits add up linearly, so predicted hits can be released: one bucket without `maxDebt`, or a window. */
  readonly isAdditive: boolean;
  /** Whether nodes compare its levels (`anti-entropy.ts`). */
  readonly isCompared: boolean;
  /** Subtracts hits that a peer served `agoMs` ago. */
  applyRemoteHits(low: number, high: number, hits: number, agoMs: Millis): void;
  /** Numbers of a key in a state transfer; 0 if its state is not transferred by itself. */
  readonly buckets: number;
  /** Up to `maxKeys` keys from the cursor on, and the next cursor; 0 at the end. */
  readPage(
    cursor: number,
    maxKeys: number,
  ): { readonly refillTimes: KeyRefillTimes; readonly next: number };
  /** Empties each bucket until it is full in `fullInMs` at the earliest, and spends `uncounted` hits in addition. */
  raiseLevel(low: number, high: number, fullInMs: readonly Millis[], uncounted: number): void;
  /** Units spent of a key, if hits are additive or levels are compared; otherwise, and for an unknown key, 0. */
  level(low: number, high: number): number;
  /** Spends `by` more units; fewer if negative. */
  adjustLevel(low: number, high: number, by: number): void;
}

export class PeerLimits {
  readonly #byId = new Map<number, readonly PeerLimit[]>();
  /** Whether any id has more than one limit. */
  #hasSiblings = false;

  add(limit: PeerLimit): void {
    this.#set(limit.id, [...this.#siblings(limit), limit]);
  }

  remove(limit: PeerLimit): void {
    this.#set(limit.id, this.#siblings(limit));
  }

  /** The newest limit with this id. */
  byId(id: number): PeerLimit | undefined {
    return this.#byId.get(id)?.at(-1);
  }

  /** Ids of the limits whose state is transferred. */
  get ids(): number[] {
    return [...this.#byId.keys()].filter((id) => (this.byId(id)?.buckets ?? 0) > 0);
  }

  /** Subtracts hits from the other limits with the same id. */
  applyToSiblings(limit: PeerLimit, low: number, high: number, hits: number): void {
    if (!this.#hasSiblings) return;
    for (const sibling of this.#siblings(limit)) sibling.applyRemoteHits(low, high, hits, 0);
  }

  /** Subtracts the hits of a report; returns the number of entries of unknown limits. */
  applyRemoteHits(entries: Entries, agoMs: Millis): number {
    let unknown = 0;
    for (let at = 0; at < entries.length; at += ENTRY_WIDTH) {
      const limits = this.#byId.get(entries[at]);
      if (!limits) unknown++;
      else
        for (const limit of limits)
          limit.applyRemoteHits(entries[at + 1], entries[at + 2], entries[at + 3], agoMs);
    }
    return unknown;
  }

  /** Applies one key of a state transfer, and `uncounted` hits that the source had not counted. */
  raiseLevel(
    id: number,
    low: number,
    high: number,
    fullInMs: readonly Millis[],
    uncounted: number,
  ): void {
    for (const limit of this.#withId(id)) limit.raiseLevel(low, high, fullInMs, uncounted);
  }

  #withId(id: number): readonly PeerLimit[] {
    return this.#byId.get(id) ?? [];
  }

  #siblings(limit: PeerLimit): readonly PeerLimit[] {
    return this.#withId(limit.id).filter((sibling) => sibling !== limit);
  }

  #set(id: number, limits: readonly PeerLimit[]): void {
    if (limits.length === 0) this.#byId.delete(id);
    else this.#byId.set(id, limits);
    this.#hasSiblings = [...this.#byId.values()].some(({ length }) => length > 1);
  }
}
