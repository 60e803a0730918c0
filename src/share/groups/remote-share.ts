/** The same where somebody else keeps the group's bucket: a Redis of its region. */

import type { Millis } from '../../clock.ts';
import type { Decision } from '../../decision.ts';
import type { Policy, Settlement } from '../../policy/policy.ts';
import type { Answer, LineAnswer, RemoteShare } from '../remote.ts';
import type { GroupLimit } from './limits.ts';
import { type Company, type GroupBucket, LOW } from './share.ts';

export class RemoteGroupShare implements RemoteShare {
  readonly enter: RemoteShare['enter'];
  readonly policy: Policy;
  readonly #inner: RemoteShare;
  readonly #company: Company;
  readonly #limit: GroupLimit;
  readonly #leaveCompany: () => void;

  constructor(
    inner: RemoteShare,
    policy: Policy,
    { name, burst, onRoom }: GroupBucket,
    company: Company,
  ) {
    this.policy = inner.policy ?? policy;
    this.#inner = inner;
    this.#company = company;
    this.enter = inner.enter && ((...asked) => this.#entered(...asked));
    this.#limit = {
      name,
      burst,
      async remaining(key) {
        const seen = await inner.look(key);
        return seen ? policy.view(seen.state, 0, seen.at).remaining : 0;
      },
      take: (key, most) => inner.take(key, most),
      add(key, units) {
        const settled = inner.settle(key, { outcome: 'ignored', cost: units, dueAt: 0 });
        void settled.then(
          () => onRoom?.(key),
          () => {}, // lost, as if it had not come
        );
      },
    };
    this.#leaveCompany = company.add(this.#limit);
  }

  get isReachable(): boolean {
    return this.#inner.isReachable;
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
    this.#watch(key, cost, answer.decision);
    return answer;
  }

  async askNow(key: string, cost: number): Promise<Answer> {
    const answer = await this.#inner.askNow(key, cost);
    this.#watch(key, cost, answer.decision);
    return answer;
  }

  async askLine(key: string, costs: readonly number[]): Promise<LineAnswer> {
    const answer = await this.#inner.askLine(key, costs);
    if (answer.refused) this.#watch(key, sum(costs.slice(answer.granted)), answer.refused);
    return answer;
  }

  isMissed(dueAt: Millis): boolean {
    return this.#inner.isMissed?.(dueAt) ?? false;
  }

  async take(key: string, most: number): Promise<number> {
    const taken = await this.#inner.take(key, most);
    const wanted = Math.min(most, this.#limit.burst);
    if (taken < wanted) this.#company.want(this.#limit, key, wanted);
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
    this.#company.want(this.#limit, key, cost); // nobody says how low the bucket is, but somebody waits
    return (this.#inner.enter as NonNullable<RemoteShare['enter']>)(key, cost, patience);
  }

  #watch(key: string, cost: number, decision: Decision): void {
    const isLow = decision.verdict !== 'allow' || decision.remaining < this.#limit.burst * LOW;
    if (isLow && cost > 0) this.#company.want(this.#limit, key, cost);
  }
}

const sum = (numbers: readonly number[]): number => numbers.reduce((all, own) => all + own, 0);
