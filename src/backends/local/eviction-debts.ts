/**
 * Debts of evicted keys, by hash bucket: eviction never grants a fresh burst.
 *
 * Each hash bucket stores the latest instant at which one of its evicted keys would be fresh (decide like a new key). A
 * new key of the bucket may be the evicted one, so it counts as spent until then.
 */

import type { Millis } from '../../core/clock.ts';
import type { KeyConverter, Policy } from '../../policies/policy.ts';

/**
 * Number of hash buckets, a power of two. New keys of one bucket share its debt, so under a flood a bucket as a whole
 * gets the rate of one key: more buckets reduce the effect of a flood. 512 KiB, allocated at the first eviction of a
 * key in use.
 */
const HASH_BUCKETS = 65_536;

/** The members of a policy that debts use. */
export type KeyLifecycle = Pick<Policy, 'width' | 'init' | 'freshAt'>;

export class EvictionDebts {
  /** By hash bucket: the instant at which the last key evicted from it is fresh. */
  #until: Float64Array | undefined;

  get isEmpty(): boolean {
    return this.#until === undefined;
  }

  get bytes(): number {
    return this.#until?.byteLength ?? 0;
  }

  /** The time until which a new key counts as spent; `now` without a debt. */
  untilFor(high: number, now: Millis): Millis {
    return this.#until ? Math.max(now, this.#until[high & (HASH_BUCKETS - 1)]) : now;
  }

  /** Records the eviction of a key in use: a new key of the bucket counts as spent until `evictAt`. */
  add(high: number, evictAt: Millis): void {
    this.#until ??= new Float64Array(HASH_BUCKETS).fill(-Infinity);
    const bucket = high & (HASH_BUCKETS - 1);
    this.#until[bucket] = Math.max(this.#until[bucket], evictAt);
  }

  /** Marks all new keys as spent until `freshAt`. */
  addToAll(freshAt: Millis): void {
    this.#until ??= new Float64Array(HASH_BUCKETS).fill(-Infinity);
    for (let n = 0; n < HASH_BUCKETS; n++) {
      this.#until[n] = Math.max(this.#until[n], freshAt);
    }
  }

  /** Copies the debts for a snapshot; undefined if there are none. */
  copy(): Float64Array | undefined {
    return this.#until?.slice();
  }

  /** Restores the debts of a snapshot, unless it has none or another number of hash buckets. */
  restore(until: Float64Array | undefined): void {
    if (until?.length === HASH_BUCKETS) this.#until = until.slice();
  }

  /** Converts the debts of one rule to those of another. */
  convertFrom(
    source: EvictionDebts,
    from: KeyLifecycle,
    to: KeyLifecycle,
    convert: KeyConverter,
    now: Millis,
  ): void {
    if (!source.#until) return;
    const before = new Float64Array(from.width);
    const after = new Float64Array(to.width);
    this.#until = source.#until.map((until) => {
      if (until <= now) return until;
      from.init(before, 0, now, until);
      convert(after, 0, before, 0, now);
      return to.freshAt(after, 0, true);
    });
  }
}
