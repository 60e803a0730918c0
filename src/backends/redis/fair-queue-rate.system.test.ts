import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { borrowRedis } from '../../../test/support/borrowed-servers.ts';
import { nodeRedis, type RedisConnection } from '../../../test/support/redis-clients.ts';
import { type RedisProxy, startProxy } from '../../../test/support/redis-proxy.ts';
import { redisCli, redisServer, type Service } from '../../../test/support/services.ts';
import { mostInAnyWindow } from '../../../test/support/window-oracle.ts';
import { seededRandom } from '../../core/random.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { redis } from './options.ts';

const PROCESSES = 3;

const pause = (ms: number) => new Promise((later) => setTimeout(later, ms));

describe.skipIf(redisServer() === undefined)('fair queue', () => {
  let service: Service;
  let proxy: RedisProxy;
  let connections: RedisConnection[];
  let apis: RemoteLimiter[];

  beforeEach(async () => {
    service = await borrowRedis();
  });
  afterEach(async () => {
    for (const api of apis) await api.close();
    for (const { disconnect } of connections) disconnect();
    proxy.stop();
    await service.stop();
  });

  async function start(limit: Limit, delayMs: number): Promise<void> {
    proxy = await startProxy(service.port, delayMs);
    const connecting = Array.from({ length: PROCESSES }, () => nodeRedis(proxy.port));
    connections = await Promise.all(connecting);
    apis = connections.map(({ client }) =>
      limiter({ name: 'api', limit, backend: redis(client, { fairQueue: true, deadline: 1000 }) }),
    );
    for (const api of apis) await api.acquire('key', 1, { wait: '5s' }); // subscribed, with a round trip measured
  }

  /** Callers of all processes acquire in a loop; returns when each permit was due, in order. */
  async function permitsFor(ms: number, act: (api: RemoteLimiter) => Promise<number | undefined>) {
    const dueAts: number[] = [];
    let isOver = false;
    const loop = async (api: RemoteLimiter): Promise<void> => {
      while (!isOver) {
        const dueAt = await act(api);
        if (dueAt !== undefined) dueAts.push(dueAt);
      }
    };
    const loops = Array.from({ length: 8 * PROCESSES }, (_, n) => loop(apis[n % PROCESSES]));
    await pause(ms);
    isOver = true;
    for (const api of apis) await api.close();
    await Promise.all(loops);
    return dueAts.sort((a, b) => a - b);
  }

  const acquire = async (api: RemoteLimiter): Promise<number | undefined> => {
    const permit = await api.acquire('key', 1, { wait: '10s' });
    return permit.verdict === 'allow' ? permit.dueAt : undefined;
  };

  test('window, 15 ms away: waiters that leave cause no overshoot, and the others are served', async () => {
    await start({ window: { limit: 10, per: 300 } }, 15);
    const random = seededRandom(7);
    const dueAts = await permitsFor(1500, async (api) => {
      const permit = await api.acquire('key', 1, { wait: 50 + 600 * random() });
      return permit.verdict === 'allow' ? permit.dueAt : undefined;
    });
    const log = dueAts.map((at) => ({ at, units: 1 }));
    expect(mostInAnyWindow(log, 300)).toBeLessThanOrEqual(10);
    expect(log.length).toBeGreaterThan(20);
  });

  test.each<[string, Limit, number]>([
    ['spacing', { spacing: { every: 5 } }, 1e-3],
    ['bucket', { bucket: { rate: '200/s', burst: 1 } }, 1], // its instants are rounded up to whole ms
  ])(
    '%s: waiters that leave with a permit ahead cause no overshoot',
    async (_kind, limit, rounding) => {
      await start(limit, 15);
      const random = seededRandom(7);
      const dueAts = await permitsFor(1000, async (api) => {
        const options =
          random() < 0.5
            ? { wait: 50 + 300 * random() }
            : { signal: AbortSignal.timeout(Math.ceil(50 + 300 * random())) };
        const permit = await api.acquire('key', 1, options).catch(() => undefined);
        return permit?.verdict === 'allow' ? permit.dueAt : undefined;
      });
      const gaps = dueAts.slice(1).map((at, n) => at - dueAts[n]);
      expect(dueAts.length).toBeGreaterThan(20);
      expect(Math.min(...gaps)).toBeGreaterThanOrEqual(5 - rounding);
    },
  );

  test('lost messages delay waiters by a heartbeat or two, and none is lost', async () => {
    await start({ spacing: { every: 10 } }, 5);
    const waiting = Array.from({ length: 60 }, (_, n) => acquire(apis[n % PROCESSES]));
    await pause(100);
    redisCli(service.port, 'CLIENT', 'KILL', 'TYPE', 'pubsub');
    await pause(150);
    redisCli(service.port, 'CLIENT', 'KILL', 'TYPE', 'pubsub');
    const dueAts = (await Promise.all(waiting)).map(Number).sort((a, b) => a - b);
    const gaps = dueAts.slice(1).map((at, n) => at - dueAts[n]);
    expect(Math.min(...gaps)).toBeGreaterThanOrEqual(10 - 1e-3);
    expect(apis.map((api) => api.stats().waiting)).toEqual([0, 0, 0]);
  }, 15_000);
});
