/**
 * One limit's bucket in this process's group: the tokens that other groups may borrow, and when it borrows itself.
 *
 *          burst ┤▒▒▒▒▒▒▒▒  surplus: other groups may borrow it
 *                │▒▒▒▒▒▒▒▒
 *  reserve level ┤████████  own calls only; below it the group borrows, up to the reserve level
 *                │████████
 *              0 ┴────────
 *
 * One level serves both, so nothing is borrowed twice: tokens above it were refilled here.
 */

import { type Decision, NEVER } from '../../core/decision.ts';
import type { Policy } from '../../policies/policy.ts';
import type { Group } from './group.ts';

export interface GroupBucket {
  readonly policy: Policy;
  readonly name: string;
  /** False if the name is the rule's kind. */
  readonly hasExplicitName?: boolean | undefined;
  /** Refill rate: the group's fraction of the limit's rate. */
  readonly perMs: number;
  readonly burst: number;
  /** The level of the burst that is reserved for the group's own calls. */
  readonly reserveLevel: number;
  /** True if nothing can be borrowed: the group has only its own fraction. */
  readonly isFixed?: boolean;
  /** Called after tokens were borrowed for a key: waiting calls may retry. */
  readonly onCapacity?: ((key: string) => void) | undefined;
}

/** The part of a local or remote backend that holds the tokens. */
interface TokenStore {
  readonly isAvailable?: boolean;
  takeSurplus?(key: string, most: number, leave: number): number | Promise<number>;
  credit?(key: string, tokens: number, upTo: number): unknown;
}

export type GroupHandle = Pick<Group, 'register' | 'recordDemand' | 'allot'>;

/** A bucket below this fraction of the reserve level is low. Lenders are near the level and could not store more. */
const LOW_FRACTION = 0.5;

export class GroupLimit {
  readonly name: string;
  #bucket: GroupBucket;
  readonly #store: TokenStore;
  readonly #group: GroupHandle;
  readonly unregister: () => void;

  constructor(store: TokenStore, bucket: GroupBucket, group: GroupHandle) {
    this.name = bucket.name;
    this.#bucket = bucket;
    this.#store = store;
    this.#group = group;
    this.unregister = group.register(this);
  }

  get reserveLevel(): number {
    return this.#bucket.reserveLevel;
  }

  /** Changes the numbers of the limit. */
  useBucket(bucket: GroupBucket): void {
    this.#bucket = bucket;
  }

  /** Takes up to `most` whole tokens of the surplus. */
  takeSurplus(key: string, most: number): number | Promise<number> {
    if (this.#bucket.isFixed) return 0;
    return this.#store.takeSurplus?.(key, most, this.reserveLevel) ?? 0;
  }

  /** Adds borrowed tokens up to the reserve level; the rest is lost. */
  credit(key: string, tokens: number): void {
    const credited = this.#store.credit?.(key, tokens, this.reserveLevel);
    const { onCapacity } = this.#bucket;
    if (credited instanceof Promise) void credited.then(() => onCapacity?.(key));
    else onCapacity?.(key);
  }

  /** Must be called after each decision. */
  trackDecision(key: string, cost: number, decision: Decision): void {
    if (this.isLow(cost, decision)) this.recordDemand(key, cost);
  }

  /** Must be called after `takeUpTo`. */
  trackTake(key: string, most: number, taken: number): void {
    const wanted = Math.min(most, this.#bucket.burst);
    if (taken < wanted) this.recordDemand(key, wanted);
  }

  /** Whether the bucket is low, as far as the decision shows it. */
  isLow(cost: number, decision: Decision): boolean {
    const { perMs, reserveLevel } = this.#bucket;
    if (decision.verdict === 'allow')
      return cost > 0 && decision.remaining < reserveLevel * LOW_FRACTION;
    const ms = decision.verdict === 'deny' ? decision.retryAfterMs : decision.waitMs;
    return ms !== NEVER && cost - ms * perMs < reserveLevel * LOW_FRACTION;
  }

  /** Requests tokens, unless the store is unavailable: they would be lost. */
  recordDemand(key: string, tokens: number): void {
    const { isFixed = false } = this.#bucket;
    if (!isFixed && this.#store.isAvailable !== false) this.#group.recordDemand(this, key, tokens);
  }
}
