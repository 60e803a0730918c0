/**
 * Pool: this process decides, on its part of the limit.
 *
 * A share that decides alone by a rule that is divided: what part of it is spent here, the pool says. Time is
 * the store's, so that a second is the same one for all members.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { allow, type Decision, deny } from '../../core/decision.ts';
import { ConfigError } from '../../core/errors.ts';
import type { News, Policy, Seen, Settlement, Standing, State } from '../../policies/policy.ts';
import type { ShareMaker, ShareSetting, TableCopy } from '../backend.ts';
import { ShareAround } from '../delegating-backend.ts';
import { LocalShare } from '../local/backend.ts';
import type { Pool } from './membership.ts';
import type { Climbing } from './ramp-checkpoint.ts';
import { Climb, type Level } from './ramp-levels.ts';
import { Meter } from './saturation.ts';

/** What one is told who has no part yet, or none any more. */
const NO_PART_RETRY_MS: Millis = 100;

/** What a share needs of its pool. */
export type PartOf = Pick<Pool, 'claim' | 'claimTo' | 'secondEnd' | 'aheadMs' | 'isFree' | 'add'>;

const ANYTHING = allow(Number.MAX_SAFE_INTEGER);

/** The store's time when the last question came: a look at the clock costs as much as deciding. */
class StoreTime implements Clock {
  at: Millis = 0;

  now(): Millis {
    return this.at;
  }
}

export class PoolShare extends ShareAround<LocalShare> {
  readonly #policy: Policy;
  readonly #pool: PartOf;
  readonly #clock: Clock;
  readonly #storeTime: StoreTime;
  readonly #leavePool: () => void;
  readonly #meter: Meter;
  readonly #climb: Climb | undefined;
  /** True if names are noted. */
  readonly wantsNames: boolean;
  /** When it has to be looked again what may be used. */
  #lookAt: Millis = -Infinity;
  /** What everybody is told, if it is not the limit's to say. */
  #instead: Decision | undefined;
  #size = 0;
  /** Whether it ever had a part. */
  #wasHere = false;
  #aheadMs: Millis = 0;

  /** @throws {ConfigError} if the rule cannot be divided. */
  constructor(policy: Policy, setting: ShareSetting, pool: PartOf) {
    requireDivisible(policy);
    const { name, clock, ...own } = setting;
    const storeTime = new StoreTime();
    super(new LocalShare(policy, { ...own, clock: storeTime }));
    this.#storeTime = storeTime;
    this.#policy = policy;
    this.#pool = pool;
    this.#clock = clock;
    const paceOf = (cells: State, i: number, at: Millis): number =>
      policy.pace?.(cells, i, at) ?? 0;
    this.#meter = new Meter(() => meanOf(this.inner, paceOf) * this.inner.keys);
    const { resumeForMs } = policy;
    this.wantsNames = resumeForMs !== undefined;
    const climb = resumeForMs === undefined ? undefined : this.#climbing(name, resumeForMs);
    this.#climb = climb?.climb;
    this.#leavePool = pool.add({
      name,
      ...(climb && { climbing: climb }),
      // At once, asked or not: what one comes back to after a while without a part, others may have spent.
      partChanged: () => this.#look(clock.now()),
      saturation: (now) => this.#saturation(now),
    });
    this.#look(clock.now());
  }

  get poolSize(): number {
    this.#toldInstead();
    return this.#size;
  }

  override ask(key: string, cost: number, part?: number): Decision {
    const told = this.#toldInstead();
    if (told) return told;
    this.#climb?.called(key);
    return this.#counted(cost, this.inner.ask(key, cost, part));
  }

  override askHashed(low: number, high: number, cost: number): Decision {
    const told = this.#toldInstead();
    return told ?? this.#counted(cost, this.inner.askHashed(low, high, cost));
  }

  override askNow(key: string, cost: number, now: Millis, part?: number): Decision {
    const told = this.#toldInstead(now);
    if (told) return told;
    this.#climb?.called(key);
    return this.#counted(cost, this.inner.askNow(key, cost, now + this.#aheadMs, part));
  }

  override peek(key: string, cost: number, part?: number): Decision {
    return this.#toldInstead() ?? this.inner.peek(key, cost, part);
  }

  override take(key: string, most: number): number {
    const told = this.#toldInstead();
    if (told) return told.verdict === 'allow' && Number.isFinite(most) ? most : 0;
    this.#climb?.called(key);
    const taken = this.inner.take(key, most);
    this.#meter.count(taken, this.#storeTime.at);
    return taken;
  }

  override settle(key: string, settlement: Settlement, now?: Millis): void {
    this.#toldInstead(now);
    const { outcome, cost, used = cost } = settlement;
    const dueAt = settlement.dueAt + this.#aheadMs;
    this.inner.settle(key, { ...settlement, dueAt });
    this.#meter.count(outcome === 'ignored' ? -cost : used - cost, this.#storeTime.at);
  }

  override hear(key: string, news: News): boolean {
    this.#toldInstead();
    return 'poolSize' in news ? false : this.inner.hear(key, news);
  }

  /** Who has no part has nothing left, whatever the limit says. */
  override inspect(key: string, now?: Millis): Seen {
    const told = this.#toldInstead(now);
    const { view, standings } = this.inner.inspect(key);
    view.poolSize = this.#size;
    if (told?.verdict !== 'deny') return { view, standings };
    view.remaining = Math.min(0, view.remaining);
    const opensIn = (own: Standing): Millis => Math.max(own.opensInMs ?? 0, told.retryAfterMs);
    return {
      view,
      standings: standings.map((own) => ({ ...own, remaining: 0, opensInMs: opensIn(own) })),
    };
  }

  override copy(): TableCopy {
    this.#toldInstead();
    return this.inner.copy();
  }

  override takeOver(copy: TableCopy): void {
    this.#toldInstead();
    this.inner.takeOver(copy);
  }

  override leave(): void {
    this.#leavePool();
  }

  #counted(cost: number, decision: Decision): Decision {
    if (decision.verdict !== 'deny') this.#meter.count(cost, this.#storeTime.at);
    return decision;
  }

  #saturation(now: Millis): number {
    if (this.#policy.pace) return this.#meter.read(now + this.#aheadMs);
    const { width } = this.#policy;
    return meanOf(this.inner, (cells, i, at) => {
      const { inFlight = 0, limit = 1 } = this.#policy.view(cells.slice(i, i + width), 0, at);
      return inFlight / limit;
    });
  }

  #climbing(name: string, resumeForMs: Millis): Climbing {
    const resume = (key: string, [pool, at]: Level): void => {
      this.inner.hear(key, { resume: pool, reachedAt: at });
    };
    const levelOf = (key: string): number | undefined => this.inner.view(key).pool;
    return { name, resumeForMs, climb: new Climb(resume), levelOf };
  }

  #toldInstead(now = this.#clock.now()): Decision | undefined {
    this.#storeTime.at = now + this.#aheadMs;
    if (now >= this.#lookAt) this.#look(now);
    return this.#instead;
  }

  #look(now: Millis): void {
    const pool = this.#pool;
    const { size, rank } = pool.claim(now);
    this.#aheadMs = pool.aheadMs;
    this.#storeTime.at = now + this.#aheadMs;
    const hadPart = this.#size > 0;
    this.#size = size;
    if (size === 0) {
      this.#instead = pool.isFree(now) ? ANYTHING : deny(NO_PART_RETRY_MS);
      this.#lookAt = Math.min(pool.claimTo(now), now + NO_PART_RETRY_MS);
      return;
    }
    const { isBySecond = false, refillMs = 0 } = this.#policy;
    this.#policy.divide?.({ size, rank }, this.#storeTime.at);
    // Who comes to others, or comes back, has not saved up anything: what there was, they may have spent.
    const isFirst = size === 1 && !this.#wasHere;
    if (!hadPart && !isFirst && refillMs > 0) this.inner.raiseAll(this.#storeTime.at + refillMs);
    this.#wasHere = true;
    const [from, to] = isBySecond ? pool.secondEnd(now) : [Infinity, Infinity];
    const isBetween = now >= from; // one second may be over, and the next may not have begun
    this.#instead = isBetween ? deny(Math.max(1, Math.ceil(to - now))) : undefined;
    this.#lookAt = Math.min(pool.claimTo(now), isBetween ? to : from);
  }
}

/** Keys that are looked at to know how the others stand, too. */
const SAMPLE = 64;

function meanOf(local: LocalShare, read: (...at: [State, number, Millis]) => number): number {
  const values = local.sample(SAMPLE, read);
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
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
