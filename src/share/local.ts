/**
 * Local: this process decides, alone and at once.
 *
 * The least a share can be: a clock, a table of keys and the rule.
 */

import type { Clock, Millis } from '../clock.ts';
import { type Decision, deny } from '../decision.ts';
import { type News, type Policy, type Settlement, takeUpTo, type View } from '../policy/policy.ts';
import type { Random } from '../random.ts';
import { hasher } from './hash.ts';
import type { Share } from './share.ts';
import { KeyTable } from './table.ts';

export interface LocalOptions {
  readonly clock: Clock;
  readonly random: Random;
  readonly keysMax: number;
}

/** What a stranger is told when every key in sight holds calls in flight and none can make room. */
const CROWDED_RETRY_MS: Millis = 1000;

export class LocalShare implements Share {
  readonly #policy: Policy;
  readonly #clock: Clock;
  readonly #table: KeyTable;

  constructor(policy: Policy, { clock, random, keysMax }: LocalOptions) {
    this.#policy = policy;
    this.#clock = clock;
    this.#table = new KeyTable(policy, hasher(random), keysMax);
  }

  get keys(): number {
    return this.#table.size;
  }

  get evicted(): number {
    return this.#table.evicted;
  }

  get bytes(): number {
    return this.#table.bytes;
  }

  ask(key: string, cost: number): Decision {
    const now = this.#clock.now();
    const i = this.#table.place(key, now);
    return i < 0 ? deny(CROWDED_RETRY_MS) : this.#policy.ask(this.#table.cells, i, cost, now);
  }

  askNow(key: string, cost: number, now: Millis): Decision {
    const i = this.#table.place(key, now);
    if (i < 0) return deny(CROWDED_RETRY_MS);
    const { cells } = this.#table;
    const before = this.#policy.reserves ? cells.slice(i, i + this.#policy.width) : undefined;
    const decision = this.#policy.ask(cells, i, cost, now);
    if (decision.verdict !== 'wait') return decision;
    if (before) cells.set(before, i); // whatever a part of it took, it took for later
    return deny(Math.ceil(decision.waitMs));
  }

  take(key: string, most: number): number {
    const now = this.#clock.now();
    const i = this.#table.place(key, now);
    return i < 0 ? 0 : takeUpTo(this.#policy, this.#table.cells, i, most, now);
  }

  settle(key: string, settlement: Settlement): void {
    const i = this.#table.find(key);
    if (i >= 0) this.#policy.settle(this.#table.cells, i, settlement, this.#clock.now());
  }

  hear(key: string, news: News): boolean {
    const now = this.#clock.now();
    const i = this.#table.place(key, now);
    return i >= 0 && this.#policy.hear(this.#table.cells, i, news, now);
  }

  inspect(key: string): View {
    const now = this.#clock.now();
    const i = this.#table.find(key);
    if (i >= 0) return this.#policy.view(this.#table.cells, i, now);
    const stranger = new Float64Array(this.#policy.width);
    this.#table.startOutside(key, stranger, now);
    return this.#policy.view(stranger, 0, now);
  }
}
