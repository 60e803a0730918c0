/**
 * A pool that meets in Redis: one script a sync, on Redis's clock.
 *
 *     import { pool, redisStore } from 'sluice/pool';
 *     const pods = pool(redisStore(client), { name: 'enrich' });
 *
 * The client is the user's own, of node-redis or ioredis, one server or a cluster. A Redis that comes back
 * empty knows nobody, and gives nobody more until all can have said that they are there.
 */

import { atEndOfTurn, type Clock, type Millis, systemClock } from '../../core/clock.ts';
import { Outstanding } from '../../core/deadline-set.ts';
import type { Duration } from '../../core/duration.ts';
import { reasonOf, UnavailableError } from '../../core/errors.ts';
import { Fields } from '../../core/options.ts';
import { connectionOf, type RedisClient, type Reply } from '../redis/client.ts';
import type { SyncAnswer } from './agreement.ts';
import { LEAVE, MEMBERS, NOTE, noteKey, poolKeys, RECALL, SYNC } from './redis-script.ts';
import type { PoolMemberRecord, PoolStore } from './store.ts';

/** How a pool is kept in Redis. */
export interface RedisStoreOptions {
  /** What all keys in Redis begin with. Default `sluice`. */
  readonly prefix?: string;
  /** How long a sync waits for Redis. Default 500 ms. */
  readonly deadline?: Duration;
}

/** Calls that a client may hold for us while it has no connection. */
const UNDERWAY_MAX = 4096;

/** @throws {ConfigError} if it is no client of Redis, or the options make no sense. */
export const redisStore = (client: RedisClient, options: RedisStoreOptions = {}): PoolStore =>
  redisStoreAt(client, options, () => undefined);

/** The same at times that are handed in, for tests; undefined: what Redis's clock says. */
export function redisStoreAt(
  client: RedisClient,
  options: RedisStoreOptions,
  time: () => Millis | undefined,
): PoolStore {
  const connection = connectionOf(client);
  const fields = Fields.patient('', options);
  const prefix = fields.optional('prefix', isRedisPrefix, REDIS_PREFIX) ?? 'sluice';
  const deadlineMs = fields.duration('deadline', 500);
  fields.done();
  const calls = new Calls(systemClock, deadlineMs);
  const run = (script: string, pool: string, args: readonly string[]): Promise<Reply> => {
    const now = time();
    const at = now === undefined ? '' : microsOf(now);
    const keys = poolKeys(prefix, pool);
    return calls.wait(() => connection.run(script, keys, [at, ...args]));
  };
  return {
    name: 'redis',
    async sync(pool, { id, seq, using }, { staleMs, isStrict }) {
      const claim = [using.size, using.rank, using.round].map(String);
      const args = [microsOf(staleMs), isStrict ? '1' : '0', id, `${seq}`, ...claim];
      const [told] = await run(SYNC, pool, args);
      return told === 'late' ? undefined : answerOf(String(told));
    },
    async leave(pool, id) {
      await run(LEAVE, pool, [id]);
    },
    async note(pool, text, keepMs) {
      const args = [text, `${Math.ceil(Math.min(keepMs, NOTE_MS_MAX))}`];
      await calls.wait(() => connection.run(NOTE, [noteKey(prefix, pool)], args));
    },
    async recall(pool) {
      const run = () => connection.run(RECALL, [noteKey(prefix, pool)], []);
      const [text] = await calls.wait(run);
      return typeof text === 'string' ? text : undefined;
    },
    async members(pool) {
      return recordsOf(await run(MEMBERS, pool, []));
    },
    async close() {},
  };
}

/** Redis takes no number of milliseconds that ends after its time. */
const NOTE_MS_MAX: Millis = 365 * 86_400_000;

const REDIS_PREFIX = 'a text without braces';
const isRedisPrefix = (value: unknown): value is string =>
  typeof value === 'string' && !/[{}]/.test(value);

const microsOf = (ms: Millis): string => `${Math.round(ms * 1000)}`;

function answerOf(told: string): SyncAnswer {
  const [nowUs, size, rank, round, fromAt, active, agreed] = told.split(' ').map(Number);
  return {
    claim: { size, rank, round },
    fromAt,
    active,
    isAgreed: agreed === 1,
    now: nowUs / 1000,
  };
}

function recordsOf([, ...told]: Reply): PoolMemberRecord[] {
  return Array.from({ length: told.length / 3 }, (_, n) => {
    const [id, claim, agoUs] = told.slice(3 * n, 3 * n + 3).map(String);
    const [size, rank] = claim.split(' ').map(Number);
    return { id, size, rank, ageMs: Number(agoUs) / 1000 };
  });
}

interface Call {
  readonly heldAt: Millis;
  readonly giveUp: () => unknown;
}

/** Calls under way, each with the same deadline. */
class Calls {
  readonly #clock: Clock;
  readonly #deadlineMs: Millis;
  readonly #waiting: Outstanding<Call>;
  /** Those that the client has yet to end, whether anybody still waits or not. */
  #underway = 0;

  constructor(clock: Clock, deadlineMs: Millis) {
    this.#clock = clock;
    this.#deadlineMs = deadlineMs;
    this.#waiting = new Outstanding(clock, deadlineMs, ({ giveUp }) => giveUp());
  }

  async wait(run: () => Promise<Reply>): Promise<Reply> {
    try {
      if (this.#underway >= UNDERWAY_MAX) throw new Error(`${UNDERWAY_MAX} calls are not answered`);
      return await this.#inTime(run);
    } catch (error) {
      throw new UnavailableError('redis', inWords(error));
    }
  }

  #inTime(run: () => Promise<Reply>): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const late = (): void => reject(new Error(`no answer within ${this.#deadlineMs} ms`));
      // If it was this process that was busy, the answer is there and is read before the turn is over.
      const call = { heldAt: this.#clock.now(), giveUp: () => atEndOfTurn(late) };
      this.#waiting.add(call);
      this.#underway++;
      run()
        .then(resolve, reject)
        .finally(() => {
          this.#waiting.remove(call);
          this.#underway--;
        });
    });
  }
}

/** What Redis says in one word, for those who do not know its words. */
const MEANINGS: Readonly<Record<string, string>> = {
  WRONGTYPE: 'somebody else has written to its keys',
  READONLY: 'this Redis is a replica, and takes no writes',
  LOADING: 'this Redis has just started, and still reads what it had',
};

function inWords(error: unknown): Error {
  const reason = reasonOf(error);
  const word = Object.keys(MEANINGS).find((own) => reason.includes(own));
  return new Error(word === undefined ? reason : `${MEANINGS[word]} (${reason})`, { cause: error });
}
