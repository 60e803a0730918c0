/**
 * Groups: this process decides, by its group's bucket, and steals from other groups when that is low.
 *
 * A share around the one that keeps the group's bucket, which is this process's own or a fleet's. Nobody waits for a theft:
 * what was stolen is there for those who ask next, and for those who wait.
 */

import type { Millis } from '../../core/clock.ts';
import { type Decision, NEVER } from '../../core/decision.ts';
import type { Backend } from '../backend.ts';
import { DelegatingBackend } from '../delegating-backend.ts';
import type { GroupLimit } from './limits.ts';

/** What a share needs of its group. */
export interface GroupHandle {
  /** Others may steal from it, until what comes back is called. */
  register(limit: GroupLimit): () => void;
  /** So much was asked of a bucket that is low. */
  recordDemand(limit: GroupLimit, key: string, units: number): void;
}

export interface GroupBucket {
  readonly name: string;
  /** The group's part of the limit's rate, */
  readonly perMs: number;
  /** of its burst, */
  readonly burst: number;
  /** and what of that it keeps for its own calls. */
  readonly reserveLevel: number;
  /** Units have come for a key: whoever waits may try again. */
  readonly onCapacity?: ((key: string) => void) | undefined;
}

/** Below this part of the line a bucket is low: one that gives is near the line, and should not steal what would not fit. */
const LOW_FRACTION = 0.5;

/** Whether a call's bucket is low, as its decision tells. */
export function isBucketLow(
  { perMs, reserveLevel }: GroupBucket,
  cost: number,
  decision: Decision,
): boolean {
  if (decision.verdict === 'allow')
    return cost > 0 && decision.remaining < reserveLevel * LOW_FRACTION;
  const ms = decision.verdict === 'deny' ? decision.retryAfterMs : decision.waitMs;
  return ms !== NEVER && cost - ms * perMs < reserveLevel * LOW_FRACTION;
}

export class GroupsBackend extends DelegatingBackend {
  /** What is stolen is stolen for a key by its name. */
  readonly needsKeyNames = true;
  readonly #group: GroupHandle;
  readonly #limit: GroupLimit;
  readonly #bucket: GroupBucket;
  readonly #unregister: () => void;

  constructor(inner: Backend, bucket: GroupBucket, group: GroupHandle) {
    super(inner);
    this.#group = group;
    this.#bucket = bucket;
    const { name, reserveLevel, onCapacity } = bucket;
    this.#limit = {
      name,
      reserveLevel,
      takeSurplus: (key, most) => inner.takeSurplus?.(key, most, reserveLevel) ?? 0,
      credit(key, units) {
        inner.credit?.(key, units, reserveLevel);
        onCapacity?.(key);
      },
    };
    this.#unregister = group.register(this.#limit);
  }

  override check(key: string, cost: number, part?: number): Decision {
    return this.#trackDemand(key, cost, super.check(key, cost, part));
  }

  override checkNow(key: string, cost: number, now: Millis, part?: number): Decision {
    return this.#trackDemand(key, cost, super.checkNow(key, cost, now, part));
  }

  override takeUpTo(key: string, most: number): number {
    const taken = super.takeUpTo(key, most);
    const wanted = Math.min(most, this.#bucket.burst);
    if (taken < wanted) this.#group.recordDemand(this.#limit, key, wanted);
    return taken;
  }

  override detach(): void {
    this.#unregister();
    super.detach();
  }

  #trackDemand(key: string, cost: number, decision: Decision): Decision {
    if (isBucketLow(this.#bucket, cost, decision)) this.#group.recordDemand(this.#limit, key, cost);
    return decision;
  }
}
