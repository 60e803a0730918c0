/** The same where somebody else keeps the group's bucket: a Redis of its region. */

import type { Decision } from '../../core/decision.ts';
import type { Policy } from '../../policies/policy.ts';
import { RemoteShareAround } from '../delegating-remote-backend.ts';
import type { Answer, LineAnswer, RemoteShare } from '../remote-backend.ts';
import { type GroupBucket, isLow, type OwnGroup } from './backend.ts';
import type { GroupLimit } from './limits.ts';

export class RemoteGroupShare extends RemoteShareAround {
  readonly enter: RemoteShare['enter'];
  readonly policy: Policy;
  readonly #group: OwnGroup;
  readonly #limit: GroupLimit;
  readonly #bucket: GroupBucket;
  readonly #leaveGroup: () => void;

  constructor(inner: RemoteShare, policy: Policy, bucket: GroupBucket, group: OwnGroup) {
    super(inner);
    this.policy = inner.policy ?? policy;
    this.#group = group;
    this.#bucket = bucket;
    this.enter = inner.enter && ((...asked) => this.#entered(...asked));
    const { name, line, onRoom } = bucket;
    this.#limit = {
      name,
      line,
      spare: (key, most) => inner.spare?.(key, most, line) ?? 0,
      gain: (key, units) => void inner.gain?.(key, units, line).then(() => onRoom?.(key)),
    };
    this.#leaveGroup = group.add(this.#limit);
  }

  get waiting(): number {
    return this.inner.waiting ?? 0;
  }

  askHere(key: string, cost: number): Decision | undefined {
    const decision = this.inner.askHere?.(key, cost);
    if (decision) this.#watch(key, cost, decision);
    return decision;
  }

  override async ask(key: string, cost: number): Promise<Answer> {
    const answer = await super.ask(key, cost);
    if (!answer.isMakeshift) this.#watch(key, cost, answer.decision);
    return answer;
  }

  override async askNow(key: string, cost: number): Promise<Answer> {
    const answer = await super.askNow(key, cost);
    if (!answer.isMakeshift) this.#watch(key, cost, answer.decision);
    return answer;
  }

  override async askLine(key: string, costs: readonly number[]): Promise<LineAnswer> {
    const answer = await super.askLine(key, costs);
    const { granted, refused, isMakeshift } = answer;
    if (refused && !isMakeshift && isLow(this.#bucket, costs[granted], refused)) {
      this.#want(key, sum(costs.slice(granted)));
    }
    return answer;
  }

  override async take(key: string, most: number): Promise<number> {
    const taken = await super.take(key, most);
    const wanted = Math.min(most, this.#bucket.burst);
    if (taken < wanted) this.#want(key, wanted);
    return taken;
  }

  override async close(): Promise<void> {
    this.#leaveGroup();
    await super.close();
  }

  #entered(...[key, cost, patience]: Parameters<NonNullable<RemoteShare['enter']>>) {
    this.#want(key, cost); // nobody says how low the bucket is, but somebody waits
    return (this.inner.enter as NonNullable<RemoteShare['enter']>)(key, cost, patience);
  }

  #watch(key: string, cost: number, decision: Decision): void {
    if (isLow(this.#bucket, cost, decision)) this.#want(key, cost);
  }

  /** Nothing while it has nowhere to put it. */
  #want(key: string, units: number): void {
    if (this.inner.isReachable) this.#group.want(this.#limit, key, units);
  }
}

const sum = (numbers: readonly number[]): number => numbers.reduce((all, own) => all + own, 0);
