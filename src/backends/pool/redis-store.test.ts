import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { poolStoreContract } from '../../../test/support/pool-store-contract.ts';
import { nodeRedis, type RedisConnection } from '../../../test/support/redis-clients.ts';
import { runs } from '../../../test/support/runs.ts';
import {
  freePort,
  redisCli,
  redisServer,
  type Service,
  startRedis,
} from '../../../test/support/services.ts';
import { systemClock } from '../../core/clock.ts';
import { seededRandom } from '../../core/random.ts';
import type { RedisClient } from '../redis/client.ts';
import { slotOf } from '../redis/slot.ts';
import { type AgreementOptions, type Claim, NO_CLAIM } from './agreement.ts';
import { memoryStore } from './memory-store.ts';
import { poolKeys } from './redis-script.ts';
import { type RedisStoreOptions, redisStore, redisStoreWithTime } from './redis-store.ts';

const TRACES = runs(600);
const STEPS = 60;
const AT_ONCE = 20;

/** For tests that are not about a deadline. */
const UNHURRIED = { deadline: '10s' } as const;

const ids = ['a', 'b', 'c', 'd', 'e', 'f'];

/** Applies random syncs to both stores; returns the first difference, if any. */
async function play(seed: number, { client }: RedisConnection): Promise<string | undefined> {
  const random = seededRandom(seed);
  const below = (n: number): number => Math.floor(random() * n);
  const options: AgreementOptions = { memberTimeoutMs: 2000, isStrict: random() < 0.5 };
  const clock = { at: 1.7e12 + below(8e6) / 8, now: () => clock.at };
  let pool = `trace ${seed}`;
  const there = redisStoreWithTime(client, UNHURRIED, clock.now);
  const here = memoryStore(clock);
  const seqs = new Map<string, number>();
  const uses = new Map<string, Claim>();
  const rounds = [0];

  /** Mostly the last claim received; sometimes a random one. */
  const usingOf = (id: string): Claim => {
    if (random() < 0.95) return uses.get(id) ?? NO_CLAIM;
    const size = below(8);
    const rank = size === 0 ? -1 : below(size + 1) - 1;
    return { size, rank, round: rank < 0 ? 0 : rounds[below(rounds.length)] };
  };
  const passTime = (): void => {
    const draw = random();
    if (draw < 0.7) clock.at += below(400) / 8;
    else if (draw < 0.9) clock.at += below(4000) / 8;
    else if (draw < 0.97) clock.at += below(30_000) / 8;
    else if (draw > 0.99) clock.at -= below(1000) / 8;
  };
  const step = async (): Promise<[unknown, unknown]> => {
    const id = ids[below(ids.length)];
    const draw = random();
    if (draw < 0.005) pool += '.'; // a store that has lost its data
    if (draw < 0.05) return [await here.leave(pool, id), await there.leave(pool, id)];
    if (draw < 0.1) return [await here.members(pool), await there.members(pool)];
    const seq = Math.max(1, (seqs.get(id) ?? 0) + (random() < 0.95 ? 1 : -below(3)));
    const request = { id, seq, using: usingOf(id) };
    seqs.set(id, Math.max(seq, seqs.get(id) ?? 0));
    const expected = await here.sync(pool, request, options);
    if (expected && random() < 0.9) uses.set(id, expected.claim);
    if (expected) rounds.push(expected.claim.round);
    return [expected, await there.sync(pool, request, options)];
  };

  for (let n = 0; n < STEPS; n++) {
    passTime();
    const [expected, got] = (await step()).map((response) => JSON.stringify(response));
    if (expected !== got) return `seed ${seed}, step ${n}: ${got} instead of ${expected}`;
  }
  return undefined;
}

/** An ioredis client with this behaviour for every script. */
const clientThat = (evalsha: () => Promise<unknown>): RedisClient => ({
  script: async () => 'digest',
  evalsha,
  eval: evalsha,
});

/** A separate Redis, which can be killed. */
async function stage() {
  const server = await startRedis();
  const { client, disconnect } = await nodeRedis(server.port);
  return {
    server,
    clock: systemClock,
    advance: (ms: number) => sleep(ms),
    store: () => redisStore(client, { deadline: '2s' }),
    async stop() {
      disconnect();
      await server.stop();
    },
  };
}

describe.skipIf(redisServer() === undefined)('redis pool store', () => {
  let service: Service;
  const clients: RedisConnection[] = [];
  const connect = async (): Promise<RedisConnection> => {
    const client = await nodeRedis(service.port);
    clients.push(client);
    return client;
  };
  beforeAll(async () => {
    service = await startRedis();
  });
  afterAll(async () => {
    for (const { disconnect } of clients) disconnect();
    await service?.stop();
  });

  poolStoreContract('Redis, through node-redis', { isServer: true }, stage);

  test('redis pool store: the Lua agreement matches the TypeScript agreement', async () => {
    const client = await connect();
    const differences: string[] = [];
    for (let from = 1; from <= TRACES; from += AT_ONCE) {
      const seeds = Array.from({ length: AT_ONCE }, (_, n) => from + n);
      const found = await Promise.all(seeds.map((seed) => play(seed, client)));
      differences.push(...found.filter((each) => each !== undefined));
    }
    expect(differences.slice(0, 3)).toEqual([]);
  });

  test('redis pool store: a pool with an evicted key counts as lost', async () => {
    const { client } = await connect();
    for (const lost of poolKeys('sluice', 'torn')) {
      let now = 1e12;
      const store = redisStoreWithTime(client, UNHURRIED, () => now);
      const sync = (seq: number) =>
        store.sync(
          'torn',
          { id: 'one', seq, using: NO_CLAIM },
          { memberTimeoutMs: 2000, isStrict: false },
        );
      await sync(1);
      now += 900;
      await sync(2);
      now += 900;
      await sync(3);
      now += 900;
      expect([lost, (await sync(4))?.claim.size]).toEqual([lost, 1]);
      redisCli(service.port, 'DEL', lost);
      now += 900;
      expect([lost, (await sync(5))?.claim.size]).toEqual([lost, 0]);
      expect(await store.members('torn')).toMatchObject([{ id: 'one', size: 0 }]);
      redisCli(service.port, 'DEL', ...poolKeys('sluice', 'torn'));
    }
  });

  test('redis pool store: a pool without syncs expires after some hours', async () => {
    const { client } = await connect();
    const store = redisStore(client, UNHURRIED);
    const sync = (id: string) =>
      store.sync(
        'kept',
        { id, seq: 1, using: NO_CLAIM },
        { memberTimeoutMs: 2000, isStrict: false },
      );
    await sync('one');
    await store.leave('kept', 'one'); // all keys but the state are deleted, and come back as new ones
    await sync('two');
    const kept = poolKeys('sluice', 'kept').map((key) =>
      Number(redisCli(service.port, 'TTL', key)),
    );
    for (const seconds of kept) expect(Math.abs(seconds - 6 * 3600)).toBeLessThan(60);
  });

  test('redis pool store: all keys of a pool are in one slot', () => {
    for (const name of ['a', '}', '{}', 'a:b', '{a}b', '%7D', 'ü']) {
      expect(new Set(poolKeys('sluice', name).map(slotOf)).size).toBe(1);
    }
    const names = ['a', '}', '%7D', '{}', 'a:b'];
    expect(new Set(names.map((name) => poolKeys('sluice', name)[0])).size).toBe(names.length);
  });

  test('redis pool store: explains why a sync failed', async () => {
    const service = await startRedis();
    const client = await nodeRedis(service.port);
    const sync = (options: RedisStoreOptions = UNHURRIED) =>
      redisStore(client.client, options).sync(
        'x',
        { id: 'one', seq: 1, using: NO_CLAIM },
        { memberTimeoutMs: 2000, isStrict: false },
      );
    try {
      await sync();
      const [state] = poolKeys('sluice', 'x');
      redisCli(service.port, 'DEL', state);
      redisCli(service.port, 'LPUSH', state, 'not ours');
      await expect(sync()).rejects.toThrow(
        /^redis is unavailable: another application has written to its keys \(WRONGTYPE/,
      );
      redisCli(service.port, 'DEL', state);
      redisCli(service.port, 'REPLICAOF', '127.0.0.1', `${await freePort()}`);
      await expect(sync()).rejects.toThrow(/this Redis is a replica and accepts no writes/);
      redisCli(service.port, 'REPLICAOF', 'NO', 'ONE');
      service.pause();
      await expect(sync({ deadline: '200ms' })).rejects.toThrow(/no reply within 200 ms$/);
    } finally {
      client.disconnect();
      await service.stop();
    }
  });

  test('redis pool store: reports that Redis is loading', async () => {
    const loading = clientThat(async () => {
      throw new Error('LOADING Redis is loading the dataset in memory');
    });
    await expect(redisStore(loading).leave('x', 'one')).rejects.toThrow(
      /this Redis has just started and is loading its data \(LOADING/,
    );
  });

  test('redis pool store: bounds the calls in flight to a client that never replies', async () => {
    let calls = 0;
    const silent = clientThat(() => {
      calls++;
      return new Promise(() => {});
    });
    const store = redisStore(silent, { deadline: '50ms' });
    const results = await Promise.allSettled(
      Array.from({ length: 5000 }, () => store.leave('x', 'one')),
    );
    expect(results.every(({ status }) => status === 'rejected')).toBe(true);
    expect(calls).toBe(4096);
    await expect(store.leave('x', 'one')).rejects.toThrow(/4096 calls are in flight$/);
  });

  test('redis pool store: refuses invalid options', async () => {
    const { client } = await connect();
    expect(() => redisStore(client, { prefix: 'a{b}' })).toThrow('`prefix` to be a string without');
    expect(() => redisStore(client, { deadline: 0 })).toThrow('`deadline`');
    expect(() => redisStore(client, { dedline: 5 } as object)).toThrow('`dedline`');
    expect(() => redisStore({} as never)).toThrow(
      'a client of node-redis, ioredis or @upstash/redis',
    );
  });
});
