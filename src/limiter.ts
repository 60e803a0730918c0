/**
 * The engine: one road from ask to decision.
 *
 *     const api = limiter({ limit: { bucket: { rate: '100/s', burst: 20 } } });
 *     if (api.ask(userId).verdict === 'allow') serve();
 *
 * Whoever would rather wait than be refused takes `acquire` instead.
 */

import {
  type Result,
  requireKey,
  requireNews,
  requirePatience,
  requireResult,
} from './arguments.ts';
import { type Clock, type Millis, systemClock, turnClock } from './clock.ts';
import { type Decision, NEVER } from './decision.ts';
import { Fields, isRecord, requireNumber } from './options.ts';
import { Permit, Refusal } from './permit.ts';
import { requireCost } from './policy/cost.ts';
import { type Limit, policyOf } from './policy/limit.ts';
import type { News, Policy, View } from './policy/policy.ts';
import { type Random, systemRandom } from './random.ts';
import { LocalShare } from './share/local.ts';
import type { Share } from './share/share.ts';
import { KEYS_MAX_DEFAULT, KEYS_MAX_MAX } from './share/table.ts';
import { ORDERS, type Order, WaitingRoom } from './waiting.ts';

export interface LimiterOptions {
  /** The rule, spelled with one key: `{ bucket: { rate: '100/s' } }`. */
  readonly limit: Limit;
  /** How `acquire` lets people wait. */
  readonly queue?: QueueOptions;
  /** The most keys to remember at once. Default 1,048,576. */
  readonly keysMax?: number;
  /** Where time comes from. Default: the system's, looked at as often as the rule needs. */
  readonly clock?: Clock;
  /** Where chance comes from. Default: the system's. */
  readonly random?: Random;
}

export interface QueueOptions {
  /** The most that may wait, over all keys. Default 10,000. */
  readonly max?: number;
  /** Who is next: fifo (default), lifo, or priority. */
  readonly order?: Order;
  /** False lets the process end while somebody waits. Default true. */
  readonly keepAlive?: boolean;
}

export interface AcquireOptions {
  /** Gives up, and gives the place back, when it aborts. */
  readonly signal?: AbortSignal;
  /** The longest it wants to wait. Default: as long as it takes. */
  readonly maxWaitMs?: Millis;
  /** With order priority, higher goes first. Default 0. */
  readonly priority?: number;
}

export interface Limiter {
  /** May `cost` (default 1) happen for this key now? All or nothing. */
  ask(key: string, cost?: number): Decision;
  /** A permit at once or none: `ask` for those who hold and settle. */
  tryAcquire(key: string, cost?: number): Permit | Refusal;
  /** Waits for a permit if it has to. A refusal is a value here too; only an abort rejects. */
  acquire(key: string, cost?: number, options?: AcquireOptions): Promise<Permit | Refusal>;
  /** True if somebody waits for this key: whoever asks now would jump the line. */
  hasLine(key: string): boolean;
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
  /** How the key stands. Looking changes nothing. */
  inspect(key: string): View;
  /** Keys remembered, keys that had to make room, memory held, how many wait, permits out. */
  stats(): Stats;
  /** True if an ask is answered with allow or deny only, and a call as asked for needs no settling. */
  readonly isSimple: boolean;
}

export interface Stats {
  readonly keys: number;
  readonly evicted: number;
  readonly bytes: number;
  readonly waiting: number;
  readonly held: number;
}

const WAITERS_MAX_DEFAULT = 10_000;

/** Makes a limiter. @throws {ConfigError} if the limit makes no sense. */
export function limiter(options: LimiterOptions): Limiter {
  const fields = new Fields('', options, 'an object with a limit');
  const limit = fields.raw('limit');
  const queue = readQueue(new Fields('queue', fields.raw('queue') ?? {}));
  const range = { min: 1, max: KEYS_MAX_MAX, whole: true };
  const keysMax = fields.number('keysMax', range, KEYS_MAX_DEFAULT);
  const given = fields.optional('clock', isClock, 'a clock: an object with now()');
  const random = fields.optional('random', isFunction, 'a function') ?? systemRandom;
  fields.done();

  const policy = policyOf(limit, random);
  const clock = given ?? (policy.exactTime ? systemClock : turnClock());
  const share = new LocalShare(policy, { clock, random, keysMax });
  return new Engine(policy, share, clock, queue);
}

function readQueue(fields: Fields): Required<QueueOptions> {
  const queue = {
    max: fields.number('max', { min: 0, whole: true }, WAITERS_MAX_DEFAULT),
    order: fields.oneOf('order', ORDERS, 'fifo'),
    keepAlive: fields.flag('keepAlive', true),
  };
  fields.done();
  return queue;
}

const isFunction = (value: unknown): value is Random => typeof value === 'function';

/** Anything with now(): a clock of ours, or `Date` itself. */
const isClock = (value: unknown): value is Clock =>
  (isFunction(value) || isRecord(value)) && 'now' in value && isFunction(value.now);

class Engine implements Limiter {
  readonly isSimple: boolean;
  readonly #share: Share;
  readonly #clock: Clock;
  readonly #expireMs: Millis;
  readonly #room: WaitingRoom;
  #held = 0;

  constructor(policy: Policy, share: Share, clock: Clock, queue: Required<QueueOptions>) {
    this.isSimple = !policy.learns && !policy.reserves;
    this.#share = share;
    this.#clock = clock;
    this.#expireMs = policy.expireMs;
    this.#room = new WaitingRoom({
      clock,
      order: queue.order,
      waitersMax: queue.max,
      keepAlive: queue.keepAlive,
      askNow: (key, cost, now) => share.askNow(key, cost, now),
    });
  }

  ask(key: string, cost = 1): Decision {
    requireKey(key);
    requireCost(cost);
    return this.#share.ask(key, cost);
  }

  tryAcquire(key: string, cost = 1): Permit | Refusal {
    requireKey(key);
    requireCost(cost);
    const now = this.#clock.now();
    const decision = this.#share.askNow(key, cost, now);
    if (decision.verdict !== 'deny') return this.#permit(key, cost, now);
    const { retryAfterMs } = decision;
    const reason = retryAfterMs === NEVER ? 'never' : 'too-long';
    return new Refusal({ verdict: 'deny', retryAfterMs, reason });
  }

  async acquire(key: string, cost = 1, options: AcquireOptions = {}): Promise<Permit | Refusal> {
    requireKey(key);
    requireCost(cost);
    requirePatience(options);
    const { signal, maxWaitMs = Infinity, priority = 0 } = options;
    const patience = { maxWaitMs, priority, ...(signal && { signal }) };
    const entry = await this.#room.enter(key, cost, patience);
    return entry.verdict === 'deny' ? new Refusal(entry) : this.#permit(key, cost, entry.dueAt);
  }

  #permit(key: string, cost: number, dueAt: Millis): Permit {
    const startedAt = this.#clock.now();
    this.#held++;
    return new Permit(key, cost, dueAt, (settled) => {
      this.#held--;
      const rttMs = Math.max(0, this.#clock.now() - startedAt); // some clocks do go backwards
      this.settle(key, { rttMs, ...settled, cost, dueAt });
    });
  }

  hasLine(key: string): boolean {
    return this.#room.hasLine(key);
  }

  take(key: string, most: number): number {
    requireKey(key);
    if (most !== Infinity) requireNumber('most', most, { min: 0, whole: true });
    return this.#share.take(key, most);
  }

  give(key: string, unused: number, takenAt = this.#clock.now()): void {
    requireNumber('unused', unused, { min: 0, whole: true });
    this.settle(key, { outcome: 'ignored', cost: unused, dueAt: takenAt });
  }

  settle(key: string, result: Result = {}): void {
    requireKey(key);
    requireResult(result);
    const { outcome = 'ok', cost = 1, dueAt = this.#clock.now() } = result;
    this.#share.settle(key, { ...result, outcome, cost, dueAt });
    this.#room.poke(key); // whatever came back may be what somebody waits for
  }

  isExpired(dueAt: Millis, at = this.#clock.now()): boolean {
    return at > dueAt + this.#expireMs;
  }

  hear(key: string, news: News): boolean {
    requireKey(key);
    requireNews(news);
    const heard = this.#share.hear(key, news);
    this.#room.poke(key);
    return heard;
  }

  inspect(key: string): View {
    requireKey(key);
    return this.#share.inspect(key);
  }

  stats(): Stats {
    const { keys, evicted, bytes } = this.#share;
    return { keys, evicted, bytes, waiting: this.#room.size, held: this.#held };
  }
}
