/**
 * Groups: this process decides, from its group's bucket, and borrows from other groups when the bucket is low.
 *
 * Wraps the backend that holds the group's bucket: this process's own bucket, or a fleet's. No decision waits for a
 * loan: borrowed tokens are available to later calls and to waiting ones.
 */

import type { Millis } from '../../core/clock.ts';
import type { Decision } from '../../core/decision.ts';
import type { Policy } from '../../policies/policy.ts';
import type { Backend, TableSnapshot } from '../backend.ts';
import { DelegatingBackend } from '../delegating-backend.ts';
import { type GroupBucket, type GroupHandle, GroupLimit } from './limits.ts';

export class GroupsBackend extends DelegatingBackend {
  readonly #limit: GroupLimit;
  readonly #bucket: GroupBucket;
  readonly #group: GroupHandle;

  constructor(inner: Backend, bucket: GroupBucket, group: GroupHandle) {
    super(inner);
    this.#bucket = bucket;
    this.#group = group;
    this.#limit = new GroupLimit(inner, bucket, group);
  }

  override check(key: string, cost: number, partitionIndex?: number): Decision {
    const decision = super.check(key, cost, partitionIndex);
    this.#limit.trackDecision(key, cost, decision);
    return decision;
  }

  override checkNow(key: string, cost: number, now: Millis, partitionIndex?: number): Decision {
    const decision = super.checkNow(key, cost, now, partitionIndex);
    this.#limit.trackDecision(key, cost, decision);
    return decision;
  }

  /** Unknown, because other groups may lend. */
  override timeToGrantMs(): Millis {
    return 0;
  }

  override takeUpTo(key: string, most: number): number {
    const taken = super.takeUpTo(key, most);
    this.#limit.trackTake(key, most, taken);
    return taken;
  }

  /** Restores only a snapshot of an unchanged rule: the group's fraction of another limit may have differed. */
  override restore(snapshot: TableSnapshot, from?: Policy): boolean {
    return from === undefined && super.restore(snapshot);
  }

  /** The group keeps its fraction for the new limit. */
  prepareChange(policy: Policy): (() => void) | undefined {
    const bucket = this.#group.allot(policy, this.#bucket);
    const change = this.inner.prepareChange?.(bucket.policy);
    if (!change) return undefined;
    return () => {
      change();
      this.#limit.useBucket(bucket);
    };
  }

  override detach(): void {
    this.#limit.unregister();
    super.detach();
  }
}
