/**
 * The engine: one road from ask to decision.
 *
 * It checks what was handed in, keeps out whom the other side wants to see no more for a while, asks
 * its share, and writes down what came of it. Whoever would rather wait stands in its waiting room.
 */

import type { Share, TableCopy } from '../backends/backend.ts';
import type { Clock, Millis } from '../core/clock.ts';
import { type Decision, deny, NEVER } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import type { KeyHash } from '../core/hash.ts';
import { requireNumber } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { requireCost } from '../policies/cost.ts';
import { partitionOf } from '../policies/partitions.ts';
import type { News, Policy, Settlement } from '../policies/policy.ts';
import { Pauses, pauseIn } from './cooldowns.ts';
import type { Listener } from './events.ts';
import { type Inspection, inspectionOf } from './inspection.ts';
import type { Permit, Refusal } from './permit.ts';
import type { Counted } from './stats.ts';
import { Ledger } from './telemetry.ts';
import {
  patienceIn,
  type Result,
  requireAskOptions,
  requireKey,
  requireNews,
  requireResult,
  type WaitOptions,
} from './validate.ts';
import type { Order, Rank } from './wait-queue.ts';
import {
  type Entry,
  type Patience,
  type Reason,
  WaitingRoom,
  type Want,
} from './wait-scheduler.ts';

/** What an ask may say besides key and cost. */
export interface AskOptions {
  /** Which part of a limit with partitions it counts against. Default: none, what they leave. */
  readonly partition?: string;
}

/** What `acquire` takes: how it waits, and for which part. */
export interface AcquireOptions extends AskOptions, WaitOptions {}

/** Decides here, at once. Where somebody else decides it is a `RemoteLimiter`. */
export interface Limiter {
  readonly name: string;
  /** May `cost` (default 1) happen for this key now? All or nothing. */
  ask(key: string, cost?: number, options?: AskOptions): Decision;
  /** What `tryAcquire` would be told. Looking changes nothing, and nobody hears of it. */
  peek(key: string, cost?: number, options?: AskOptions): Decision;
  /** A permit at once or none: `ask` for those who hold and settle. */
  tryAcquire(key: string, cost?: number, options?: AskOptions): Permit | Refusal;
  /** Waits for a permit if it has to. A refusal is a value here too; only an abort rejects. */
  acquire(key: string, cost?: number, options?: AcquireOptions): Promise<Permit | Refusal>;
  /** True if it went through at once, past nobody who waits. A no is not counted: `acquire` next. */
  pass(key: string, cost?: number): boolean;
  /** The same with a permit: the call may begin before anything else happens. */
  passHolding(key: string, cost?: number, options?: AskOptions): Permit | undefined;
  /** True if somebody waits for this key: whoever asks now would jump the line. */
  hasLine(key: string, options?: AskOptions): boolean;
  /** Takes up to `most` and says how many it got; Infinity takes all there is. */
  take(key: string, most: number): number;
  /** Gives back `unused` of what `take` granted, now or at `takenAt`: a ramp drops what is late. */
  give(key: string, unused: number, takenAt?: Millis): void;
  /** Says how a call went that had been allowed. */
  settle(key: string, result?: Result): void;
  /** True if a permit that was due then is wasted by now (or at `at`): ask again. */
  isExpired(dueAt: Millis, at?: Millis): boolean;
  /** Takes in what happened elsewhere; false if this limit has no use for it. */
  hear(key: string, news: News): boolean;
  /** How the key stands: what is left, which rule says no, until when. Looking changes nothing. */
  inspect(key: string): Inspection;
  /** Tells `listener` of every decision and every call settled; what comes back ends that. */
  on(listener: Listener): () => void;
  /** What it holds now, and what it has done since it was made. */
  stats(): Stats;
  /** True if an ask is answered with allow or deny only, and a call as asked for needs no settling. */
  readonly isSimple: boolean;
  /** The time it lives in, for those who wait on its behalf. */
  readonly clock: Clock;
  /** The chance it goes by. */
  readonly random: Random;
}

/** What a limiter holds right now, and what it counted from the start on. */
export interface Stats extends Counted {
  /** Keys that have a state right now. */
  readonly keys: number;
  /** Keys that had to make room while still in use: above 0, `keysMax` is too small. */
  readonly evicted: number;
  /** Memory held for keys. */
  readonly bytes: number;
  /** How many wait in line. */
  readonly waiting: number;
  /** Permits that are out. */
  readonly held: number;
  /** In a pool: how many share the limit; 0: this process has no part of it. */
  readonly poolSize?: number;
}

/** What it goes by, all of it decided. */
export interface EngineSettings {
  readonly name: string;
  readonly clock: Clock;
  readonly random: Random;
  readonly queue: { readonly max: number; readonly order: Order; readonly keepAlive: boolean };
  readonly holdMaxMs: Millis;
  readonly pauseMaxMs: Millis;
}

export class Engine implements Limiter {
  readonly name: string;
  readonly isSimple: boolean;
  readonly clock: Clock;
  readonly random: Random;
  readonly #policy: Policy;
  readonly #share: Share;
  readonly #room: WaitingRoom;
  readonly #pauses = new Pauses();
  readonly #pauseMaxMs: Millis;
  readonly #ledger: Ledger;

  constructor(policy: Policy, share: Share, settings: EngineSettings) {
    const { name, clock, random, queue, holdMaxMs, pauseMaxMs } = settings;
    this.name = name;
    this.clock = clock;
    this.random = random;
    this.isSimple = !policy.learns && !policy.reserves;
    this.#policy = policy;
    this.#share = share;
    this.#pauseMaxMs = pauseMaxMs;
    this.#ledger = new Ledger(name, clock, holdMaxMs);
    this.#room = new WaitingRoom({
      clock,
      order: queue.order,
      waitersMax: queue.max,
      keepAlive: queue.keepAlive,
      partitions: policy.partitions ?? [],
      askNow: (key, cost, now, part) => this.hold(key, cost, now, part),
      peek: (key, cost, part) => share.peek(key, cost, part),
    });
  }

  ask(key: string, cost = 1, options?: AskOptions): Decision {
    requireKey(key);
    requireCost(cost);
    const part = options && this.#partOf(options);
    const decision = this.#pauses.isEmpty
      ? this.#share.ask(key, cost, part)
      : (this.#paused(key, cost) ?? this.#share.ask(key, cost, part));
    this.note(key, cost, decision, 0);
    return decision;
  }

  /**
   * The same for a surface that hashed the key's bytes, with the hasher its share was made with. A
   * name costs more than a decision: undefined if somebody wants to know it, so ask by name.
   */
  askHashed({ low, high }: KeyHash, cost: number): Decision | undefined {
    if (!this.#pauses.isEmpty || this.#ledger.isHeard || this.#share.wantsNames) return undefined;
    const decision = this.#share.askHashed(low, high, cost);
    this.#ledger.count(decision);
    return decision;
  }

  pass(key: string, cost = 1): boolean {
    requireKey(key);
    requireCost(cost);
    if (this.#room.hasLine(key)) return false;
    const decision = this.hold(key, cost, this.clock.now());
    if (decision.verdict === 'deny') return false;
    this.note(key, cost, decision, 0);
    return true;
  }

  passHolding(key: string, cost = 1, options?: AskOptions): Permit | undefined {
    requireKey(key);
    requireCost(cost);
    const part = options && this.#partOf(options);
    if (this.#room.hasLine(key, part)) return undefined;
    const now = this.clock.now();
    const decision = this.hold(key, cost, now, part);
    return decision.verdict === 'deny' ? undefined : this.admit(key, cost, now, 0, part);
  }

  peek(key: string, cost = 1, options?: AskOptions): Decision {
    requireKey(key);
    requireCost(cost);
    const part = options && this.#partOf(options);
    return this.look(key, cost, part);
  }

  tryAcquire(key: string, cost = 1, options?: AskOptions): Permit | Refusal {
    requireKey(key);
    requireCost(cost);
    const part = options && this.#partOf(options);
    const now = this.clock.now();
    const decision = this.hold(key, cost, now, part);
    if (decision.verdict !== 'deny') return this.admit(key, cost, now, 0, part);
    const { retryAfterMs } = decision;
    const reason = retryAfterMs === NEVER ? 'never' : 'not-now';
    return this.refuse(key, cost, { retryAfterMs, reason }, 0);
  }

  async acquire(key: string, cost = 1, options: AcquireOptions = {}): Promise<Permit | Refusal> {
    requireKey(key);
    requireCost(cost);
    const patience = patienceIn(options);
    const { partition } = options;
    const part = partition === undefined ? undefined : partitionOf(this.#policy, partition);
    const since = this.clock.now();
    const entry = await this.enter({ key, cost, part }, patience, since);
    if (entry.verdict === 'deny') return this.refuse(key, cost, entry, this.clock.now() - since);
    const { dueAt = since, waitedMs = 0 } = entry;
    return this.admit(key, cost, dueAt, waitedMs, part);
  }

  /** Lays down the state of all keys, for a successor with the same rule and hasher. */
  copy(): TableCopy {
    return this.#share.copy();
  }

  takeOver(copy: TableCopy): void {
    this.#share.takeOver(copy);
  }

  /** Nobody asks it any more: those it was kept together with need not bother. */
  leave(): void {
    this.#share.leave?.();
  }

  // Doors for `all`, which asks several of them as one: what was handed in is checked and known already, nobody is told before
  // all have agreed, and a partition goes by its place in the policy's list.

  /** What `hold` would be told. */
  look(key: string, cost: number, part?: number): Decision {
    return this.#paused(key, cost) ?? this.#share.peek(key, cost, part);
  }

  /** Takes what is wanted now, or nothing. It is not counted, and nobody hears of it yet. */
  hold(key: string, cost: number, now: Millis, part?: number): Decision {
    return this.#paused(key, cost) ?? this.#share.askNow(key, cost, now, part);
  }

  /** Gives back what was held a moment ago. As nobody saw it gone, nobody is called. */
  release(key: string, cost: number, heldAt: Millis, part?: number): void {
    this.#share.settle(key, { outcome: 'ignored', cost, dueAt: heldAt, part });
  }

  /** Counts and tells a decision. */
  note(key: string, cost: number, decision: Decision, waitedMs: Millis): void {
    this.#ledger.decided(key, cost, decision, waitedMs);
  }

  /** The place of a partition in the policy's list; undefined if this limit has none of that name. */
  partNamed(partition: string): number | undefined {
    const part = this.#policy.partitions?.indexOf(partition) ?? -1;
    return part < 0 ? undefined : part;
  }

  isWaitedFor(key: string, part: number | undefined): boolean {
    return this.#room.hasLine(key, part);
  }

  /** Whether somebody who waits for this key has its turn before `rank`. */
  isBefore(key: string, part: number | undefined, rank: Rank): boolean {
    return this.#room.isBefore(key, part, rank);
  }

  /** Stands in line from `now` on; whoever gives up is counted, with all the time since it came. */
  async enter(want: Want, patience: Patience, since: Millis, now = since): Promise<Entry> {
    try {
      return await this.#room.enter(want, patience, now);
    } catch (error) {
      this.#ledger.left(want.key, want.cost, this.clock.now() - since);
      throw error;
    }
  }

  /** Hands out the permit for what was taken already, and that a moment ago: it is held from when it was good. */
  admit(key: string, cost: number, dueAt: Millis, waitedMs: Millis, part?: number): Permit {
    const grant = { key, cost, dueAt, heldAt: dueAt, waitedMs };
    return this.#ledger.admit(grant, ({ outcome = 'ok', used, retryAfterMs }, rttMs, now) =>
      this.#settle(key, { outcome, cost, used, dueAt, rttMs, part }, retryAfterMs, now),
    );
  }

  refuse(
    key: string,
    cost: number,
    refusal: { readonly retryAfterMs: Millis; readonly reason: Reason },
    waitedMs: Millis,
  ): Refusal {
    return this.#ledger.refuse(key, cost, refusal, waitedMs);
  }

  /** Something came for a key: whoever waits for it may try again. */
  poke(key: string): void {
    this.#room.poke(key);
  }

  hasLine(key: string, options?: AskOptions): boolean {
    return this.#room.hasLine(key, options && this.#partOf(options));
  }

  take(key: string, most: number): number {
    requireKey(key);
    if (most !== Infinity) requireNumber('most', most, { min: 0, whole: true });
    const paused = most > 0 ? this.#paused(key, 1) : undefined;
    const taken = paused ? 0 : this.#share.take(key, most);
    if (most > 0) this.note(key, taken || 1, taken > 0 ? GRANTED : (paused ?? NOTHING_LEFT), 0);
    return taken;
  }

  give(key: string, unused: number, takenAt = this.clock.now()): void {
    requireNumber('unused', unused, { min: 0, whole: true });
    this.settle(key, { outcome: 'ignored', cost: unused, dueAt: takenAt });
  }

  settle(key: string, result: Result = {}): void {
    requireKey(key);
    requireResult(result);
    const now = this.clock.now();
    const { outcome = 'ok', cost = 1, dueAt = now, rttMs, used, retryAfterMs, partition } = result;
    const part = partition === undefined ? undefined : partitionOf(this.#policy, partition);
    this.#settle(key, { outcome, cost, used, dueAt, rttMs, part }, retryAfterMs, now);
  }

  /** Every settlement has the same fields, known or not: putting some together cost ten times as much as the rest. */
  #settle(
    key: string,
    settlement: Settlement,
    retryAfterMs: Millis | undefined,
    now: Millis,
  ): void {
    this.#share.settle(key, settlement, now);
    if (retryAfterMs !== undefined) this.#pause(key, retryAfterMs, now);
    const { cost, outcome, used, rttMs } = settlement;
    this.#ledger.settled(key, cost, outcome, used, rttMs);
    this.#room.poke(key); // whatever came back may be what somebody waits for
  }

  isExpired(dueAt: Millis, at = this.clock.now()): boolean {
    return at > dueAt + this.#policy.expireMs;
  }

  hear(key: string, news: News): boolean {
    requireKey(key);
    requireNews(news);
    const pauseMs = pauseIn(news);
    if (pauseMs > 0) this.#pause(key, pauseMs, this.clock.now());
    const heard = this.#share.hear(key, news);
    this.#room.poke(key);
    return heard || pauseMs > 0;
  }

  inspect(key: string): Inspection {
    requireKey(key);
    const now = this.clock.now(); // one look for all: it costs more than the rest
    const pausedMs = this.#pauses.leftMs(key, now);
    return inspectionOf(this.name, this.#share.inspect(key, now), pausedMs);
  }

  on(listener: Listener): () => void {
    if (typeof listener !== 'function') throw new ConfigError('listener', 'a function', listener);
    return this.#ledger.on(listener);
  }

  stats(): Stats {
    const { keys, evicted, bytes, poolSize } = this.#share;
    const part = poolSize === undefined ? {} : { poolSize };
    return { keys, evicted, bytes, ...part, waiting: this.#room.size, ...this.#ledger.read() };
  }

  /** The refusal of a key that is paused. Looking, at no cost, is always allowed. */
  #paused(key: string, cost: number): Decision | undefined {
    if (this.#pauses.isEmpty || cost === 0) return undefined;
    const leftMs = this.#pauses.leftMs(key, this.clock.now());
    return leftMs > 0 ? deny(leftMs) : undefined;
  }

  #pause(key: string, ms: Millis, now: Millis): void {
    if (ms > 0) this.#pauses.add(key, now + Math.min(ms, this.#pauseMaxMs));
  }

  #partOf(options: AskOptions): number | undefined {
    requireAskOptions(options);
    const { partition } = options;
    return partition === undefined ? undefined : partitionOf(this.#policy, partition);
  }
}

const GRANTED: Decision = { verdict: 'allow', remaining: 0 };
const NOTHING_LEFT: Decision = deny(0);
