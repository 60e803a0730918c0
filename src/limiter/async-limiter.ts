/**
 * The engine for a limit that somebody else decides: the doors of `sync-limiter.ts`, as promises.
 *
 *     const api = limiter({ limit: { spacing: { every: '6s' } }, share: redis(client) });
 *     const decision = await api.ask('token');
 */

import {
  type Answer,
  CLOSED,
  type RemoteShare,
  type RemoteShareMaker,
} from '../backends/remote-backend.ts';
import type { Clock, Millis } from '../core/clock.ts';
import { type Decision, deny, NEVER } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { requireNumber } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { requireCost } from '../policies/cost.ts';
import { type News, type Policy, seenIn } from '../policies/policy.ts';
import { Pauses, pauseIn } from './cooldowns.ts';
import type { Listener } from './events.ts';
import { type Inspection, inspectionOf } from './inspection.ts';
import type { Permit, Refusal, Settled } from './permit.ts';
import {
  type RemoteEntry,
  type RemotePatience,
  RemoteWaitingRoom,
  TOO_LONG,
} from './remote-wait-scheduler.ts';
import type { Counted } from './stats.ts';
import { Ledger } from './telemetry.ts';
import {
  patienceIn,
  type Result,
  requireKey,
  requireNews,
  requireResult,
  type WaitOptions,
} from './validate.ts';
import type { Order } from './wait-queue.ts';

/** What `Limiter` is where somebody else decides, such as Redis: every answer is a promise. */
export interface RemoteLimiter {
  readonly name: string;
  readonly isRemote: true;
  /** May `cost` (default 1) happen for this key now? All or nothing. */
  ask(key: string, cost?: number): Promise<Decision>;
  /** A permit at once or none. */
  tryAcquire(key: string, cost?: number): Promise<Permit | Refusal>;
  /** Waits for a permit if it has to. Only an abort rejects. */
  acquire(key: string, cost?: number, options?: WaitOptions): Promise<Permit | Refusal>;
  /** Takes up to `most` and says how many it got. */
  take(key: string, most: number): Promise<number>;
  /** Gives back `unused` of what `take` granted. */
  give(key: string, unused: number, takenAt?: Millis): Promise<void>;
  /** Says how a call went that had been allowed. */
  settle(key: string, result?: Result): Promise<void>;
  /** Takes in what happened elsewhere; false if this limit has no use for it. */
  hear(key: string, news: News): Promise<boolean>;
  /** How the key stands; undefined while whoever decides is out of reach. */
  inspect(key: string): Promise<Inspection | undefined>;
  /** Tells `listener` of every decision and every call settled; what comes back ends that. */
  on(listener: Listener): () => void;
  /** What it holds now, and what it has done since it was made. */
  stats(): RemoteStats;
  /** Refuses those who wait, gives back what it holds and stops. The connection is yours, and stays open. */
  close(): Promise<void>;
  /** The time it lives in, for those who wait on its behalf. */
  readonly clock: Clock;
  /** The chance it goes by. */
  readonly random: Random;
}

/** Whether somebody else decides, so that every answer is a promise. */
export const isRemote = (limiter: object): limiter is RemoteLimiter => 'isRemote' in limiter;

/** What such a limiter knows of itself; keys and their memory are with whoever decides. */
export interface RemoteStats extends Counted {
  /** How many wait in line. */
  readonly waiting: number;
  /** Permits that are out. */
  readonly held: number;
  /** False while whoever decides is out of reach. */
  readonly isReachable: boolean;
  /** Calls that were answered by `onUnavailable`. */
  readonly makeshift: number;
}

export interface RemoteSettings {
  readonly name: string;
  /** False if nobody gave it its name, which is then that of its rule. */
  readonly isNamed: boolean;
  readonly clock: Clock;
  readonly random: Random;
  readonly keysMax: number;
  readonly queue: { readonly max: number; readonly order: Order; readonly keepAlive: boolean };
  readonly holdMaxMs: Millis;
  readonly pauseMaxMs: Millis;
}

export class RemoteEngine implements RemoteLimiter {
  readonly isRemote = true;
  readonly name: string;
  readonly clock: Clock;
  readonly random: Random;
  readonly #policy: Policy;
  readonly #share: RemoteShare;
  readonly #room: RemoteWaitingRoom;
  readonly #ledger: Ledger;
  readonly #pauses = new Pauses();
  readonly #pauseMaxMs: Millis;
  #makeshift = 0;
  #isClosed = false;

  constructor(policy: Policy, maker: RemoteShareMaker, settings: RemoteSettings) {
    const { name, clock, random, queue, keysMax } = settings;
    this.name = name;
    this.clock = clock;
    this.random = random;
    this.#pauseMaxMs = settings.pauseMaxMs;
    this.#ledger = new Ledger(name, clock, settings.holdMaxMs);
    const onReach = (isReachable: boolean, why: unknown): void => {
      this.#ledger.reached(isReachable, why, this.#share.onUnavailable);
      if (isReachable) this.#room.pokeAll();
    };
    this.#share = maker.make(policy, {
      name,
      isNamed: settings.isNamed,
      clock,
      random,
      keysMax,
      waitersMax: queue.max,
      keepAlive: queue.keepAlive,
      onRoom: (key) => this.#room.poke(key),
      onReach,
    });
    this.#policy = this.#share.policy ?? policy;
    this.#room = new RemoteWaitingRoom({
      share: this.#share,
      clock,
      random,
      order: queue.order,
      waitersMax: queue.max,
      keepAlive: queue.keepAlive,
      reserves: policy.reserves,
      expireMs: policy.expireMs,
      pausedMs: (key) => this.#pauses.leftMs(key, clock.now()),
    });
  }

  ask(key: string, cost = 1): Promise<Decision> {
    try {
      requireKey(key);
      requireCost(cost);
      const here = this.#refused(key, cost) ?? this.#share.askHere?.(key, cost);
      if (here === undefined) return this.#askThere(key, cost);
      this.#ledger.decided(key, cost, here, 0);
      return Promise.resolve(here);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  async #askThere(key: string, cost: number): Promise<Decision> {
    const answer = await this.#share.ask(key, cost);
    if (answer.isMakeshift) this.#makeshift++;
    const decision = this.#inTime(answer);
    this.#ledger.decided(key, cost, decision, 0);
    return decision;
  }

  async tryAcquire(key: string, cost = 1): Promise<Permit | Refusal> {
    requireKey(key);
    requireCost(cost);
    const here = this.#refused(key, cost);
    const answer = here ? { decision: here, at: 0 } : await this.#share.askNow(key, cost);
    const { at, holder, isMakeshift = false }: Answer = answer;
    if (isMakeshift) this.#makeshift++;
    const decision = this.#inTime(answer);
    if (decision.verdict !== 'deny')
      return this.#admit(key, cost, { verdict: 'allow', dueAt: at, isMakeshift, holder }, 0);
    if (this.#isClosed) return this.#ledger.refuse(key, cost, CLOSED, 0);
    const { retryAfterMs } = decision;
    const isUndecided = isMakeshift && this.#share.onUnavailable === 'deny';
    const reason = isUndecided ? 'unavailable' : retryAfterMs === NEVER ? 'never' : 'not-now';
    return this.#ledger.refuse(key, cost, { retryAfterMs, reason }, 0);
  }

  async acquire(key: string, cost = 1, options: WaitOptions = {}): Promise<Permit | Refusal> {
    requireKey(key);
    requireCost(cost);
    const { waitMsMax, ...own } = patienceIn(options);
    const isAtOnce = waitMsMax <= 0 && !this.#room.hasLine(key) && !own.signal?.aborted;
    if (isAtOnce) return this.tryAcquire(key, cost);
    const since = this.clock.now();
    for (let waitedMs = 0, hadTurn = false; ; hadTurn = true) {
      if (this.#isClosed) return this.#ledger.refuse(key, cost, CLOSED, waitedMs);
      const leftMs = waitMsMax - waitedMs;
      if (hadTurn && leftMs <= 0) return this.#ledger.refuse(key, cost, TOO_LONG, waitedMs);
      const patience = { ...own, waitMsMax: leftMs, hadTurn };
      const entry = await this.#enter(key, cost, patience).catch((error: unknown) => {
        this.#ledger.left(key, cost, this.clock.now() - since);
        throw error;
      });
      waitedMs = Math.max(0, this.clock.now() - since);
      if (entry.verdict === 'deny') return this.#ledger.refuse(key, cost, entry, waitedMs);
      if ('latest' in entry && this.#isPast(entry.latest)) continue;
      if (entry.isMakeshift) this.#makeshift++;
      return this.#admit(key, cost, entry, waitedMs);
    }
  }

  /** What was decided, if it can still begin: a place that is lost is as good as used. */
  #inTime({ decision, latest }: Answer): Decision {
    const isLost = decision.verdict !== 'deny' && this.#isPast(latest);
    return isLost ? deny(Math.ceil(this.#policy.refillMs ?? 0)) : decision;
  }

  /** The process was held up on the way from where the place was given: the next one may be too close by now. */
  #isPast(latest: Millis | undefined): boolean {
    return latest !== undefined && this.clock.now() > latest;
  }

  /** In the line that the decider keeps, or in one of this process. */
  #enter(key: string, cost: number, patience: RemotePatience) {
    const pausedMs = this.#pauses.isEmpty ? 0 : this.#pauses.leftMs(key, this.clock.now());
    if (this.#share.enter && pausedMs === 0) return this.#share.enter(key, cost, patience);
    return this.#room.enter(key, cost, patience);
  }

  #admit(key: string, cost: number, entry: RemoteEntry, waitedMs: Millis): Permit {
    const { dueAt, isMakeshift, holder } = entry;
    const heldAt = this.clock.now();
    return this.#ledger.admit({ key, cost, dueAt, heldAt, waitedMs }, (settled, rttMs) => {
      this.#settle(key, { ...settled, rttMs, cost, dueAt }, isMakeshift, holder);
    });
  }

  async take(key: string, most: number): Promise<number> {
    requireKey(key);
    if (most !== Infinity) requireNumber('most', most, { min: 0, whole: true });
    const here = most > 0 ? this.#refused(key, 1) : undefined;
    const taken = here ? 0 : await this.#share.take(key, most);
    const decision: Decision = taken > 0 ? { verdict: 'allow', remaining: 0 } : (here ?? deny(0));
    if (most > 0) this.#ledger.decided(key, taken || 1, decision, 0);
    return taken;
  }

  async give(key: string, unused: number, takenAt?: Millis): Promise<void> {
    requireNumber('unused', unused, { min: 0, whole: true });
    const dueAt = takenAt === undefined ? {} : { dueAt: takenAt };
    await this.settle(key, { outcome: 'ignored', cost: unused, ...dueAt });
  }

  async settle(key: string, result: Result = {}): Promise<void> {
    requireKey(key);
    requireResult(result);
    await this.#settle(key, result, false, undefined);
  }

  /** Only what was not used as asked for is worth the way. */
  async #settle(
    key: string,
    result: Result & Settled,
    isMakeshift: boolean,
    holder: string | undefined,
  ): Promise<void> {
    const { outcome = 'ok', cost = 1, used, rttMs, retryAfterMs, dueAt = Number.NaN } = result;
    const known = { ...(used !== undefined && { used }), ...(rttMs !== undefined && { rttMs }) };
    this.#ledger.settled(key, cost, outcome, used, rttMs);
    if (retryAfterMs !== undefined) this.#pause(key, retryAfterMs);
    const isAsAsked = outcome !== 'ignored' && (used ?? cost) === cost && !this.#policy.learns;
    // What somebody else never gave is not settled there; a place that is held by a name is, wherever that was.
    const isKnown = !isMakeshift || holder !== undefined;
    const told =
      isAsAsked || !isKnown
        ? undefined
        : this.#share.settle(key, { outcome, cost, dueAt, holder, ...known });
    this.#room.poke(key); // whoever waits here asks right behind it, in the same trip or the next
    await told;
  }

  async hear(key: string, news: News): Promise<boolean> {
    requireKey(key);
    requireNews(news);
    const pauseMs = pauseIn(news);
    if (pauseMs > 0) this.#pause(key, pauseMs);
    if ('hits' in news) await this.#share.hits(key, news.hits);
    return pauseMs > 0 || 'hits' in news;
  }

  async inspect(key: string): Promise<Inspection | undefined> {
    requireKey(key);
    const seen = await this.#share.look(key);
    if (!seen) return undefined;
    const { state, at } = seen;
    const { policy = this.#policy } = this.#share;
    const pausedMs = this.#pauses.leftMs(key, this.clock.now());
    return inspectionOf(this.name, seenIn(policy, state, at), pausedMs);
  }

  on(listener: Listener): () => void {
    if (typeof listener !== 'function') throw new ConfigError('listener', 'a function', listener);
    return this.#ledger.on(listener);
  }

  stats(): RemoteStats {
    const { isReachable } = this.#share;
    const waiting = this.#room.size + (this.#share.waiting ?? 0);
    const makeshift = this.#makeshift;
    return { ...this.#ledger.read(), waiting, isReachable, makeshift };
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#room.close();
    await this.#share.close();
  }

  /** A refusal that nobody else is needed for: it is closed, or the key is paused. */
  #refused(key: string, cost: number): Decision | undefined {
    if (this.#isClosed) return deny(CLOSED.retryAfterMs);
    if (this.#pauses.isEmpty || cost === 0) return undefined;
    const leftMs = this.#pauses.leftMs(key, this.clock.now());
    return leftMs > 0 ? deny(leftMs) : undefined;
  }

  #pause(key: string, ms: Millis): void {
    if (ms > 0) this.#pauses.add(key, this.clock.now() + Math.min(ms, this.#pauseMaxMs));
  }
}
