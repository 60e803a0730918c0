/** The same stories on a cluster of six, and what only a cluster does: slots, and one taking over. */

import { createClient } from 'redis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  ioRedisCluster,
  nodeRedisCluster,
  type RedisConnection,
} from '../../../test/support/redis-clients.ts';
import { bucketLimit, redisKeyOf, remoteContract } from '../../../test/support/remote-contract.ts';
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
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { redis } from './backend.ts';
import { SLOT_COUNT, slotOf } from './slot.ts';

const CLIENTS = { 'node-redis': nodeRedisCluster, ioredis: ioRedisCluster };

describe.skipIf(redisServer() === undefined)('a cluster', () => {
  let cluster: RedisCluster;
  beforeAll(async () => {
    cluster = await startRedisCluster();
  }, 60_000);
  afterAll(() => cluster?.stop());

  for (const [name, connect] of Object.entries(CLIENTS)) {
    remoteContract(name, async () => {
      const masters = cluster.masters();
      return {
        servers: () => masters,
        connect: () => connect(cluster),
        expectedRoundTrips: (keys) => new Set(keys.map((key) => slotOf(redisKeyOf(key)))).size,
        stop: async () => {},
      };
    });
  }

  describe.each(Object.entries(CLIENTS))('waiting fairly by %s', (_name, connect) => {
    const LIMITS: [string, Limit, string][] = [
      ['for time', { spacing: { every: 20 } }, 'spacing'],
      ['for calls in flight', { concurrency: 1 }, 'concurrency'],
    ];
    const clients: RedisConnection[] = [];
    const made: RemoteLimiter[] = [];

    async function pairOf(limit: Limit): Promise<RemoteLimiter[]> {
      const pair = [];
      for (let n = 0; n < 2; n++) {
        const own = await connect(cluster);
        clients.push(own);
        pair.push(limiter({ name: 'api', limit, backend: redis(own.client, { fairQueue: true }) }));
      }
      made.push(...pair);
      return pair;
    }
    beforeEach(() => {
      for (const { port } of cluster.masters()) redisCli(port, 'FLUSHALL');
    });
    afterEach(async () => {
      for (const api of made.splice(0)) await api.close();
      for (const { disconnect } of clients.splice(0)) disconnect();
    });

    test.each(LIMITS)(
      '%s: in the order of arrival, for keys on all nodes',
      async (_what, limit) => {
        const pair = await pairOf(limit);
        const keys = ['a', 'b', 'c', 'd', 'e', 'f'];
        expect(
          new Set(keys.map((key) => Math.floor((slotOf(redisKeyOf(key)) * 3) / SLOT_COUNT))).size,
        ).toBe(3);
        const orders = keys.map((): number[] => []);
        const enter = async (k: number, n: number): Promise<void> => {
          const entry = await pair[n % 2].acquire(keys[k]);
          if (entry.verdict !== 'allow') return;
          orders[k].push(n);
          entry.settle();
        };
        const waiting: Promise<void>[] = [];
        for (let n = 0; n < 20; n++) {
          waiting.push(...keys.map((_, k) => enter(k, n)));
          await Promise.all(keys.map((key) => pair[n % 2].inspect(key))); // what was sent before has arrived
        }
        await Promise.all(waiting);
        for (const order of orders) expect(order).toEqual(Array.from({ length: 20 }, (_, n) => n));
      },
      20_000,
    );

    test.each(LIMITS)(
      '%s: a waiter that crashed is skipped',
      async (_what, limit, kind) => {
        const [a, b] = await pairOf(limit);
        const { port } = cluster.masters()[0];
        const line = `${redisKeyOf('token', kind)}:line`;
        redisCli(port, '-c', 'RPUSH', line, 'ghost/1/1', 'ghost/2/1');
        const entries = [a.acquire('token'), b.acquire('token')].map(async (entering) => {
          const entry = await entering;
          if (entry.verdict === 'allow') entry.settle();
          return entry.verdict;
        });
        expect(await Promise.all(entries)).toEqual(['allow', 'allow']);
        expect(redisCli(port, '-c', 'EXISTS', line)).toBe('0');
      },
      20_000,
    );

    test('a process that crashed in line is skipped when it has been silent for three seconds', async () => {
      const [a] = await pairOf({ spacing: { every: 20 } });
      const { port } = cluster.masters()[0];
      const [seconds] = redisCli(port, 'TIME').split('\n');
      const name = redisKeyOf('token', 'spacing');
      redisCli(port, '-c', 'HSET', `${name}:alive`, 'ghost', `${seconds}000`);
      redisCli(port, '-c', 'RPUSH', `${name}:line`, 'ghost/1/1');
      const since = performance.now();
      expect((await a.acquire('token')).verdict).toBe('allow');
      expect(performance.now() - since).toBeGreaterThan(1900); // to the second, and a second of doubt
      expect(performance.now() - since).toBeLessThan(6000);
    }, 20_000);
  });

  test('slots are counted as Redis counts them', async () => {
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

describe.skipIf(redisServer() === undefined)('a cluster that loses a node', () => {
  test.each(Object.entries(CLIENTS))(
    '%s is answered for that part at once, and by who took over as soon as it did',
    async (_name, connect) => {
      const cluster = await startRedisCluster();
      const own = await connect(cluster);
      const api = limiter({
        name: 'api',
        limit: bucketLimit(0.001, 5),
        backend: redis(own.client, { onUnavailable: 'deny' }),
      });
      try {
        const keys = Array.from({ length: 30 }, (_, n) => `key ${n}`);
        for (const key of keys) expect((await api.check(key)).verdict).toBe('allow');
        // What was written has reached whoever stands by: every key is there twice.
        const kept = () => cluster.nodes.map(({ port }) => Number(redisCli(port, 'DBSIZE')));
        await vi.waitFor(() => expect(kept().reduce((a, b) => a + b)).toBe(2 * keys.length), {
          timeout: 10_000,
        });
        const reached: boolean[] = [];
        api.on((event) => event.type === 'availability' && reached.push(event.isAvailable));
        const [lost] = cluster.masters();
        const names = redisCli(lost.port, 'KEYS', '*');
        const theirs = keys.filter((key) => names.includes(redisKeyOf(key)));
        const [key] = theirs;
        const other = keys.find((one) => !theirs.includes(one)) ?? '';
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
        expect(reached).toEqual([false, true]); // one deadline, however long it takes
      } finally {
        await api.close();
        own.disconnect();
        await cluster.stop();
      }
    },
    120_000,
  );

  test('a write that nobody else had is lost with its node: one may go twice, unless writes need two', async () => {
    const cluster = await startRedisCluster();
    const own = await nodeRedisCluster(cluster);
    const api = limiter({
      name: 'api',
      limit: { spacing: { every: '1h' } },
      backend: redis(own.client),
    });
    try {
      const [alone, strict] = cluster.masters();
      const keys = Array.from({ length: 200 }, (_, n) => `key ${n}`);
      const keyAt = ({ port }: Service): string => {
        const isTheirs = (key: string) =>
          !redisCli(port, 'GET', redisKeyOf(key)).startsWith('MOVED');
        return keys.find(isTheirs) ?? '';
      };
      const standBys = cluster.nodes.filter((node) => !cluster.masters().includes(node));
      const [key, careful] = [keyAt(alone), keyAt(strict)];
      redisCli(strict.port, 'CONFIG', 'SET', 'min-replicas-to-write', '1');
      for (const node of standBys) node.pause();
      for (const { port } of [alone, strict]) redisCli(port, 'CLIENT', 'KILL', 'TYPE', 'replica');
      expect((await api.check(key)).verdict).toBe('allow');
      expect((await api.check(key)).verdict).toBe('deny');
      expect((await api.check(careful)).verdict).toBe('deny'); // and nothing can be lost
      expect(api.stats().fallback).toBe(1);
      await alone.kill();
      for (const node of standBys) node.resume();
      await vi.waitFor(async () => expect((await api.check(key)).verdict).toBe('allow'), {
        timeout: 20 * FAILOVER_AFTER_MS,
        interval: 20,
      });
      expect((await api.check(key)).verdict).toBe('deny');
    } finally {
      await api.close();
      own.disconnect();
      await cluster.stop();
    }
  }, 120_000);
});
