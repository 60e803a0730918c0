import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import { bucketLimit, remoteLimiterContract } from '../../../test/support/decider-contract.ts';
import {
  etcdServer,
  freePort,
  type Service,
  startEtcd,
  startEtcdCluster,
} from '../../../test/support/services.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { groups } from '../groups/options.ts';
import type { BorrowRequest } from '../groups/transport.ts';
import { type EtcdOptions, etcd } from './options.ts';

const addressOf = ({ port }: Service): string => `http://127.0.0.1:${port}`;

const NOBODY = ['http://127.0.0.1:1'];

/** Asks an etcd something, as its own tools would. */
async function call(server: Service, path: string, body: object = {}): Promise<Answered> {
  const init = { method: 'POST', body: JSON.stringify(body) };
  return (await fetch(`${addressOf(server)}/v3/${path}`, init)).json() as Promise<Answered>;
}

interface Answered {
  readonly kvs?: readonly { readonly key: string; readonly lease?: string }[];
  readonly leases?: readonly { readonly ID: string }[];
  readonly leader?: string;
  readonly header?: { readonly member_id: string };
  readonly TTL?: string;
}

const EVERYTHING = { key: 'AA==', range_end: 'AA==' };

/** A way to an etcd on which answers can be lost: what was asked is done. */
async function startWay(to: string) {
  const way = { address: '', losesAnswers: false, stop: async () => {} };
  const server = createServer(async (asked, answer) => {
    const body = await text(asked);
    const done = await fetch(to + asked.url, { method: 'POST', body });
    const said = await done.text();
    if (way.losesAnswers) asked.socket.destroy();
    else answer.writeHead(done.status).end(said);
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  way.address = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  way.stop = async () => {
    server.closeAllConnections();
    server.close();
    await once(server, 'close');
  };
  return way;
}

if (etcdServer() !== undefined) {
  describe('shared through etcd', () => {
    let server: Service;
    const made: RemoteLimiter[] = [];
    const shared = (limit: Limit, options: Partial<EtcdOptions> = {}, queue = {}) => {
      const backend = etcd({ endpoints: [addressOf(server)], ...options });
      const api = limiter({ name: 'api', limit, backend, queue });
      made.push(api);
      return api;
    };
    beforeAll(async () => {
      server = await startEtcd();
    });
    afterAll(() => server.stop());
    beforeEach(async () => {
      await call(server, 'kv/deleterange', EVERYTHING);
    });
    afterEach(async () => {
      for (const api of made.splice(0)) await api.close();
    });

    remoteLimiterContract({
      createShared: (limit, { isSecondProcess: _, deadlineMs, queue, ...options } = {}) =>
        shared(limit, { ...options, ...(deadlineMs && { deadline: deadlineMs }) }, queue),
      async whileUnavailable(act) {
        server.pause();
        try {
          await act();
        } finally {
          server.resume();
        }
      },
      deadlineMs: 700, // a disk that others write to, too, may take half a second
    });

    test('keeps a group’s bucket: what was stolen is in it, and what is above the line can be', async () => {
      const limit: Limit = { bucket: { rate: 0.001, burst: 40 } };
      const two = { a: {}, b: {} };
      const quiet = groups({ self: 'b', groups: two, transport: { borrow: async () => [] } });
      limiter({ name: 'api', limit, backend: quiet });
      const transport = {
        borrow: (_: string, wants: readonly BorrowRequest[]) => quiet.lend(wants),
      };
      const bucket = etcd({ endpoints: [addressOf(server)] });
      const place = groups({ self: 'a', groups: two, transport, bucket });
      const api = limiter({ name: 'api', limit, backend: place });
      made.push(api);
      expect(await place.lend([{ limit: 'api', key: 'k', units: 25 }])).toEqual([10]);
      let got = 0;
      while ((await api.check('k')).verdict === 'allow') got++;
      expect(got).toBeGreaterThanOrEqual(10);
      await vi.waitFor(async () => {
        if ((await api.check('k')).verdict === 'allow') got++;
        expect(got).toBe(20); // its own half, and what the other had above its line
      }, 10_000);
      expect(quiet.view().lent).toBe(10);
      place.close();
    });

    test('keys disappear by themselves, many with one lease', async () => {
      const api = shared(bucketLimit(10, 2));
      await Promise.all(Array.from({ length: 20 }, (_, n) => api.check(`key ${n}`)));
      const { kvs = [] } = await call(server, 'kv/range', EVERYTHING);
      expect(kvs.length).toBe(20);
      const leases = new Set(kvs.map(({ lease }) => lease));
      expect([...leases]).toEqual([expect.stringMatching(/^\d+$/)]);
      const [ID] = leases;
      const { TTL } = await call(server, 'lease/timetolive', { ID });
      expect(Number(TTL)).toBeGreaterThan(50);
      expect(Number(TTL)).toBeLessThanOrEqual(64);
      await call(server, 'lease/revoke', { ID });
      expect((await call(server, 'kv/range', EVERYTHING)).kvs ?? []).toEqual([]);
      // Who does not know that its lease is gone is refused once, and asks for another.
      await api.check('key 1');
      await vi.waitFor(async () => expect((await api.check('key 1')).verdict).toBe('allow'));
    });

    test('a state that matters for long has a lease that lasts', async () => {
      await shared({ spacing: { every: '1h' } }).check('x');
      const { kvs = [] } = await call(server, 'kv/range', EVERYTHING);
      const { TTL } = await call(server, 'lease/timetolive', { ID: kvs[0].lease });
      expect(Number(TTL)).toBeGreaterThan(3600);
    });

    test('limits of other names and kinds, and keys with slashes, are apart', async () => {
      const backend = etcd({ endpoints: [addressOf(server)] });
      const limit = bucketLimit(0.01, 1);
      const names = ['a/b', 'a', 'a%2Fb'].map((name) => limiter({ name, limit, backend }));
      const nameless = limiter({ limit, backend });
      made.push(...names, nameless);
      for (const api of made) {
        for (const key of ['', 'b/bucket/', 'x'.repeat(10_000), '🔑'])
          expect((await api.check(key)).verdict).toBe('allow');
      }
      expect((await nameless.check('')).verdict).toBe('deny');
    });

    test('what somebody else keeps under a key stays', async () => {
      const key = btoa('/sluice/limits/api/bucket/x');
      await call(server, 'kv/put', { key, value: btoa('mine') });
      expect((await shared(bucketLimit(1, 1)).check('x')).verdict).toBe('deny');
      const { kvs } = await call(server, 'kv/range', { key });
      expect(kvs).toMatchObject([{ value: btoa('mine') }]);
    });

    test('and costs no lease, however often it is asked for', async () => {
      const api = shared(bucketLimit(1000, 1000));
      const isBack = () =>
        vi.waitFor(async () => expect((await api.check('fine')).verdict).toBe('allow'));
      await isBack();
      const { leases: before = [] } = await call(server, 'lease/leases');
      await call(server, 'kv/put', { key: btoa('/sluice/limits/api/bucket/x'), value: 'bWluZQ==' });
      for (let n = 0; n < 3; n++) {
        expect((await api.check('x')).verdict).toBe('deny');
        await isBack();
      }
      expect((await call(server, 'lease/leases')).leases).toEqual(before);
    });

    test('a key that is too long is refused, and others are not', async () => {
      const api = shared(bucketLimit(1, 5));
      expect((await api.check('x')).verdict).toBe('allow');
      expect((await api.check('x'.repeat(3_000_000))).verdict).toBe('deny');
      expect((await api.check('x')).verdict).toBe('allow');
    });

    test('a server that is not there is passed over', async () => {
      const gone = `http://127.0.0.1:${await freePort()}`;
      const api = shared(bucketLimit(1, 1), { endpoints: [gone, addressOf(server)] });
      expect((await api.check('x')).verdict).toBe('allow');
    });

    test('what is given back comes back once, also if a server did it and died before it said so', async () => {
      const way = await startWay(addressOf(server));
      const api = shared(bucketLimit(0.001, 10), { endpoints: [way.address, addressOf(server)] });
      try {
        expect(await api.takeUpTo('x', 10)).toBe(10);
        way.losesAnswers = true;
        await api.giveBack('x', 1); // so little that the lease will do
        expect((await api.inspect('x'))?.remaining).toBe(1);
      } finally {
        await way.stop();
      }
    });

    test('whoever would rather not be strict is let through while there is nobody to decide', async () => {
      const api = shared(bucketLimit(1, 1), { endpoints: NOBODY, onUnavailable: 'allow' });
      expect((await api.check('x')).verdict).toBe('allow');
      expect((await api.acquire('x')).verdict).toBe('allow');
      expect(await api.takeUpTo('x', 5)).toBe(1);
      expect(api.stats()).toMatchObject({ isAvailable: false, fallback: 2 });
      expect(await api.inspect('x')).toBeUndefined();
    });
  });

  describe('shared through three servers that are one etcd', () => {
    let members: Service[];
    let api: RemoteLimiter;
    const DEADLINE_MS = 900;
    beforeEach(async () => {
      members = await startEtcdCluster();
      const backend = etcd({ endpoints: members.map(addressOf), deadline: DEADLINE_MS });
      api = limiter({ name: 'api', limit: { spacing: { every: 10 } }, backend });
      expect((await api.check('x')).verdict).toBe('allow');
    }, 60_000);
    afterEach(async () => {
      await api?.close();
      await Promise.all(members.map((member) => member.stop()));
    });

    const leader = async (): Promise<Service> => {
      for (const member of members) {
        const { leader: id, header } = await call(member, 'maintenance/status');
        if (id === header?.member_id) return member;
      }
      throw new Error('nobody leads');
    };

    const isServed = (): Promise<void> =>
      vi.waitFor(
        async () => {
          const entry = await api.acquire('x', 1, { wait: 1000 });
          expect(entry.verdict).toBe('allow');
        },
        { timeout: 10_000, interval: 10 },
      );

    test.each(['kill', 'pause'] as const)(
      'the leader may be lost: %s',
      async (how) => {
        const lost = await leader();
        await lost[how]();
        await isServed();
        if (how === 'kill') await lost.restart();
        else lost.resume();
        await isServed();
      },
      60_000,
    );

    test('without a quorum everybody is refused within the deadline, until there is one', async () => {
      await members[1].kill();
      await members[2].kill();
      for (let n = 0; n < 20; n++) {
        const since = performance.now();
        const asks = [api.check('x'), api.check('new'), api.tryAcquire('y')];
        for (const { verdict } of await Promise.all(asks)) expect(verdict).toBe('deny');
        expect(performance.now() - since).toBeLessThan(DEADLINE_MS + 200);
      }
      await members[2].restart();
      await isServed();
    }, 60_000);
  });
}

describe('etcd', () => {
  test.each([
    [{}, /`backend.endpoints` to be 1 to 20 addresses, got undefined/],
    [{ endpoints: ['etcd:2379'] }, /`backend.endpoints\[0\]` to be an address .* got "etcd:2379"/],
    [
      { endpoints: ['http://a/b'] },
      /`backend.endpoints\[0\]` to be an address .* got "http:\/\/a\/b"/,
    ],
    [{ endpoints: ['http://me:secret@a'] }, /`backend.endpoints\[0\]` .* got "http:\/\/a"/],
    [
      { endpoints: NOBODY, tls: { key: 5 } },
      /`backend.tls.key` to be a text or a Buffer, got "somet/,
    ],
    [{ endpoints: NOBODY, auth: { name: 'root' } }, /`backend.auth`.*got "something else"/],
    [
      { endpoints: NOBODY, onUnavailable: 'local' },
      /`backend.onUnavailable` to be one of deny, allow/,
    ],
    [{ endpoints: NOBODY, startTolerance: 0 }, /`backend.startTolerance`/],
    [{ endpoints: NOBODY, user: 'root' }, /`backend.user`/],
  ])('names options that make no sense: %o', (options, message) => {
    expect(() => etcd(options as never)).toThrow(message);
  });

  test.each([
    { ramp: { min: 1, max: 2, over: '1m' } },
    { adaptive: {} },
    { busy: {} },
    { all: [bucketLimit(1, 1)] },
  ])('and limits that it cannot decide: %o', (limit) => {
    const backend = etcd({ endpoints: NOBODY });
    expect(() => limiter({ limit: limit as Limit, backend })).toThrow(
      /`limit` to be a bucket or a spacing/,
    );
  });
});
