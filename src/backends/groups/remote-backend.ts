/** The same where somebody else keeps the group's bucket: a Redis of its region. */

import type { Decision } from '../../core/decision.ts';
import type { Policy } from '../../policies/policy.ts';
import { DelegatingRemoteBackend } from '../delegating-remote-backend.ts';
import type { BatchDecision, RemoteBackend, RemoteDecision } from '../remote-backend.ts';
import { type GroupBucket, type GroupHandle, isBucketLow } from './backend.ts';
import type { GroupLimit } from './limits.ts';

export class RemoteGroupsBackend extends DelegatingRemoteBackend {
  readonly waitForPermit: RemoteBackend['waitForPermit'];
  readonly policy: Policy;
  readonly #group: GroupHandle;
  readonly #limit: GroupLimit;
  readonly #bucket: GroupBucket;
  readonly #unregister: () => void;

  constructor(inner: RemoteBackend, policy: Policy, bucket: GroupBucket, group: GroupHandle) {
    super(inner);
    this.policy = inner.policy ?? policy;
    this.#group = group;
    this.#bucket = bucket;
    this.waitForPermit = inner.waitForPermit && ((...asked) => this.#enterWithDemand(...asked));
    const { name, reserveLevel, onCapacity } = bucket;
    this.#limit = {
      name,
      reserveLevel,
      takeSurplus: (key, most) => inner.takeSurplus?.(key, most, reserveLevel) ?? 0,
      credit: (key, units) =>
        void inner.credit?.(key, units, reserveLevel).then(() => onCapacity?.(key)),
    };
    this.#unregister = group.register(this.#limit);
  }

  get waiterCount(): number {
    return this.inner.waiterCount ?? 0;
  }

  checkPrefetched(key: string, cost: number): Decision | undefined {
    const decision = this.inner.checkPrefetched?.(key, cost);
    if (decision) this.#trackDemand(key, cost, decision);
    return decision;
  }

  override async check(key: string, cost: number): Promise<RemoteDecision> {
    const answer = await super.check(key, cost);
    if (!answer.fromFallback) this.#trackDemand(key, cost, answer.decision);
    return answer;
  }

  override async checkNow(key: string, cost: number): Promise<RemoteDecision> {
    const answer = await super.checkNow(key, cost);
    if (!answer.fromFallback) this.#trackDemand(key, cost, answer.decision);
    return answer;
  }

  override async checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision> {
    const answer = await super.checkBatch(key, costs);
    const { granted, refusal, fromFallback } = answer;
    if (refusal && !fromFallback && isBucketLow(this.#bucket, costs[granted], refusal)) {
      this.#recordDemand(key, sum(costs.slice(granted)));
    }
    return answer;
  }

  override async takeUpTo(key: string, most: number): Promise<number> {
    const taken = await super.takeUpTo(key, most);
    const wanted = Math.min(most, this.#bucket.burst);
    if (taken < wanted) this.#recordDemand(key, wanted);
    return taken;
  }

  override async close(): Promise<void> {
    this.#unregister();
    await super.close();
  }

  #enterWithDemand(
    ...[key, cost, limits]: Parameters<NonNullable<RemoteBackend['waitForPermit']>>
  ) {
    this.#recordDemand(key, cost); // nobody says how low the bucket is, but somebody waits
    return (this.inner.waitForPermit as NonNullable<RemoteBackend['waitForPermit']>)(
      key,
      cost,
      limits,
    );
  }

  #trackDemand(key: string, cost: number, decision: Decision): void {
    if (isBucketLow(this.#bucket, cost, decision)) this.#recordDemand(key, cost);
  }

  /** Nothing while it has nowhere to put it. */
  #recordDemand(key: string, units: number): void {
    if (this.inner.isAvailable) this.#group.recordDemand(this.#limit, key, units);
  }
}

const sum = (numbers: readonly number[]): number => numbers.reduce((all, own) => all + own, 0);
