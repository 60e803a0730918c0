import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { nodeRedis, type RedisConnection } from '../../../test/support/redis-clients.ts';
import { type RedisProxy, startProxy } from '../../../test/support/redis-proxy.ts';
import { redisCli, redisServer, type Service, startRedis } from '../../../test/support/services.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { redis } from './options.ts';

/** Limits that do not open during a test, with room for MOST units. */
const MOST = 20;
const LIMITS: Readonly<Record<string, Limit>> = {
  bucket: { bucket: { rate: '1/365d', burst: MOST } },
  window: { window: { limit: MOST, per: '365d' } },
  quota: { quota: { limit: MOST, per: 'year' } },
  lockout: { lockout: { after: MOST, within: '1h', lock: '1h' } },
  both: { all: [{ bucket: { rate: '1/365d', burst: MOST } }, { concurrency: 5 }] },
};

const inTime = { timeout: 20_000, interval: 50 };

describe.skipIf(redisServer() === undefined)('fail-over that loses the last writes', () => {
  let primary: Service;
  let replica: Service;
  let proxy: RedisProxy;
  let connection: RedisConnection;
  const limiters: RemoteLimiter[] = [];

  beforeEach(async () => {
    primary = await startRedis('--repl-diskless-sync-delay', '0');
    replica = await startRedis('--replicaof', '127.0.0.1', String(primary.port));
    proxy = await startProxy(primary.port);
    connection = await nodeRedis(proxy.port);
    await vi.waitFor(
      () => expect(redisCli(replica.port, 'INFO', 'replication')).toContain('link_status:up'),
      { timeout: 20_000, interval: 50 },
    );
  }, 30_000);
  afterEach(async () => {
    for (const api of limiters.splice(0)) await api.close();
    connection.disconnect();
    proxy.stop();
    await Promise.all([primary.stop(), replica.stop()]);
  });

  function shared(name: string, limit: Limit): RemoteLimiter {
    const backend = redis(connection.client, { deadline: '5s', onUnavailable: 'deny' });
    const made = limiter({ name, limit, backend });
    limiters.push(made);
    return made;
  }

  const offsetOf = ({ port }: Service): number =>
    Number(/master_repl_offset:(\d+)/.exec(redisCli(port, 'INFO', 'replication'))?.[1]);

  /** Stops replication when the replica has all data: later writes reach only the primary. */
  async function stopReplication(): Promise<void> {
    const offset = offsetOf(primary);
    await vi.waitFor(() => expect(offsetOf(replica)).toBeGreaterThanOrEqual(offset), inTime);
    replica.pause();
    redisCli(primary.port, 'CLIENT', 'KILL', 'TYPE', 'replica'); // else it would read them when it continues
  }

  async function failOver(beforeClients = (): void => {}): Promise<void> {
    await primary.kill();
    replica.resume();
    redisCli(replica.port, 'REPLICAOF', 'NO', 'ONE');
    beforeClients();
    proxy.retarget(replica.port);
  }

  test('rates: as many units more as the lost writes had granted, and no more', async () => {
    const apis = Object.entries(LIMITS).map(([name, limit]) => shared(name, limit));
    const [replicated, lost] = [11, 4];
    const take = async (api: RemoteLimiter, units: number): Promise<void> => {
      for (let n = 0; n < units; n++) {
        const permit = await api.tryAcquire('k');
        expect(permit.verdict).toBe('allow');
        if (permit.verdict === 'allow') permit.settle();
      }
    };
    for (const api of apis) await take(api, replicated);
    for (const api of apis) await api.inspect('k'); // its settlements have arrived
    await stopReplication();
    for (const api of apis) await take(api, lost);
    await failOver();
    for (const api of apis) {
      await vi.waitFor(async () => expect((await api.check('k', 0)).verdict).toBe('allow'), inTime);
      await take(api, MOST - replicated); // beyond the limit by `lost`
      expect([api.name, (await api.check('k', 1, { willSettle: true })).verdict]).toEqual([
        api.name,
        'deny',
      ]);
    }
  }, 60_000);

  test('calls in flight: those of the lost writes are registered again, and then none is granted beyond the limit', async () => {
    const flights = shared('flights', { concurrency: 6 });
    const both = shared('both', LIMITS.both);
    await Promise.all([flights.tryAcquire('k', 2), both.tryAcquire('k', 2)]);
    await stopReplication();
    await Promise.all([flights.tryAcquire('k', 3), both.tryAcquire('k', 3)]);
    await failOver(() => {
      const leases = redisCli(replica.port, 'ZCARD', 'sluice:{flights:k}:concurrency');
      expect(leases).toBe('2'); // the others are lost
    });
    const inFlight = async () => [await flights.inspect('k'), await both.inspect('k')];
    await vi.waitFor(
      async () => expect((await inFlight()).map((key) => key?.inFlight)).toEqual([5, 5]),
      inTime,
    );
    expect((await flights.check('k', 2, { willSettle: true })).verdict).toBe('deny');
    expect(await both.check('k', 1, { willSettle: true })).toMatchObject({
      verdict: 'deny',
      rule: 'concurrency',
    });
  }, 60_000);
});
