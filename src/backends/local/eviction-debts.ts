/**
 * What evicted keys would still have owed, by hash bucket: eviction never grants a fresh burst.
 *
 * The instant at which an evicted key would have been as good as new is kept for its hash bucket. A new key of that
 * bucket may be the evicted one, so until then it starts no better off.
 */

import type { Millis } from '../../core/clock.ts';
import type { KeyConverter, Policy } from '../../policies/policy.ts';

/**
 * Hash buckets that remember evictions, a power of two. New keys of one bucket share its debt, so under a
 * flood a bucket as a whole gets what one key is allowed: the more buckets, the smaller the effect of a
 * flood. Half a megabyte, allocated at the first eviction of a key in use.
 */
const HASH_BUCKETS = 65_536;

/** What debts need of a policy. */
export type KeyLifecycle = Pick<Policy, 'width' | 'init' | 'freshAt'>;

export class EvictionDebts {
  /** By hash bucket: when the last key evicted from it would have been as good as new. */
  #until: Float64Array | undefined;

  get isEmpty(): boolean {
    return this.#until === undefined;
  }

  /** Bytes allocated. */
  get bytes(): number {
    return this.#until?.byteLength ?? 0;
  }

  /** Until when a new key counts as spent; now if it owes nothing. */
  untilFor(high: number, now: Millis): Millis {
    return this.#until ? Math.max(now, this.#until[high & (HASH_BUCKETS - 1)]) : now;
  }

  /** A key in use is evicted: a new key that may be the same starts no better off. */
  add(high: number, evictAt: Millis): void {
    this.#until ??= new Float64Array(HASH_BUCKETS).fill(-Infinity);
    const bucket = high & (HASH_BUCKETS - 1);
    this.#until[bucket] = Math.max(this.#until[bucket], evictAt);
  }

  /** All new keys count as spent until `freshAt`. */
  addToAll(freshAt: Millis): void {
    this.#until ??= new Float64Array(HASH_BUCKETS).fill(-Infinity);
    for (let n = 0; n < HASH_BUCKETS; n++) {
      this.#until[n] = Math.max(this.#until[n], freshAt);
    }
  }

  /** For a snapshot; undefined if there are none. */
  copy(): Float64Array | undefined {
    return this.#until?.slice();
  }

  /** Takes over the debts of a snapshot, unless it has none or another number of hash buckets. */
  restore(until: Float64Array | undefined): void {
    if (until?.length === HASH_BUCKETS) this.#until = until.slice();
  }

  /** Takes over debts of one rule as debts of another. */
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
