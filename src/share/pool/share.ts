/**
 * Pool: this process decides, on its part of the limit.
 *
 * A share that decides alone by a rule that is divided: what part of it is spent here, the pool says. Time is
 * the store's, so that a second is the same one for all members.
 */

import type { Clock, Millis } from '../../clock.ts';
import { allow, type Decision, deny } from '../../decision.ts';
import { ConfigError } from '../../errors.ts';
import type { News, Policy, Settlement, Standing, View } from '../../policy/policy.ts';
import { LocalShare } from '../local.ts';
import type { Share, ShareMaker, ShareSetting } from '../share.ts';
import type { TableCopy } from '../table.ts';
import type { Pool } from './pool.ts';

/** What one is told who has no part yet, or none any more. */
const NO_PART_RETRY_MS: Millis = 100;

/** What a share needs of its pool. */
export type PartOf = Pick<
  Pool,
  'claim' | 'claimTo' | 'secondEnd' | 'aheadMs' | 'isFree' | 'onChange'
>;

const ANYTHING = allow(Number.MAX_SAFE_INTEGER);

export class PoolShare implements Share {
  readonly #local: LocalShare;
  readonly #policy: Policy;
  readonly #pool: PartOf;
  readonly #clock: Clock;
  readonly #stopHearing: () => void;
  /** When it has to be looked again what may be used. */
  #lookAt: Millis = -Infinity;
  /** What everybody is told, if it is not the limit's to say. */
  #instead: Decision | undefined;
  #size = 0;
  #aheadMs: Millis = 0;
  /** When the last question came, on the store's clock: a look at the clock costs as much as deciding. */
  #storeNow: Millis = 0;

  /** @throws {ConfigError} if the rule cannot be divided. */
  constructor(policy: Policy, setting: ShareSetting, pool: PartOf) {
    requireDivisible(policy);
    const { name: _, clock, ...own } = setting;
    const storeTime = { now: () => this.#storeNow };
    this.#policy = policy;
    this.#pool = pool;
    this.#clock = clock;
    this.#local = new LocalShare(policy, { ...own, clock: storeTime });
    // At once, asked or not: what one comes back to after a while without a part, others may have spent.
    this.#stopHearing = pool.onChange(() => this.#look(clock.now()));
    this.#look(clock.now());
  }

  get keys(): number {
    return this.#local.keys;
  }

  get evicted(): number {
    return this.#local.evicted;
  }

  get bytes(): number {
    return this.#local.bytes;
  }

  get poolSize(): number {
    this.#toldInstead();
    return this.#size;
  }

  ask(key: string, cost: number, part?: number): Decision {
    return this.#toldInstead() ?? this.#local.ask(key, cost, part);
  }

  askHashed(low: number, high: number, cost: number): Decision {
    return this.#toldInstead() ?? this.#local.askHashed(low, high, cost);
  }

  askNow(key: string, cost: number, now: Millis, part?: number): Decision {
    return this.#toldInstead() ?? this.#local.askNow(key, cost, now + this.#aheadMs, part);
  }

  peek(key: string, cost: number, part?: number): Decision {
    return this.#toldInstead() ?? this.#local.peek(key, cost, part);
  }

  take(key: string, most: number): number {
    const told = this.#toldInstead();
    if (!told) return this.#local.take(key, most);
    return told.verdict === 'allow' && Number.isFinite(most) ? most : 0;
  }

  settle(key: string, settlement: Settlement): void {
    this.#toldInstead();
    const dueAt = settlement.dueAt + this.#aheadMs;
    this.#local.settle(key, { ...settlement, dueAt });
  }

  hear(key: string, news: News): boolean {
    this.#toldInstead();
    return 'poolSize' in news ? false : this.#local.hear(key, news);
  }

  inspect(key: string): View {
    const told = this.#toldInstead();
    const view = this.#local.inspect(key);
    view.poolSize = this.#size;
    if (told?.verdict === 'deny') view.remaining = Math.min(0, view.remaining);
    return view;
  }

  /** Who has no part has nothing left, whatever the limit says. */
  standings(key: string): Standing[] {
    const told = this.#toldInstead();
    const standings = this.#local.standings(key);
    if (told?.verdict !== 'deny') return standings;
    return standings.map((own) => ({
      ...own,
      remaining: 0,
      opensInMs: Math.max(own.opensInMs ?? 0, told.retryAfterMs),
    }));
  }

  copy(): TableCopy {
    this.#toldInstead();
    return this.#local.copy();
  }

  takeOver(copy: TableCopy): void {
    this.#toldInstead();
    this.#local.takeOver(copy);
  }

  leave(): void {
    this.#stopHearing();
  }

  #toldInstead(): Decision | undefined {
    const now = this.#clock.now();
    this.#storeNow = now + this.#aheadMs;
    if (now >= this.#lookAt) this.#look(now);
    return this.#instead;
  }

  #look(now: Millis): void {
    const pool = this.#pool;
    const { size, rank } = pool.claim(now);
    this.#aheadMs = pool.aheadMs;
    this.#storeNow = now + this.#aheadMs;
    const hadPart = this.#size > 0;
    this.#size = size;
    if (size === 0) {
      this.#instead = pool.isFree(now) ? ANYTHING : deny(NO_PART_RETRY_MS);
      this.#lookAt = Math.min(pool.claimTo(now), now + NO_PART_RETRY_MS);
      return;
    }
    const { isBySecond = false, refillMs = 0 } = this.#policy;
    this.#policy.divide?.({ size, rank }, this.#storeNow);
    // Who comes to others has not saved up anything: what they had, they may have spent.
    if (!hadPart && size > 1 && refillMs > 0) this.#local.raiseAll(this.#storeNow + refillMs);
    const [from, to] = isBySecond ? pool.secondEnd(now) : [Infinity, Infinity];
    const isBetween = now >= from; // one second may be over, and the next may not have begun
    this.#instead = isBetween ? deny(Math.max(1, Math.ceil(to - now))) : undefined;
    this.#lookAt = Math.min(pool.claimTo(now), isBetween ? to : from);
  }
}

/** A pool of nobody else, to see what a rule would be in one. */
export const undivided: ShareMaker = {
  isRemote: false,
  make(policy, { clock, random, keysMax }) {
    requireDivisible(policy);
    return new LocalShare(policy, { clock, random, keysMax });
  },
};

function requireDivisible(policy: Policy): void {
  if (!policy.divide) throw new ConfigError('limit', 'one that a pool can divide', policy.kind);
}
