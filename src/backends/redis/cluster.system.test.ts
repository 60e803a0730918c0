import { createClient } from 'redis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  ioRedisCluster,
  nodeRedisCluster,
  type RedisConnection,
} from '../../../test/support/redis-clients.ts';
import { bucketLimit, redisContract, redisKeyOf } from '../../../test/support/redis-contract.ts';
import {
  FAILOVER_AFTER_MS,
  type RedisCluster,
  redisCli,
  redisServer,
  type Service,
  startRedisCluster,
} from '../../../test/support/services.ts';
import { seededRandom } from '../../core/random.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { all } from '../../limiter/composite-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { redis } from './options.ts';
import { SLOT_COUNT, slotOf } from './slot.ts';

const CLIENTS = { 'node-redis': nodeRedisCluster, ioredis: ioRedisCluster };

describe.skipIf(redisServer() === undefined)('redis backend, cluster', () => {
  let cluster: RedisCluster;
  beforeAll(async () => {
    cluster = await startRedisCluster();
  }, 60_000);
  afterAll(() => cluster?.stop());

  for (const [name, connect] of Object.entries(CLIENTS)) {
    redisContract(name, async () => {
      const masters = cluster.masters();
      return {
        servers: () => masters,
        connect: () => connect(cluster),
        expectedRoundTrips: (keys) => new Set(keys.map((key) => slotOf(redisKeyOf(key)))).size,
        stop: async () => {},
      };
    });
  }

  describe.each(Object.entries(CLIENTS))('all by %s', (_name, connect) => {
    const clients: RedisConnection[] = [];
    const limiters: RemoteLimiter[] = [];
    const shared = ({ client }: RedisConnection, name: string, burst: number): RemoteLimiter => {
      const limit = { bucket: { rate: '1/365d', burst } } as const;
      const made = limiter({ name, limit, backend: redis(client, { deadline: '5s' }) });
      limiters.push(made);
      return made;
    };
    const calls = (): number =>
      cluster
        .masters()
        .map(({ port }) => redisCli(port, 'INFO', 'commandstats'))
        .reduce((sum, text) => sum + Number(/cmdstat_evalsha:calls=(\d+)/.exec(text)?.[1] ?? 0), 0);
    beforeEach(async () => {
      for (const { port } of cluster.masters()) redisCli(port, 'FLUSHALL');
      clients.push(await connect(cluster), await connect(cluster));
    });
    afterEach(async () => {
      for (const api of limiters.splice(0)) await api.close();
      for (const { disconnect } of clients.splice(0)) disconnect();
    });

    test('keys in several slots: one call after the other gets what an oracle admits', async () => {
      const random = seededRandom(7);
      const bursts = [9, 14, 30];
      const composites = clients.map((client) =>
        all([
          shared(client, 'one', bursts[0]),
          { limiter: shared(client, 'two', bursts[1]), key: (key) => key.slice(0, 1) },
          { limiter: shared(client, 'all', bursts[2]), key: '*', cost: (cost) => 2 * cost },
        ]),
      );
      const spent = new Map<string, number>();
      const verdicts = new Set<string>();
      for (let n = 0; n < 60; n++) {
        const key = ['a1', 'a2', 'b1'][Math.floor(random() * 3)];
        const cost = Math.floor(random() * 4);
        const charges = [
          { id: `one ${key}`, cost, burst: bursts[0] },
          { id: `two ${key.slice(0, 1)}`, cost, burst: bursts[1] },
          { id: 'all *', cost: 2 * cost, burst: bursts[2] },
        ];
        const fits = charges.every(({ id, cost, burst }) => (spent.get(id) ?? 0) + cost <= burst);
        const { verdict } = await composites[n % 2].check(key, cost);
        expect(verdict).toBe(fits ? 'allow' : 'deny');
        verdicts.add(verdict);
        if (fits) for (const { id, cost } of charges) spent.set(id, (spent.get(id) ?? 0) + cost);
      }
      expect(verdicts.size).toBe(2);
      for (const [id, count] of spent) {
        const [name, key] = id.split(' ');
        const n = ['one', 'two', 'all'].indexOf(name);
        expect((await limiters[n].inspect(key))?.remaining).toBe(bursts[n] - count);
      }
    });

    test('keys in several slots: concurrent calls charge exactly what they are granted', async () => {
      const makers = clients.map((client) => {
        const parts = [shared(client, 'one', 40), shared(client, 'two', 25)];
        return { parts, api: all([parts[0], { limiter: parts[1], key: 'shared', cost: 1 }]) };
      });
      let one = 0;
      let two = 0;
      const work = Array.from({ length: 120 }, async (_, n) => {
        const cost = 1 + (n % 3);
        if ((await makers[n % 2].api.check('k', cost)).verdict !== 'allow') return;
        one += cost;
        two++;
      });
      await Promise.all(work);
      expect(Math.max(one / 40, two / 25)).toBeGreaterThan(0.5);
      const [{ parts }] = makers;
      const left = [await parts[0].inspect('k'), await parts[1].inspect('shared')];
      expect(left.map((one) => one?.remaining)).toEqual([40 - one, 25 - two]);
    });

    test('calls in flight beside other rules: the keys of a limit are in one slot, so one call decides', async () => {
      const limit: Limit = { all: [{ window: { limit: 6, per: '365d' } }, { concurrency: 4 }] };
      const [one, other] = clients.map(({ client }) => {
        const made = limiter({ name: 'both', limit, backend: redis(client, { deadline: '5s' }) });
        limiters.push(made);
        return made;
      });
      for (const key of ['a', 'b', 'c']) {
        await one.check(key, 0); // its node's clock is known
        const before = calls();
        const entry = await one.tryAcquire(key, 3);
        expect(calls() - before).toBe(1);
        expect(await other.check(key, 2, { willSettle: true })).toMatchObject({
          verdict: 'deny',
          rule: 'concurrency',
        });
        if (entry.verdict === 'allow') entry.settle();
        await vi.waitFor(async () => expect((await other.inspect(key))?.inFlight).toBe(0));
        expect(await other.check(key, 4, { willSettle: true })).toMatchObject({
          verdict: 'deny',
          rule: 'window',
        });
      }
    });

    test('keys in one slot: one call', async () => {
      const slotIn = (name: string, key: string): number =>
        slotOf(`sluice:{${name}:${key}}:bucket`);
      let key = 0;
      while (slotIn('two', `${key}`) !== slotIn('one', 'k')) key++;
      const [client] = clients;
      const parts = [shared(client, 'one', 5), shared(client, 'two', 3)];
      const api = all([parts[0], { limiter: parts[1], key: `${key}` }]);
      await api.check('k'); // loads the script
      await api.check('k');
      const before = calls();
      const verdicts = await Promise.all([api.check('k'), api.check('k')]);
      expect(calls() - before).toBe(1);
      expect(verdicts.map(({ verdict }) => verdict)).toEqual(['allow', 'deny']);
      expect((await parts[0].inspect('k'))?.remaining).toBe(2);
    });
  });

  describe.each(Object.entries(CLIENTS))('fair queue by %s', (_name, connect) => {
    const LIMITS: [string, Limit, string][] = [
      ['spacing', { spacing: { every: 20 } }, 'spacing'],
      ['calls in flight', { concurrency: 1 }, 'concurrency'],
    ];
    const clients: RedisConnection[] = [];
    const limiters: RemoteLimiter[] = [];

    async function pairOf(limit: Limit): Promise<RemoteLimiter[]> {
      const pair = [];
      for (let n = 0; n < 2; n++) {
        const connection = await connect(cluster);
        clients.push(connection);
        pair.push(
          limiter({
            name: 'api',
            limit,
            backend: redis(connection.client, { fairQueue: true, deadline: '2s' }),
          }),
        );
      }
      limiters.push(...pair);
      return pair;
    }
    beforeEach(() => {
      for (const { port } of cluster.masters()) redisCli(port, 'FLUSHALL');
    });
    afterEach(async () => {
      for (const api of limiters.splice(0)) await api.close();
      for (const { disconnect } of clients.splice(0)) disconnect();
    });

    test.each(LIMITS)(
      '%s: grants in order of arrival, for keys on all nodes',
      async (_kind, limit) => {
        const pair = await pairOf(limit);
        const keys = ['a', 'b', 'c', 'd', 'e', 'f'];
        expect(
          new Set(keys.map((key) => Math.floor((slotOf(redisKeyOf(key)) * 3) / SLOT_COUNT))).size,
        ).toBe(3);
        const granted = keys.map((): { n: number; dueAt: number }[] => []);
        const enter = async (k: number, n: number): Promise<void> => {
          const entry = await pair[n % 2].acquire(keys[k]);
          if (entry.verdict !== 'allow') return;
          granted[k].push({ n, dueAt: entry.dueAt });
          entry.settle();
        };
        const waiting: Promise<void>[] = [];
        for (let n = 0; n < 20; n++) {
          waiting.push(...keys.map((_, k) => enter(k, n)));
          await Promise.all(keys.map((key) => pair[n % 2].inspect(key))); // a barrier: earlier commands have arrived
        }
        await Promise.all(waiting);
        for (const permits of granted) {
          // Sorted by due time: on a machine that stalled, two limiters wake in any order.
          const order = permits.toSorted((a, b) => a.dueAt - b.dueAt).map(({ n }) => n);
          expect(order).toEqual(Array.from({ length: 20 }, (_, n) => n));
        }
      },
      20_000,
    );

    test.each(LIMITS)(
      '%s: skips waiters of a process without heartbeats',
      async (_name, limit, kind) => {
        const [a, b] = await pairOf(limit);
        const { port } = cluster.masters()[0];
        const queue = `${redisKeyOf('token', kind)}:queue`;
        redisCli(port, '-c', 'RPUSH', queue, 'ghost/1/1', 'ghost/2/1');
        const entries = [a.acquire('token'), b.acquire('token')].map(async (entering) => {
          const entry = await entering;
          if (entry.verdict === 'allow') entry.settle();
          return entry.verdict;
        });
        expect(await Promise.all(entries)).toEqual(['allow', 'allow']);
        expect(redisCli(port, '-c', 'EXISTS', queue)).toBe('0');
      },
      20_000,
    );

    test('the head of a silent process does not block the queue', async () => {
      const [a] = await pairOf({ spacing: { every: 20 } });
      const { port } = cluster.masters()[0];
      const [seconds] = redisCli(port, 'TIME').split('\n');
      const name = redisKeyOf('token', 'spacing');
      redisCli(port, '-c', 'HSET', `${name}:heartbeats`, 'ghost', `${seconds}000 u`);
      redisCli(port, '-c', 'RPUSH', `${name}:queue`, 'ghost/1/-/1');
      // Like others, it is granted permits ahead until it was silent for 1.5 s.
      const since = performance.now();
      expect((await a.acquire('token')).verdict).toBe('allow');
      expect(performance.now() - since).toBeLessThan(6000);
    }, 20_000);
  });

  test('slotOf agrees with CLUSTER KEYSLOT', async () => {
    const random = seededRandom(7);
    const letters = ['{', '}', '{}', 'a', 'Z', '0', ':', ' ', 'é', '漢', '🙂', '\u0000', '\n'];
    const keys = Array.from({ length: 5000 }, () => {
      const length = Math.floor(random() * 12);
      return Array.from({ length }, () => letters[Math.floor(random() * letters.length)]).join('');
    });
    const client = createClient({ socket: { port: cluster.nodes[0].port, host: '127.0.0.1' } });
    await client.connect();
    try {
      const all = ['', '{}', '{a}', '{}a', 'a{b}c{d}', '{{a}}', 'a{', '}a{b}', ...keys];
      const slots = await Promise.all(
        all.map((key) => client.sendCommand(['CLUSTER', 'KEYSLOT', key])),
      );
      expect(all.map(slotOf)).toEqual(slots);
    } finally {
      client.destroy();
    }
  });
});

describe.skipIf(redisServer() === undefined)('redis backend, cluster failover', () => {
  test.each(Object.entries(CLIENTS))(
    '%s: keys of a lost node fall back at once, and recover with the failover',
    async (_name, connect) => {
      const cluster = await startRedisCluster();
      const connection = await connect(cluster);
      const api = limiter({
        name: 'api',
        limit: bucketLimit(0.001, 5),
        backend: redis(connection.client, { onUnavailable: 'deny', deadline: '2s' }),
      });
      try {
        const keys = Array.from({ length: 30 }, (_, n) => `key ${n}`);
        for (const key of keys) expect((await api.check(key)).verdict).toBe('allow');
        // Replication is complete: every key exists twice.
        const sizes = () => cluster.nodes.map(({ port }) => Number(redisCli(port, 'DBSIZE')));
        await vi.waitFor(() => expect(sizes().reduce((a, b) => a + b)).toBe(2 * keys.length), {
          timeout: 10_000,
        });
        const changes: boolean[] = [];
        api.on((event) => event.type === 'availability' && changes.push(event.isAvailable));
        const [lost] = cluster.masters();
        const names = redisCli(lost.port, 'KEYS', '*');
        const lostKeys = keys.filter((key) => names.includes(redisKeyOf(key)));
        const [key] = lostKeys;
        const other = keys.find((one) => !lostKeys.includes(one)) ?? '';
        await lost.kill();
        expect((await api.check(key)).verdict).toBe('deny');
        expect((await api.check(other)).verdict).toBe('allow');
        const since = performance.now();
        await vi.waitFor(async () => expect((await api.check(key)).verdict).toBe('allow'), {
          timeout: 20 * FAILOVER_AFTER_MS,
          interval: 20,
        });
        expect(performance.now() - since).toBeGreaterThan(FAILOVER_AFTER_MS / 2);
        expect(await api.check(key)).toEqual({ verdict: 'allow', remaining: 2 });
        expect(changes).toEqual([false, true]); // one outage, however long it takes
      } finally {
        await api.close();
        connection.disconnect();
        await cluster.stop();
      }
    },
    120_000,
  );

  test('an unreplicated write is lost with its node, unless min-replicas-to-write is set', async () => {
    const cluster = await startRedisCluster();
    const connection = await nodeRedisCluster(cluster);
    const api = limiter({
      name: 'api',
      limit: { spacing: { every: '1h' } },
      backend: redis(connection.client, { deadline: '2s' }),
    });
    try {
      const [alone, strict] = cluster.masters();
      const keys = Array.from({ length: 200 }, (_, n) => `key ${n}`);
      const keyAt = ({ port }: Service): string => {
        const isStoredThere = (key: string) =>
          !redisCli(port, 'GET', redisKeyOf(key)).startsWith('MOVED');
        return keys.find(isStoredThere) ?? '';
      };
      const replicas = cluster.nodes.filter((node) => !cluster.masters().includes(node));
      const [key, replicated] = [keyAt(alone), keyAt(strict)];
      redisCli(strict.port, 'CONFIG', 'SET', 'min-replicas-to-write', '1');
      for (const node of replicas) node.pause();
      for (const { port } of [alone, strict]) redisCli(port, 'CLIENT', 'KILL', 'TYPE', 'replica');
      expect((await api.check(key)).verdict).toBe('allow');
      expect((await api.check(key)).verdict).toBe('deny');
      expect((await api.check(replicated)).verdict).toBe('deny'); // refused instead of lost
      expect(api.stats().fallback).toBe(1);
      await alone.kill();
      for (const node of replicas) node.resume();
      await vi.waitFor(async () => expect((await api.check(key)).verdict).toBe('allow'), {
        timeout: 20 * FAILOVER_AFTER_MS,
        interval: 20,
      });
      expect((await api.check(key)).verdict).toBe('deny');
    } finally {
      await api.close();
      connection.disconnect();
      await cluster.stop();
    }
  }, 120_000);
});
