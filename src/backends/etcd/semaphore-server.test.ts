import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { borrowEtcd } from '../../../test/support/borrowed-servers.ts';
import {
  ALL_KEYS,
  addressOf,
  etcdCall,
  startDroppingProxy,
} from '../../../test/support/etcd-gateway.ts';
import { etcdServer, type Service } from '../../../test/support/services.ts';
import { systemClock } from '../../core/clock.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import { etcdEntryStore } from './http-store.ts';
import { type EtcdOptions, etcd } from './options.ts';
import { EtcdHttp } from './transport.ts';

describe.skipIf(etcdServer() === undefined)('concurrency limit in etcd', () => {
  let server: Service;
  const limiters: RemoteLimiter[] = [];
  const shared = (limit: { concurrency: number }, options: Partial<EtcdOptions> = {}) => {
    const backend = etcd({ endpoints: [addressOf(server)], deadline: '10s', ...options });
    const api = limiter({ name: 'api', limit, backend });
    limiters.push(api);
    return api;
  };
  beforeAll(async () => {
    server = await borrowEtcd();
  });
  afterAll(() => server?.stop());
  beforeEach(async () => {
    await etcdCall(server, 'kv/deleterange', ALL_KEYS);
  });
  afterEach(async () => {
    for (const api of limiters.splice(0)) await api.close();
  });

  test('keys with slashes and names with percent signs have entries of their own', async () => {
    const keys = ['', 'a', 'a/b', 'a%2Fb', 'a/', '/', '🔑', 'x'.repeat(10_000)];
    const [api, other] = [shared({ concurrency: 2 }), shared({ concurrency: 2 })];
    for (const key of keys) expect((await api.tryAcquire(key)).verdict).toBe('allow');
    for (const key of keys)
      expect(await other.inspect(key)).toMatchObject({ inFlight: 1, remaining: 1 });
  });

  test('an entry has a lease of 10 seconds, and is deleted with its last call', async () => {
    const api = shared({ concurrency: 9 });
    const permits = await Promise.all([1, 2, 3].map((cost) => api.tryAcquire('sink', cost)));
    const { kvs = [] } = await etcdCall(server, 'kv/range', ALL_KEYS);
    expect(kvs).toMatchObject([{ value: btoa('6') }]);
    expect(atob(kvs[0].key)).toMatch(/^\/sluice\/limits\/api\/concurrency\/sink\/\w+$/);
    const { TTL } = await etcdCall(server, 'lease/timetolive', { ID: kvs[0].lease });
    expect(Number(TTL)).toBeLessThanOrEqual(10);
    for (const permit of permits) if (permit.verdict === 'allow') permit.settle();
    await vi.waitFor(async () =>
      expect((await etcdCall(server, 'kv/range', ALL_KEYS)).kvs ?? []).toEqual([]),
    );
  });

  test('a call whose lease was revoked is counted again', async () => {
    const [api, other] = [shared({ concurrency: 2 }), shared({ concurrency: 2 })];
    await api.tryAcquire('sink');
    const { kvs = [] } = await etcdCall(server, 'kv/range', ALL_KEYS);
    await etcdCall(server, 'lease/revoke', { ID: kvs[0].lease });
    expect((await other.inspect('sink'))?.inFlight).toBe(0);
    await api.tryAcquire('sink'); // may be refused, because its lease is gone
    await vi.waitFor(async () => expect((await other.tryAcquire('sink', 2)).verdict).toBe('deny'));
    await vi.waitFor(async () => expect((await api.inspect('sink'))?.inFlight).toBe(2), 8000);
  });

  test('entries are renewed together, or none if one was written meanwhile', async () => {
    const http = new EtcdHttp({
      ...{ endpoints: [new URL(addressOf(server))], deadlineMs: 5000, clock: systemClock },
      ...{ auth: undefined, tls: undefined },
    });
    const store = etcdEntryStore(http);
    const [first, second] = [await store.grantLease(10), await store.grantLease(20)];
    const swapAt = (key: string, revision: string, text: string) => ({
      ...{ prefix: '/e/', key, revision, unchangedSince: undefined },
      replacement: { text, leaseId: first },
    });
    const [a, b] = ['/e/a', '/e/b'];
    for (const key of [a, b]) await store.swapEntry(swapAt(key, '0', '1'));
    const { entries } = await store.readEntries('/e/');
    expect(entries.map(({ key, text }) => [key, text])).toEqual([
      [a, '1'],
      [b, '1'],
    ]);
    const revision = await store.renewEntries(entries, second);
    expect((await store.readEntries('/e/')).entries).toMatchObject([{ revision }, { revision }]);
    await etcdCall(server, 'lease/revoke', { ID: first });
    expect((await store.readEntries('/e/')).entries.length).toBe(2); // they have the second lease
    expect(await store.renewEntries(entries, second)).toBeUndefined();
    expect((await store.readEntries('/e/')).entries).toMatchObject([{ revision }, { revision }]);
    store.close();
  });

  test('a foreign value is refused and not overwritten', async () => {
    const key = btoa('/sluice/limits/api/concurrency/sink/x');
    await etcdCall(server, 'kv/put', { key, value: btoa('mine') });
    expect((await shared({ concurrency: 1 }).tryAcquire('sink')).verdict).toBe('deny');
    expect((await etcdCall(server, 'kv/range', { key })).kvs).toMatchObject([
      { value: btoa('mine') },
    ]);
  });

  test('a call counts once, also if the first server executed it and dropped its response', async () => {
    const proxy = await startDroppingProxy(addressOf(server));
    const endpoints = [proxy.address, addressOf(server)];
    const api = shared({ concurrency: 5 }, { endpoints });
    try {
      await api.tryAcquire('sink', 2); // it has a lease
      proxy.dropsResponses = true;
      expect((await api.tryAcquire('sink')).verdict).toBe('allow');
      expect((await shared({ concurrency: 5 }).inspect('sink'))?.inFlight).toBe(3);
    } finally {
      await proxy.stop();
    }
  });
});
