/**
 * `backend: pool(store)`: processes divide a limit and agree on their number.
 *
 *     const pods = pool(redisStore(client), { name: 'enrich' });
 *     const llm = limiter({ limit: { ramp: { min: 10, max: 110, over: '10m' } }, backend: pods });
 *     llm.takeUpTo('', 50);     // from this process's part, synchronously
 *
 * All limits with this backend are divided by one periodic sync.
 */

import { hostname } from 'node:os';
import { type Clock, isClock, systemClock } from '../../core/clock.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError } from '../../core/errors.ts';
import { isFunction, OptionReader } from '../../core/options.ts';
import { type Random, systemRandom } from '../../core/random.ts';
import type { BackendFactory } from '../backend.ts';
import { PoolBackend } from './backend.ts';
import {
  Pool,
  type PoolListener,
  type PoolOnUnavailable,
  type PoolView,
  randomHex,
} from './pool.ts';
import type { PoolMemberRecord, PoolStore } from './store.ts';

/** Options of `pool`. */
export interface PoolOptions {
  /** Processes with an equal name in one store divide their limits. Default `sluice`. */
  readonly name?: string | undefined;
  /** Id of this process, for display. Default: host name and a random number. */
  readonly id?: string | undefined;
  /** Time between syncs. Default 100 ms. */
  readonly sync?: Duration | undefined;
  /** A member without a sync for this long is dropped, and its part is free. Default 2 s. */
  readonly memberTimeout?: Duration | undefined;
  /** How long the last agreed size is used while the store is unavailable. Default 10 s. */
  readonly staleFor?: Duration | undefined;
  /** The decision after that: `deny` (default, fail closed), `allow` (fail open), or `keep` the last agreed size. */
  readonly onUnavailable?: PoolOnUnavailable | undefined;
  readonly clock?: Clock | undefined;
  readonly random?: Random | undefined;
}

/** Membership of this process in a pool: the `backend` of its limiters. */
export interface PoolMembership extends BackendFactory {
  /** Resolves with the store's first response; rejects without one within `memberTimeout`. Syncs continue. */
  readonly opened: Promise<void>;
  /** The pool's status as this process knows it. */
  view(): PoolView;
  /** All members that the store knows. */
  members(): Promise<readonly PoolMemberRecord[]>;
  /** Adds a listener for availability of the store and for changes of the size; the returned function removes it. */
  on(listener: PoolListener): () => void;
  /** Stops spending until `resume`, and releases its part. */
  pause(): Promise<void>;
  /** Rejoins as a new member. */
  resume(): void;
  /** Leaves the pool. The store stays open: its creator closes it. */
  close(): Promise<void>;
}

/** Joins a pool. @throws {ConfigError} if an option is invalid. */
export function pool(store: PoolStore, options: PoolOptions = {}): PoolMembership {
  if (!isPoolStore(store))
    throw new ConfigError('store', 'a pool store such as redisStore(client)', store);
  const reader = new OptionReader('', options);
  const clock = reader.optional('clock', isClock, 'a clock') ?? systemClock;
  const random = reader.optional('random', isFunction<Random>, 'a function') ?? systemRandom;
  const setting = readPoolOptions(reader, random);
  reader.finish();
  const membership = new Pool(store, setting, clock, random);
  membership.open();
  return {
    isRemote: false,
    create: (policy, context) => new PoolBackend(policy, context, membership),
    opened: membership.opened,
    view: () => membership.view(),
    members: () => membership.members(),
    on: (listener) => membership.on(listener),
    pause: () => membership.pause(),
    resume: () => membership.resume(),
    close: () => membership.close(),
  };
}

/** Reads a member's options, for the library and for configuration files. */
export function readPoolOptions(reader: OptionReader, random: Random) {
  const memberTimeoutMs = reader.duration('memberTimeout', 2000);
  const syncMs = reader.duration('sync', Math.min(100, memberTimeoutMs / 4));
  if (syncMs > memberTimeoutMs / 4) reader.report('sync', 'at most a quarter of `memberTimeout`');
  const staleForMs = reader.duration('staleFor', Math.max(10_000, 2 * syncMs));
  if (staleForMs < 2 * syncMs) reader.report('staleFor', 'at least twice `sync`'); // otherwise the claim would lapse between two syncs
  return {
    name: reader.optional('name', isPoolName, POOL_NAME_EXPECTED) ?? 'sluice',
    id:
      reader.optional('id', isPoolName, POOL_NAME_EXPECTED) ?? `${hostname()}-${randomHex(random)}`,
    syncMs,
    memberTimeoutMs,
    staleForMs,
    onUnavailable: reader.oneOf('onUnavailable', ['deny', 'allow', 'keep'] as const, 'deny'),
  };
}

const POOL_NAME_EXPECTED = 'a string of 1 to 200 characters';
const isPoolName = (value: unknown): value is string =>
  typeof value === 'string' && value !== '' && value.length <= 200;

/** Tests for all methods, because a Redis client may have an unrelated `sync`. */
const isPoolStore = (value: unknown): value is PoolStore =>
  ['sync', 'leave', 'members', 'close'].every(
    (name) => typeof (value as Record<string, unknown> | null | undefined)?.[name] === 'function',
  );
