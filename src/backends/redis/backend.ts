/**
 * Redis decides: one count for everybody, atomically, on Redis's clock.
 *
 *     import { redis } from 'sluice/redis';
 *     const api = limiter({ limit: { spacing: { every: '6s' } }, share: redis(client) });
 *     if ((await api.ask('token')).verdict === 'allow') call();
 *
 * When Redis cannot be reached, a call is answered at once by what `onUnavailable` says: refused,
 * let through, or decided here by this process's part of the limit.
 */

import { type Clock, coarseClock, type Millis } from '../../core/clock.ts';
import type { OnUnavailable } from '../../core/decision.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError } from '../../core/errors.ts';
import { OptionReader } from '../../core/options.ts';
import type { Policy, Settlement } from '../../policies/policy.ts';
import {
  type BatchDecision,
  type RemoteBackend,
  type RemoteBackendContext,
  type RemoteBackendFactory,
  type RemoteDecision,
  toBatchDecision,
} from '../remote-backend.ts';
import type { TimedReply } from './batcher.ts';
import { connectionOf, createSubscriber, type RedisClient } from './client.ts';
import {
  createRedisContext,
  ON_UNAVAILABLE_VALUES,
  type RedisConfig,
  type RedisContext,
} from './context.ts';
import { Lookahead } from './lookahead.ts';
import { scriptOf } from './lua-script.ts';
import { PrefetchBackend, type PrefetchSource } from './prefetch.ts';
import { decisionOf } from './reply.ts';
import { SemaphoreBackend } from './semaphore.ts';

/** How a limit is kept in Redis, and what holds without it. */
export interface RedisOptions {
  /** What all keys in Redis begin with. Default `sluice`. */
  readonly prefix?: string;
  /** How long a call waits for Redis. Default 100 ms. */
  readonly deadline?: Duration;
  /** Default: `deny` where a limit has a spacing, else `local`. */
  readonly onUnavailable?: OnUnavailable;
  /** One line for all processes, first come first served. Opens a second connection to listen. */
  readonly fairQueue?: boolean;
  /** Takes so many permits at once and spends them here: fast, and off by up to so many. Buckets only. */
  readonly prefetch?: number;
  /** How many processes share the limit: `local` gives each of them so much less. Default 1. */
  readonly processes?: number;
}

/** Shares a limit through the user's own connection, of node-redis or ioredis. */
export function redis(
  client: RedisClient,
  options: RedisOptions = {},
  path = 'backend',
): RemoteBackendFactory {
  const connection = connectionOf(client);
  const fields = OptionReader.collecting(path, options);
  const prefix = fields.has('prefix') ? fields.get('prefix') : 'sluice';
  if (typeof prefix !== 'string' || /[{}]/.test(prefix))
    fields.report('prefix', 'a text without braces');
  const deadlineMs = fields.duration('deadline', 100);
  const given = fields.has('onUnavailable')
    ? fields.oneOf('onUnavailable', ON_UNAVAILABLE_VALUES)
    : undefined;
  const processes = fields.integer('processes', 1, 1);
  const isFair = fields.boolean('fairQueue', false);
  const prefetch = fields.has('prefetch') ? fields.integer('prefetch', 1) : undefined;
  if (isFair && prefetch !== undefined)
    fields.report('prefetch', 'left out when fairQueue is true');
  fields.finish();
  return {
    isRemote: true,
    create(policy, context) {
      const { specs } = policy;
      if (specs === undefined) {
        const kinds =
          'made of bucket, spacing, ramp or concurrency when it is shared through Redis';
        throw new ConfigError('limit', kinds, policy.kind);
      }
      const isConcurrency = policy.concurrencyLimit !== undefined;
      if (isConcurrency && (specs.length > 1 || prefetch !== undefined)) {
        const expected = 'alone, and without prefetch, when it counts calls in flight';
        throw new ConfigError('limit', expected, policy.kind);
      }
      const onUnavailable = given ?? (policy.minIntervalMs === undefined ? 'local' : 'deny');
      const subscriber = isFair ? createSubscriber(client) : undefined;
      const chosen = { prefix: String(prefix), deadlineMs, onUnavailable, processes };
      const config: RedisConfig = { connection, subscriber, ...chosen };
      if (isConcurrency) return new SemaphoreBackend(policy, context, config);
      const backend = new RedisBackend(policy, context, config);
      if (prefetch === undefined) return backend;
      if (!policy.buckets) {
        throw new ConfigError(
          'backend.prefetch',
          'left out unless the limit is made of buckets',
          prefetch,
        );
      }
      return new PrefetchBackend(backend, coarseClock(context.clock), prefetch);
    },
  };
}

class RedisBackend implements PrefetchSource {
  readonly #context: RedisContext;
  readonly #clock: Clock;
  readonly #lookahead: Lookahead;
  readonly waitForPermit: RemoteBackend['waitForPermit'];
  readonly onUnavailable: OnUnavailable;

  constructor(policy: Policy, context: RemoteBackendContext, config: RedisConfig) {
    this.onUnavailable = config.onUnavailable;
    const { specs = [], width } = policy;
    const full = scriptOf(specs, width, config.subscriber ? 'fair-queue' : 'all');
    const checkOnly = scriptOf(specs, width, 'check-only');
    const releaseCommand = (_id: string, cost: number, at: Millis) =>
      `signored ${cost} ${cost} ${at}`;
    this.#context = createRedisContext(policy, context, config, {
      full,
      checkOnly,
      releaseCommand,
    });
    this.#clock = context.clock;
    this.#lookahead = new Lookahead(policy);
    const { fairQueue } = this.#context;
    this.waitForPermit = fairQueue && ((key, cost, limits) => fairQueue.acquire(key, cost, limits));
  }

  get isAvailable(): boolean {
    return this.#context.batcher.isAvailable;
  }

  get waiterCount(): number {
    return this.#context.fairQueue?.size ?? 0;
  }

  #send(key: string, text: string): Promise<TimedReply> {
    const { batcher, redisKeyOf } = this.#context;
    return batcher.send(redisKeyOf(key), text);
  }

  check(key: string, cost: number): Promise<RemoteDecision> {
    return this.#check(key, 'a', cost);
  }

  checkNow(key: string, cost: number): Promise<RemoteDecision> {
    return this.#check(key, 'n', cost);
  }

  async #check(key: string, letter: 'a' | 'n', cost: number): Promise<RemoteDecision> {
    try {
      const { value, at } = await this.#send(key, letter + cost);
      return { decision: decisionOf(value), decidedAt: at };
    } catch {
      return this.#fallbackDecision(key, cost);
    }
  }

  /** What stands in for Redis says. */
  #fallbackDecision(key: string, cost: number): RemoteDecision {
    const decision = this.#context.fallback.check(key, cost);
    return { decision, decidedAt: this.#clock.now(), fromFallback: true };
  }

  async checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision> {
    try {
      const lookaheadMs = this.#lookahead.ms;
      const since = this.#clock.now();
      const text = `q${lookaheadMs} ${costs.join(' ')}`;
      const { value, at } = await this.#send(key, text);
      this.#lookahead.observeRtt(this.#clock.now() - since);
      const [count, dueIn, last] = String(value).split(' ');
      const granted = Number(count);
      const refusal = granted < costs.length ? decisionOf(last) : undefined;
      return { granted, lastDueInMs: Number(dueIn), lookaheadMs, refusal, decidedAt: at };
    } catch {
      return toBatchDecision(this.#fallbackDecision(key, costs[0]));
    }
  }

  async takeUpTo(key: string, most: number): Promise<number> {
    if (most < 1) return 0;
    try {
      return await this.#sendTake(key, most);
    } catch {
      return this.#context.fallback.check(key, 1).verdict === 'deny' ? 0 : 1;
    }
  }

  takeRemote(key: string, most: number): Promise<number> {
    return this.#sendTake(key, most).catch(() => 0);
  }

  async #sendTake(key: string, most: number): Promise<number> {
    return Number((await this.#send(key, `t${most}`)).value);
  }

  async takeSurplus(key: string, most: number, leave: number): Promise<number> {
    if (most < 1) return 0;
    const sent = this.#send(key, `t${most} ${leave}`);
    return sent.then(({ value }) => Number(value)).catch(() => 0);
  }

  async credit(key: string, units: number, upTo: number): Promise<void> {
    await this.#send(key, `g${units} ${upTo}`).catch(() => {});
  }

  /** What cannot be told is lost: then more was taken than was used, never less. */
  async settle(key: string, settlement: Settlement): Promise<void> {
    const { outcome, cost, used = cost, dueAt } = settlement;
    const text = `s${outcome} ${cost} ${used} ${dueAt}`;
    await this.#send(key, text).catch(() => {});
  }

  async addHits(key: string, count: number): Promise<void> {
    await this.#send(key, `h${count}`).catch(() => {});
  }

  async readState(key: string): Promise<{ state: Float64Array; at: Millis } | undefined> {
    try {
      const { value, at } = await this.#send(key, 'l');
      return { state: Float64Array.from(String(value).split(' '), Number), at };
    } catch {
      return undefined;
    }
  }

  async close(): Promise<void> {
    await this.#context.fairQueue?.close();
    this.#context.batcher.stop();
  }
}
