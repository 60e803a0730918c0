import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import {
  ALL_KEYS,
  addressOf,
  etcdCall as call,
  startDroppingProxy as startProxy,
} from '../../../test/support/etcd-gateway.ts';
import { whilePaused } from '../../../test/support/paused.ts';
import {
  bucketLimit,
  remoteLimiterContract,
} from '../../../test/support/remote-limiter-contract.ts';
import { etcdServer, freePort, type Service, startEtcd } from '../../../test/support/services.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { groups } from '../groups/options.ts';
import type { BorrowRequest } from '../groups/transport.ts';
import { type EtcdOptions, etcd } from './options.ts';

const UNREACHABLE = ['http://127.0.0.1:1'];

if (etcdServer() !== undefined) {
  describe('etcd backend, one server', () => {
    let server: Service;
    const limiters: RemoteLimiter[] = [];
    const shared = (limit: Limit, options: Partial<EtcdOptions> = {}, queue = {}) => {
      const backend = etcd({ endpoints: [addressOf(server)], deadline: '10s', ...options });
      const api = limiter({ name: 'api', limit, backend, queue });
      limiters.push(api);
      return api;
    };
    beforeAll(async () => {
      server = await startEtcd();
    });
    afterAll(() => server.stop());
    beforeEach(async () => {
      await call(server, 'kv/deleterange', ALL_KEYS);
    });
    afterEach(async () => {
      for (const api of limiters.splice(0)) await api.close();
    });

    remoteLimiterContract({
      createShared: (limit, { isSecondProcess: _, deadlineMs, queue, ...options } = {}) =>
        shared(limit, { ...options, ...(deadlineMs && { deadline: deadlineMs }) }, queue),
      whileUnavailable: (act) => whilePaused(server, act),
    });

    test('keeps the bucket of a group: credits borrowed tokens and lends its surplus', async () => {
      const limit: Limit = { bucket: { rate: 0.001, burst: 40 } };
      const two = { a: {}, b: {} };
      const lender = groups({ self: 'b', groups: two, transport: { borrow: async () => [] } });
      limiter({ name: 'api', limit, backend: lender });
      const transport = {
        borrow: (_: string, requests: readonly BorrowRequest[]) => lender.lend(requests),
      };
      const bucket = etcd({ endpoints: [addressOf(server)], deadline: '10s' });
      const borrower = groups({ self: 'a', groups: two, transport, bucket });
      const api = limiter({ name: 'api', limit, backend: borrower });
      limiters.push(api);
      expect(await borrower.lend([{ limit: 'api', key: 'k', tokens: 25 }])).toEqual([10]);
      let allowed = 0;
      while ((await api.check('k')).verdict === 'allow') allowed++;
      expect(allowed).toBeGreaterThanOrEqual(10);
      await vi.waitFor(async () => {
        if ((await api.check('k')).verdict === 'allow') allowed++;
        expect(allowed).toBe(20); // its half, and the other group's surplus
      }, 10_000);
      expect(lender.view().lent).toBe(10);
      borrower.close();
    });

    test('keys expire, many with one lease', async () => {
      const api = shared(bucketLimit(10, 2));
      await Promise.all(Array.from({ length: 20 }, (_, n) => api.check(`key ${n}`)));
      const { kvs = [] } = await call(server, 'kv/range', ALL_KEYS);
      expect(kvs.length).toBe(20);
      const leases = new Set(kvs.map(({ lease }) => lease));
      expect([...leases]).toEqual([expect.stringMatching(/^\d+$/)]);
      const [ID] = leases;
      const { TTL } = await call(server, 'lease/timetolive', { ID });
      expect(Number(TTL)).toBeGreaterThan(50);
      expect(Number(TTL)).toBeLessThanOrEqual(64);
      await call(server, 'lease/revoke', { ID });
      expect((await call(server, 'kv/range', ALL_KEYS)).kvs ?? []).toEqual([]);
      // A process that has not noticed the revocation is refused once, then requests another lease.
      await api.check('key 1');
      await vi.waitFor(async () => expect((await api.check('key 1')).verdict).toBe('allow'));
    });

    test('a state that matters for an hour has a longer lease', async () => {
      await shared({ spacing: { every: '1h' } }).check('x');
      const { kvs = [] } = await call(server, 'kv/range', ALL_KEYS);
      const { TTL } = await call(server, 'lease/timetolive', { ID: kvs[0].lease });
      expect(Number(TTL)).toBeGreaterThan(3600);
    });

    test('window of an hour: a write that a slow disk delays by 400 ms costs no permit', async () => {
      const api = shared({ window: { limit: 3, per: '1h' } });
      expect(await api.check('k')).toEqual({ verdict: 'allow', remaining: 2 });
      server.pause();
      const delayed = api.check('k');
      await new Promise((resolve) => setTimeout(resolve, 400));
      server.resume();
      expect(await delayed).toEqual({ verdict: 'allow', remaining: 1 });
    });

    test('startTolerance: its default follows a change of the limit', async () => {
      const api = shared({ spacing: { every: '1h' } }, { deadline: '5s' });
      await api.change({ spacing: { every: 20 } });
      const since = performance.now();
      for (let n = 0; n < 5; n++) expect((await api.acquire('k')).verdict).toBe('allow');
      expect(performance.now() - since).toBeLessThan(12_000); // with a tolerance of one hour it would be 20 s
    });

    test('names and keys with slashes do not collide', async () => {
      const backend = etcd({ endpoints: [addressOf(server)], deadline: '10s' });
      const limit = bucketLimit(1e-6, 1);
      const named = ['a/b', 'a', 'a%2Fb'].map((name) => limiter({ name, limit, backend }));
      const unnamed = limiter({ limit, backend });
      limiters.push(...named, unnamed);
      for (const api of limiters) {
        for (const key of ['', 'b/bucket/', 'x'.repeat(10_000), '🔑'])
          expect((await api.check(key)).verdict).toBe('allow');
      }
      expect((await unnamed.check('')).verdict).toBe('deny');
    });

    test('a foreign value is refused and not overwritten', async () => {
      const key = btoa('/sluice/limits/api/bucket/x');
      await call(server, 'kv/put', { key, value: btoa('mine') });
      expect((await shared(bucketLimit(1, 1)).check('x')).verdict).toBe('deny');
      const { kvs } = await call(server, 'kv/range', { key });
      expect(kvs).toMatchObject([{ value: btoa('mine') }]);
    });

    test('a foreign value costs no lease, however often it is checked', async () => {
      const api = shared(bucketLimit(1000, 1000));
      const isAvailable = () =>
        vi.waitFor(async () => expect((await api.check('fine')).verdict).toBe('allow'));
      await isAvailable();
      const { leases: before = [] } = await call(server, 'lease/leases');
      await call(server, 'kv/put', { key: btoa('/sluice/limits/api/bucket/x'), value: 'bWluZQ==' });
      for (let n = 0; n < 3; n++) {
        expect((await api.check('x')).verdict).toBe('deny');
        await isAvailable();
      }
      const { leases = [] } = await call(server, 'lease/leases');
      expect(before).toEqual(expect.arrayContaining([...leases])); // a lease of an earlier test may expire
    });

    test('a key that is too long is refused, and other keys are not', async () => {
      const api = shared(bucketLimit(1, 5));
      expect((await api.check('x')).verdict).toBe('allow');
      expect((await api.check('x'.repeat(3_000_000))).verdict).toBe('deny');
      expect((await api.check('x')).verdict).toBe('allow');
    });

    test('a key that is too long is no outage: it is refused for good with `allow` as well', async () => {
      const api = shared(bucketLimit(1, 5), { onUnavailable: 'allow' });
      const long = 'x'.repeat(40_000);
      expect(await api.check(long)).toEqual({ verdict: 'deny', retryAfterMs: Infinity });
      expect(await api.tryAcquire(long)).toMatchObject({ verdict: 'deny', reason: 'never' });
      expect(await api.takeUpTo(long, 5)).toBe(0);
      expect(api.stats().fallback).toBe(0);
    });

    test('skips a server that is down', async () => {
      const downAddress = `http://127.0.0.1:${await freePort()}`;
      const api = shared(bucketLimit(1, 1), { endpoints: [downAddress, addressOf(server)] });
      expect((await api.check('x')).verdict).toBe('allow');
    });

    test('giveBack counts once, also if the first server executed it and dropped its response', async () => {
      const proxy = await startProxy(addressOf(server));
      const api = shared(bucketLimit(0.001, 10), { endpoints: [proxy.address, addressOf(server)] });
      try {
        expect(await api.takeUpTo('x', 10)).toBe(10);
        proxy.dropsResponses = true;
        await api.giveBack('x', 1); // so little that the cached lease suffices
        expect((await api.inspect('x'))?.remaining).toBe(1);
      } finally {
        await proxy.stop();
      }
    });

    test('onUnavailable: allow fails open without etcd', async () => {
      const api = shared(bucketLimit(1, 1), { endpoints: UNREACHABLE, onUnavailable: 'allow' });
      expect((await api.check('x')).verdict).toBe('allow');
      expect((await api.acquire('x')).verdict).toBe('allow');
      expect(await api.takeUpTo('x', 5)).toBe(1);
      expect(api.stats()).toMatchObject({ isAvailable: false, fallback: 2 });
      expect(await api.inspect('x')).toBeUndefined();
    });
  });
}

describe('etcd options', () => {
  test.each([
    [{}, /`backend.endpoints` to be a list of 1 to 20 addresses, got undefined/],
    [{ endpoints: ['etcd:2379'] }, /`backend.endpoints\[0\]` to be an address .* got "etcd:2379"/],
    [
      { endpoints: ['http://a/b'] },
      /`backend.endpoints\[0\]` to be an address .* got "http:\/\/a\/b"/,
    ],
    [{ endpoints: ['http://me:secret@a'] }, /`backend.endpoints\[0\]` .* got "http:\/\/a"/],
    [
      { endpoints: UNREACHABLE, tls: { key: 5 } },
      /`backend.tls.key` to be a string or a Buffer, got another value/,
    ],
    [{ endpoints: UNREACHABLE, auth: { name: 'root' } }, /`backend.auth`.*got another value/],
    [
      { endpoints: UNREACHABLE, onUnavailable: 'local' },
      /`backend.onUnavailable` to be one of deny, allow/,
    ],
    [{ endpoints: UNREACHABLE, startTolerance: 0 }, /`backend.startTolerance`/],
    [{ endpoints: UNREACHABLE, user: 'root' }, /`backend.user`/],
  ])('refuses %o by name', (options, message) => {
    expect(() => etcd(options as never)).toThrow(message);
  });

  test('one endpoint may be a string', () => {
    expect(etcd({ endpoints: 'http://etcd:2379' }).isRemote).toBe(true);
    expect(() => etcd({ endpoints: 'etcd:2379' })).toThrow('`backend.endpoints[0]`');
  });

  test.each<[Limit, RegExp]>([
    [{ adaptive: {} }, /made of bucket, .*learns.*pool/],
    [{ busy: {} }, /made of bucket, .*learns.*each process/],
    [{ all: [bucketLimit(1, 1), { concurrency: 3 }] }, /alone when it counts calls in flight/],
    [
      { all: [bucketLimit(1, 1), { spacing: { every: 10, reserve: 2 } }] },
      /a spacing without `reserve` within `all`/,
    ],
  ])('refuses a limit that etcd cannot decide: %o', (limit, message) => {
    const backend = etcd({ endpoints: UNREACHABLE });
    expect(() => limiter({ limit, backend })).toThrow(message);
  });
});
