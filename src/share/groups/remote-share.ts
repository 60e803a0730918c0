/** The same where somebody else keeps the group's bucket: a Redis of its region. */

import type { Millis } from '../../clock.ts';
import type { Decision } from '../../decision.ts';
import type { Policy, Settlement } from '../../policy/policy.ts';
import type { Answer, LineAnswer, RemoteShare } from '../remote.ts';
import type { GroupLimit } from './limits.ts';
import { type Company, type GroupBucket, isLow } from './share.ts';

export class RemoteGroupShare implements RemoteShare {
  readonly enter: RemoteShare['enter'];
  readonly policy: Policy;
  readonly #inner: RemoteShare;
  readonly #company: Company;
  readonly #limit: GroupLimit;
  readonly #bucket: GroupBucket;
  readonly #leaveCompany: () => void;

  constructor(inner: RemoteShare, policy: Policy, bucket: GroupBucket, company: Company) {
    this.policy = inner.policy ?? policy;
    this.#inner = inner;
    this.#company = company;
    this.#bucket = bucket;
    this.enter = inner.enter && ((...asked) => this.#entered(...asked));
    const { name, line, onRoom } = bucket;
    this.#limit = {
      name,
      line,
      spare: (key, most) => inner.spare?.(key, most, line) ?? 0,
      gain: (key, units) => void inner.gain?.(key, units, line).then(() => onRoom?.(key)),
    };
    this.#leaveCompany = company.add(this.#limit);
  }

  get isReachable(): boolean {
    return this.#inner.isReachable;
  }

  get onUnavailable(): RemoteShare['onUnavailable'] {
    return this.#inner.onUnavailable;
  }

  get waiting(): number {
    return this.#inner.waiting ?? 0;
  }

  askHere(key: string, cost: number): Decision | undefined {
    const decision = this.#inner.askHere?.(key, cost);
    if (decision) this.#watch(key, cost, decision);
    return decision;
  }

  async ask(key: string, cost: number): Promise<Answer> {
    const answer = await this.#inner.ask(key, cost);
    if (!answer.isMakeshift) this.#watch(key, cost, answer.decision);
    return answer;
  }

  async askNow(key: string, cost: number): Promise<Answer> {
    const answer = await this.#inner.askNow(key, cost);
    if (!answer.isMakeshift) this.#watch(key, cost, answer.decision);
    return answer;
  }

  async askLine(key: string, costs: readonly number[]): Promise<LineAnswer> {
    const answer = await this.#inner.askLine(key, costs);
    const { granted, refused, isMakeshift } = answer;
    if (refused && !isMakeshift && isLow(this.#bucket, costs[granted], refused)) {
      this.#want(key, sum(costs.slice(granted)));
    }
    return answer;
  }

  isMissed(dueAt: Millis): boolean {
    return this.#inner.isMissed?.(dueAt) ?? false;
  }

  async take(key: string, most: number): Promise<number> {
    const taken = await this.#inner.take(key, most);
    const wanted = Math.min(most, this.#bucket.burst);
    if (taken < wanted) this.#want(key, wanted);
    return taken;
  }

  settle(key: string, settlement: Settlement): Promise<void> {
    return this.#inner.settle(key, settlement);
  }

  hits(key: string, count: number): Promise<void> {
    return this.#inner.hits(key, count);
  }

  look(key: string): ReturnType<RemoteShare['look']> {
    return this.#inner.look(key);
  }

  async close(): Promise<void> {
    this.#leaveCompany();
    await this.#inner.close();
  }

  #entered(...[key, cost, patience]: Parameters<NonNullable<RemoteShare['enter']>>) {
    this.#want(key, cost); // nobody says how low the bucket is, but somebody waits
    return (this.#inner.enter as NonNullable<RemoteShare['enter']>)(key, cost, patience);
  }

  #watch(key: string, cost: number, decision: Decision): void {
    if (isLow(this.#bucket, cost, decision)) this.#want(key, cost);
  }

  /** Nothing while it has nowhere to put it. */
  #want(key: string, units: number): void {
    if (this.#inner.isReachable) this.#company.want(this.#limit, key, units);
  }
}

const sum = (numbers: readonly number[]): number => numbers.reduce((all, own) => all + own, 0);
