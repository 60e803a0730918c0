/**
 * Pool store in Redis: one script per sync, on Redis's clock.
 *
 *     import { pool, redisStore } from 'sluice/pool';
 *     const pods = pool(redisStore(client), { name: 'enrich' });
 *
 * The client is the user's, of node-redis or ioredis, for one server or a cluster. A client without an error listener
 * gets one until `close`. A Redis that restarts empty knows no members, and assigns no larger claims until all members
 * have had time to sync.
 */

import { type Millis, systemClock } from '../../core/clock.ts';
import type { Duration } from '../../core/duration.ts';
import { errorMessageOf, UnavailableError } from '../../core/errors.ts';
import { OptionReader } from '../../core/options.ts';
import { CallDeadlines } from '../redis/call-deadlines.ts';
import { connectionOf, type RedisClient, type ScriptReply } from '../redis/client.ts';
import { listenForErrors } from '../redis/client-errors.ts';
import type { SyncResponse } from './agreement.ts';
import {
  checkpointKey,
  LEAVE_SCRIPT,
  LOAD_CHECKPOINT_SCRIPT,
  MEMBERS_SCRIPT,
  poolKeys,
  SAVE_CHECKPOINT_SCRIPT,
  SYNC_SCRIPT,
} from './redis-script.ts';
import type { PoolMemberRecord, PoolStore } from './store.ts';

/** Options of `redisStore`. */
export interface RedisStoreOptions {
  /** Prefix of all keys in Redis. Default `sluice`. */
  readonly prefix?: string | undefined;
  /** The deadline of a sync. Default 500 ms. */
  readonly deadline?: Duration | undefined;
}

/** The most calls that the client may queue while it has no connection. */
const MAX_IN_FLIGHT = 4096;

/** Creates a store in Redis. @throws {ConfigError} if the client or an option is invalid. */
export const redisStore = (client: RedisClient, options: RedisStoreOptions = {}): PoolStore =>
  redisStoreWithTime(client, options, () => undefined);

/** `redisStore` with injected time, for tests; undefined: Redis's clock. */
export function redisStoreWithTime(
  client: RedisClient,
  options: RedisStoreOptions,
  time: () => Millis | undefined,
): PoolStore {
  const connection = connectionOf(client);
  const reader = OptionReader.collecting('', options);
  const prefix = reader.optional('prefix', isRedisPrefix, EXPECTED_PREFIX) ?? 'sluice';
  const deadlineMs = reader.duration('deadline', 500);
  reader.finish();
  const deadlines = new CallDeadlines(systemClock, deadlineMs);
  const stopListening = listenForErrors(client, 'the pool keeps its last size for `staleFor`');
  /** Calls that the client has not finished, including those that have timed out. */
  let inFlight = 0;
  const execute = async (call: () => Promise<ScriptReply>): Promise<ScriptReply> => {
    try {
      if (inFlight >= MAX_IN_FLIGHT) throw new Error(`${MAX_IN_FLIGHT} calls are in flight`);
      inFlight++;
      const finished = call().finally(() => {
        inFlight--;
      });
      return await deadlines.run(finished);
    } catch (error) {
      throw new UnavailableError('redis', explainError(error));
    }
  };
  const run = (script: string, pool: string, args: readonly string[]): Promise<ScriptReply> => {
    const now = time();
    const at = now === undefined ? '' : microsOf(now);
    const keys = poolKeys(prefix, pool);
    return execute(() => connection.run(script, keys, [at, ...args]));
  };
  return {
    name: 'redis',
    async sync(pool, { id, seq, using }, { memberTimeoutMs, isStrict }) {
      const claim = [using.size, using.rank, using.round].map(String);
      const args = [microsOf(memberTimeoutMs), isStrict ? '1' : '0', id, `${seq}`, ...claim];
      const [reply] = await run(SYNC_SCRIPT, pool, args);
      return reply === 'late' ? undefined : parseSyncResponse(String(reply));
    },
    async leave(pool, id) {
      await run(LEAVE_SCRIPT, pool, [id]);
    },
    async saveCheckpoint(pool, text, keepMs) {
      const args = [text, `${Math.ceil(Math.min(keepMs, MAX_CHECKPOINT_MS))}`];
      await execute(() =>
        connection.run(SAVE_CHECKPOINT_SCRIPT, [checkpointKey(prefix, pool)], args),
      );
    },
    async loadCheckpoint(pool) {
      const run = () => connection.run(LOAD_CHECKPOINT_SCRIPT, [checkpointKey(prefix, pool)], []);
      const [text] = await execute(run);
      return typeof text === 'string' ? text : undefined;
    },
    async members(pool) {
      return parseMemberRecords(await run(MEMBERS_SCRIPT, pool, []));
    },
    close: async () => stopListening(),
  };
}

/** Redis rejects expiry times beyond its range. */
const MAX_CHECKPOINT_MS: Millis = 365 * 86_400_000;

const EXPECTED_PREFIX = 'a string without braces';
const isRedisPrefix = (value: unknown): value is string =>
  typeof value === 'string' && !/[{}]/.test(value);

const microsOf = (ms: Millis): string => `${Math.round(ms * 1000)}`;

function parseSyncResponse(reply: string): SyncResponse {
  const [nowUs, size, rank, round, effectiveAt, active, agreed] = reply.split(' ').map(Number);
  return {
    claim: { size, rank, round },
    effectiveAt,
    active,
    isAgreed: agreed === 1,
    now: nowUs / 1000,
  };
}

function parseMemberRecords([, ...fields]: ScriptReply): PoolMemberRecord[] {
  return Array.from({ length: fields.length / 3 }, (_, n) => {
    const [id, claim, agoUs] = fields.slice(3 * n, 3 * n + 3).map(String);
    const [size, rank] = claim.split(' ').map(Number);
    return { id, size, rank, ageMs: Number(agoUs) / 1000 };
  });
}

/** Explanations of Redis error codes. */
const ERROR_EXPLANATIONS: Readonly<Record<string, string>> = {
  WRONGTYPE: 'another application has written to its keys',
  READONLY: 'this Redis is a replica and accepts no writes',
  LOADING: 'this Redis has just started and is loading its data',
};

function explainError(error: unknown): Error {
  const reason = errorMessageOf(error);
  const word = Object.keys(ERROR_EXPLANATIONS).find((code) => reason.includes(code));
  return new Error(word === undefined ? reason : `${ERROR_EXPLANATIONS[word]} (${reason})`, {
    cause: error,
  });
}
