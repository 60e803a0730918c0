/**
 * `redis(client)`: one count for all processes, decided atomically by a script in Redis, on Redis's clock.
 *
 * While Redis is unavailable, `onUnavailable` decides at once: fail closed (`deny`), fail open (`allow`), or a local
 * fallback with this process's part of the limit (`local`).
 */

import { coarseClock, timersEndWithRequest } from '../../core/clock.ts';
import type { OnUnavailable } from '../../core/decision.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError } from '../../core/errors.ts';
import { isFunction, OptionReader } from '../../core/options.ts';
import { hasInterval, keepsDebt, specsOf } from '../../policies/rules.ts';
import type { RemoteBackendFactory } from '../remote-backend.ts';
import { RedisBackend } from './backend.ts';
import { connectionOf, createSubscriber, type RedisClient, type WaitUntil } from './client.ts';
import { CombinedBackend, isCombinedLimit } from './combined.ts';
import { ON_UNAVAILABLE_VALUES, type RedisConfig, requireWidth } from './context.ts';
import { PrefetchBackend } from './prefetch.ts';
import { SemaphoreBackend } from './semaphore.ts';

/** Options of `redis()`. */
export interface RedisOptions {
  /** Prefix of all keys in Redis. Default `sluice`. */
  readonly prefix?: string | undefined;
  /** The deadline of a call to Redis. Default 100 ms. */
  readonly deadline?: Duration | undefined;
  /** The decision while Redis is unavailable. Default: `deny` for a limit with a spacing, else `local`. */
  readonly onUnavailable?: OnUnavailable | undefined;
  /** One queue for the whole fleet, by `queue.order` fifo or fair. Opens a second connection for messages. */
  readonly fairQueue?: boolean | undefined;
  /** Tokens that a process takes ahead and spends locally. Overshoot: up to this number per process. Buckets only. */
  readonly prefetch?: number | undefined;
  /** The number of processes that share the limit: `local` gives each its part. Default 1. */
  readonly processes?: number | undefined;
  /** `waitUntil` of `cloudflare:workers`: settlements and probes may outlive their request. Required on Workers. */
  readonly waitUntil?: ((work: Promise<unknown>) => void) | undefined;
}

/** Shares a limit through the caller's own connection. @throws {ConfigError} on invalid options. */
export function redis(
  client: RedisClient,
  options: RedisOptions = {},
  path = 'backend',
): RemoteBackendFactory {
  const fields = OptionReader.collecting(path, options);
  const waitUntil = fields.optional('waitUntil', isFunction<WaitUntil>, 'a function');
  if (timersEndWithRequest && !waitUntil)
    fields.report('waitUntil', 'waitUntil of cloudflare:workers: without it, settlements are lost');
  const connection = connectionOf(client, waitUntil);
  const prefix = fields.has('prefix') ? fields.get('prefix') : 'sluice';
  if (typeof prefix !== 'string' || /[{}]/.test(prefix))
    fields.report('prefix', 'a string without braces');
  const deadlineMs = fields.duration('deadline', 100);
  const isGiven = fields.has('onUnavailable');
  const given = isGiven ? fields.oneOf('onUnavailable', ON_UNAVAILABLE_VALUES) : undefined;
  const processes = fields.integer('processes', 1, 1);
  const isFair = fields.boolean('fairQueue', false);
  const prefetch = fields.has('prefetch') ? fields.integer('prefetch', 1) : undefined;
  if (isFair && prefetch !== undefined)
    fields.report('prefetch', 'left out when fairQueue is true');
  fields.finish();
  return {
    isRemote: true,
    create(policy, context) {
      if (specsOf(policy) === undefined) {
        const kinds =
          'made of bucket, spacing, ramp, window, quota, concurrency or lockout when it is shared through Redis';
        throw new ConfigError('limit', kinds, policy.kind);
      }
      requireWidth(policy);
      if (timersEndWithRequest && policy.traits.concurrencyLimit !== undefined) {
        const expected =
          'without `concurrency` on Cloudflare Workers, where no timer can renew its leases in Redis: use durableObjects()';
        throw new ConfigError('limit', expected, policy.kind);
      }
      const isCombined = isCombinedLimit(policy);
      if (isFair && isCombined) {
        const expected =
          'false with a concurrency limit beside other rules: leave it out, and calls wait in each process';
        throw new ConfigError(fields.pathOf('fairQueue'), expected, isFair);
      }
      if (isFair && policy.traits.canReserve) {
        const expected =
          'false with `reserve`: the fair queue grants permits ahead itself, so leave out `reserve`';
        throw new ConfigError(fields.pathOf('fairQueue'), expected, isFair);
      }
      if (isFair && policy.rules.some(({ policy: { share } }) => share?.events)) {
        const expected = 'false with a lockout: a locked key would hold up the queue';
        throw new ConfigError(fields.pathOf('fairQueue'), expected, isFair);
      }
      if (prefetch !== undefined && !policy.rules.every(keepsDebt)) {
        throw new ConfigError(
          fields.pathOf('prefetch'),
          'left out unless the limit is made of buckets',
          prefetch,
        );
      }
      const onUnavailable = given ?? (hasInterval(policy) ? 'deny' : 'local');
      const subscriber = isFair ? createSubscriber(client) : undefined;
      const chosen = { prefix: String(prefix), deadlineMs, onUnavailable, processes };
      const config: RedisConfig = { connection, subscriber, ...chosen };
      if (isCombined) return new CombinedBackend(policy, context, config);
      if (policy.traits.concurrencyLimit !== undefined)
        return new SemaphoreBackend(policy, context, config);
      const backend = new RedisBackend(policy, context, config);
      if (prefetch === undefined) return backend;
      return new PrefetchBackend(backend, coarseClock(context.clock), prefetch);
    },
  };
}
