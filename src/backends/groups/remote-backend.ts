import type { Decision } from '../../core/decision.ts';
import type { Policy } from '../../policies/policy.ts';
import { DelegatingRemoteBackend } from '../delegating-remote-backend.ts';
import type { BatchDecision, RemoteBackend, RemoteDecision } from '../remote-backend.ts';
import { type GroupBucket, type GroupHandle, GroupLimit } from './limits.ts';

/** Removes the queue estimate: other groups may lend, so the speed of a queue is unknown. */
const withoutQueue = ({ queue: _, ...policy }: Policy): Policy => policy;

export class RemoteGroupsBackend extends DelegatingRemoteBackend {
  readonly waitForPermit: RemoteBackend['waitForPermit'];
  policy: Policy;
  readonly #limit: GroupLimit;
  readonly #bucket: GroupBucket;
  readonly #group: GroupHandle;

  constructor(inner: RemoteBackend, bucket: GroupBucket, group: GroupHandle) {
    super(inner);
    this.#bucket = bucket;
    this.#group = group;
    this.policy = withoutQueue(inner.policy ?? bucket.policy);
    this.#limit = new GroupLimit(inner, bucket, group);
    const { waitForPermit } = inner;
    this.waitForPermit =
      waitForPermit &&
      ((key, cost, limits) => {
        this.#limit.recordDemand(key, cost); // the level is unknown, but a call waits
        return waitForPermit.call(inner, key, cost, limits);
      });
  }

  get waiterCount(): number {
    return this.inner.waiterCount ?? 0;
  }

  checkPrefetched(key: string, cost: number): Decision | undefined {
    const decision = this.inner.checkPrefetched?.(key, cost);
    if (decision) this.#limit.trackDecision(key, cost, decision);
    return decision;
  }

  override async check(key: string, cost: number): Promise<RemoteDecision> {
    return this.#track(key, cost, await super.check(key, cost));
  }

  override async checkNow(key: string, cost: number, isWaiting = false): Promise<RemoteDecision> {
    return this.#track(key, cost, await super.checkNow(key, cost, isWaiting));
  }

  override async checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision> {
    const batch = await super.checkBatch(key, costs);
    const { granted, refusal, fromFallback } = batch;
    if (refusal && !fromFallback && this.#limit.isLow(costs[granted], refusal)) {
      const refused = costs.slice(granted).reduce((sum, cost) => sum + cost, 0);
      this.#limit.recordDemand(key, refused);
    }
    return batch;
  }

  override async takeUpTo(key: string, most: number): Promise<number> {
    const taken = await super.takeUpTo(key, most);
    this.#limit.trackTake(key, most, taken);
    return taken;
  }

  /** The group keeps its fraction for the new limit. */
  prepareChange(policy: Policy): (() => Promise<void>) | undefined {
    const bucket = this.#group.allot(policy, this.#bucket);
    const change = this.inner.prepareChange?.(bucket.policy);
    if (!change) return undefined;
    return async () => {
      await change();
      this.policy = withoutQueue(this.inner.policy ?? bucket.policy);
      this.#limit.useBucket(bucket);
    };
  }

  override async close(): Promise<void> {
    this.#limit.unregister();
    await super.close();
  }

  #track(key: string, cost: number, remote: RemoteDecision): RemoteDecision {
    if (!remote.fromFallback) this.#limit.trackDecision(key, cost, remote.decision);
    return remote;
  }
}
