/**
 * `share: pool(store)`: processes that split a limit and agree how many they are.
 *
 *     const pods = pool(redisStore(client), { name: 'enrich' });
 *     const llm = limiter({ limit: { ramp: { min: 10, max: 110, over: '10m' } }, share: pods });
 *     llm.take('', 50);     // some of this process's part, at once
 *
 * All limits made with it are divided alike. One heartbeat serves them all.
 */

import { hostname } from 'node:os';
import { type Clock, isClock, systemClock } from '../../core/clock.ts';
import type { Duration } from '../../core/duration.ts';
import { ConfigError } from '../../core/errors.ts';
import { OptionReader } from '../../core/options.ts';
import { type Random, systemRandom } from '../../core/random.ts';
import type { BackendFactory } from '../backend.ts';
import { PoolBackend } from './backend.ts';
import { Pool, type PoolFallback, type PoolListener, type PoolView } from './membership.ts';
import type { PoolMemberRecord, PoolStore } from './store.ts';

/** How a member of a pool behaves. */
export interface PoolOptions {
  /** Processes with the same name in the same store share their limits. Default `sluice`. */
  readonly name?: string;
  /** What this process is called. Default: the host's name and a number by chance. */
  readonly id?: string;
  /** How often it syncs. Default 100 ms. */
  readonly sync?: Duration;
  /** A member that was silent for so long is gone, and its part is free. Default 2 s. */
  readonly memberTimeout?: Duration;
  /** How long the last agreed size is used while the store is out of reach. Default 10 s. */
  readonly staleFor?: Duration;
  /** What happens then: `deny` (default), `allow` everything, `keep` the last agreed size. */
  readonly onUnavailable?: PoolFallback;
  readonly clock?: Clock;
  readonly random?: Random;
}

/** This process's place in a pool: the `share` of its limiters. */
export interface PoolMembership extends BackendFactory {
  /** Resolves with the store's first answer; rejects if none comes for `memberTimeout`. It is tried on all the same. */
  readonly opened: Promise<void>;
  /** What this process knows of its pool. */
  view(): PoolView;
  /** Everybody, as the store knows them. */
  members(): Promise<readonly PoolMemberRecord[]>;
  /** Hears when the store is out of reach, when it is back, and when the size changes. */
  on(listener: PoolListener): () => void;
  /** Spends nothing for a while, and leaves its part to the others. */
  pause(): Promise<void>;
  /** Comes back, as one that has just come. */
  resume(): void;
  /** Leaves for good. The store stays open: it is its maker's. */
  close(): Promise<void>;
}

/** Joins a pool. @throws {ConfigError} if the options make no sense. */
export function pool(store: PoolStore, options: PoolOptions = {}): PoolMembership {
  if (!isPoolStore(store)) throw new ConfigError('store', 'one such as redisStore(client)', store);
  const fields = new OptionReader('', options);
  const clock = fields.optional('clock', isClock, 'a clock') ?? systemClock;
  const random = fields.optional('random', isRandom, 'a function') ?? systemRandom;
  const setting = readPoolOptions(fields, random);
  fields.finish();
  const own = new Pool(store, setting, clock, random);
  own.open();
  return {
    isRemote: false,
    create: (policy, made) => new PoolBackend(policy, made, own),
    opened: own.opened,
    view: () => own.view(),
    members: () => store.members(setting.name),
    on: (listener) => own.on(listener),
    pause: () => own.pause(),
    resume: () => own.resume(),
    close: () => own.close(),
  };
}

/** How a member behaves, for the library and for a configuration alike. */
export function readPoolOptions(fields: OptionReader, random: Random) {
  const memberTimeoutMs = fields.duration('memberTimeout', 2000);
  const syncMs = fields.duration('sync', Math.min(100, memberTimeoutMs / 4));
  if (syncMs > memberTimeoutMs / 4) fields.report('sync', 'at most a quarter of `memberTimeout`');
  const staleForMs = fields.duration('staleFor', Math.max(10_000, 2 * syncMs));
  if (staleForMs < 2 * syncMs) fields.report('staleFor', 'at least twice `sync`'); // else it stops between two
  return {
    name: fields.optional('name', isPoolName, POOL_NAME_EXPECTED) ?? 'sluice',
    id:
      fields.optional('id', isPoolName, POOL_NAME_EXPECTED) ?? `${hostname()}-${randomHex(random)}`,
    syncMs,
    memberTimeoutMs,
    staleForMs,
    onUnavailable: fields.oneOf('onUnavailable', ['deny', 'allow', 'keep'] as const, 'deny'),
  };
}

const randomHex = (random: Random): string => Math.floor(random() * 2 ** 48).toString(16);

const POOL_NAME_EXPECTED = 'a text of 1 to 200 letters';
const isPoolName = (value: unknown): value is string =>
  typeof value === 'string' && value !== '' && value.length <= 200;

/** All of it: a client of Redis may have a `sync` too, which is something else. */
const isPoolStore = (value: unknown): value is PoolStore =>
  ['sync', 'leave', 'members', 'close'].every(
    (name) => typeof (value as Record<string, unknown> | null | undefined)?.[name] === 'function',
  );

const isRandom = (value: unknown): value is Random => typeof value === 'function';
