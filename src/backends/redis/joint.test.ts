import { describe, expect, test, vi } from 'vitest';
import { borrowEtcd } from '../../../test/support/borrowed-servers.ts';
import { whilePaused } from '../../../test/support/paused.ts';
import { nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { etcdServer, redisServer } from '../../../test/support/services.ts';
import { OUTAGE_DEADLINE_MS } from '../../../test/support/wait-timeout.ts';
import { seededRandom } from '../../core/random.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { all } from '../../limiter/composite-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Permit, Refusal } from '../../limiter/permit.ts';
import { createPolicy, type Limit } from '../../policies/limit.ts';
import { etcd } from '../etcd/options.ts';
import type { RemoteBackendFactory } from '../remote-backend.ts';
import { RESERVATION_TTL_MS } from './lua-reservations.ts';
import { redis } from './options.ts';

/** A bucket that does not refill during a test. */
const fixed = (burst: number): Limit => ({ bucket: { rate: '1/365d', burst } });

describe.skipIf(redisServer() === undefined)('all of limits in Redis', () => {
  const fixture = redisFixture(nodeRedis);

  const shared = fixture.createShared;
  const calls = (): number => {
    const text = fixture.cli('INFO', 'commandstats');
    const count = (name: string) =>
      Number(new RegExp(`cmdstat_${name}:calls=(\\d+)`).exec(text)?.[1] ?? 0);
    return count('eval') + count('evalsha');
  };
  const leftOf = async (api: RemoteLimiter, key: string) => (await api.inspect(key))?.remaining;
  const settle = (entry: Permit | Refusal) => entry.verdict === 'allow' && entry.settle();

  test('check: the limits of one server take one call, also for several checks of one tick', async () => {
    const backends = [fixed(50), fixed(99), { concurrency: 60 }, { spacing: { every: 1 } }];
    const parts = backends.map((limit, n) => shared(`part-${n}`, limit as Limit));
    const [user, total, flights, spacing] = parts;
    const api = all([user, { limiter: total, key: '*' }, flights, { limiter: spacing, cost: 0 }]);
    await api.check('warm-up', 1, { willSettle: true });
    const before = calls();
    const keys = Array.from({ length: 20 }, (_, n) => `k${n}`);
    const decisions = await Promise.all(keys.map((key) => api.check(key, 1, { willSettle: true })));
    expect(calls() - before).toBe(1);
    expect(decisions.every(({ verdict }) => verdict === 'allow')).toBe(true);
    expect(await leftOf(total, '*')).toBe(78);
  });

  test.each([1e9, Number.MAX_SAFE_INTEGER])(
    'concurrency: a cost of %d is refused, and Redis goes on',
    async (cost) => {
      const flights = shared('flights', { concurrency: 3 });
      const never = { verdict: 'deny', retryAfterMs: Infinity };
      expect(await flights.check('k', cost, { willSettle: true })).toMatchObject(never);
      expect(
        await all([flights, shared('total', fixed(5))]).check('k', cost, { willSettle: true }),
      ).toMatchObject(never);
      expect(flights.stats().isAvailable).toBe(true);
      expect(fixture.cli('PING')).toBe('PONG');
    },
  );

  test.each(['takePrefetched', 'reserve', 'chargeTogether'] as const)(
    'a backend whose %s throws: what other limits gave comes back',
    async (method) => {
      const given = shared('given', fixed(9), { prefetch: 9 });
      await given.check('k');
      const inner = redis(fixture.secondClient.client, { deadline: '5s' });
      const fail = () => {
        throw new Error('out of order');
      };
      const create: RemoteBackendFactory['create'] = (...parts) =>
        Object.assign(inner.create(...parts), { [method]: fail });
      const failing = limiter({
        name: 'failing',
        limit: fixed(9),
        backend: { isRemote: true, create },
      });
      const beside = shared('beside', fixed(9));
      await expect(all([given, failing, beside]).check('k')).rejects.toThrow('out of order');
      const decisions = Array.from({ length: 9 }, () => given.check('k'));
      const allowed = (await Promise.all(decisions)).filter(({ verdict }) => verdict === 'allow');
      expect(allowed.length).toBe(8);
      expect(await leftOf(beside, 'k')).toBe(9);
      await failing.close();
    },
  );

  const GUARDED: Limit = {
    all: [fixed(1), { lockout: { on: 'refusal', after: 2, within: '1h', lock: '1h' } }],
  };

  test('lockout on refusals: a waiting call with parts on two connections is no refusal while it waits', async () => {
    const guarded = shared('guarded', GUARDED);
    const api = all([guarded, shared('total', fixed(100), {}, true)]);
    const permit = await api.tryAcquire('k');
    const waiting = api.acquire('k', 1, { wait: '1000d' });
    await vi.waitFor(() => expect(api.stats().waiting).toBe(1));
    settle(permit);
    for (let trip = 0; trip < 9; trip++) await api.peek('k'); // it is checked again meanwhile
    expect(await guarded.inspect('k')).toMatchObject({ failures: 0 });
    await api.giveBack('k', 1);
    expect((await waiting).verdict).toBe('allow');
  });

  test('change: a part that cannot change leaves the others as they are', async () => {
    const [first, second] = [shared('first', fixed(5)), shared('second', fixed(5))];
    const api = all([first, { limiter: second, key: '*' }]);
    await api.check('k');
    const limits = { first: fixed(100), second: { spacing: { every: '1s' } } as Limit };
    await expect(api.change(limits)).rejects.toThrow('limit.second');
    expect(await leftOf(first, 'k')).toBe(4);
  });

  test('check: names the limit with the longest wait, and counts in each component', async () => {
    const slow = shared('slow', { bucket: { rate: '1/h', burst: 1 } });
    const fast = shared('fast', { bucket: { rate: '1/m', burst: 1 } });
    const api = all([fast, slow]);
    expect(await api.check('k')).toEqual({ verdict: 'allow', remaining: 0 });
    expect(await api.tryAcquire('k')).toMatchObject({ limit: 'slow', reason: 'not-now' });
    expect(await api.check('k', 2)).toEqual({ verdict: 'deny', retryAfterMs: Infinity });
    expect([fast.stats().allowed, slow.stats().allowed, slow.stats().denied]).toEqual([1, 1, 1]);
    expect(api.stats()).toMatchObject({ allowed: 2, denied: 2, isAvailable: true, waiting: 0 });
  });

  test('concurrency: a weight counts as many calls in flight, alone and within all', async () => {
    const flights = shared('flights', { concurrency: 10 });
    const bucket = shared('bucket', fixed(10));
    const alone = await flights.tryAcquire('k', 4);
    const api = all([bucket, { limiter: flights, cost: (cost) => 3 * cost }]);
    const joint = await api.tryAcquire('k', 2);
    expect(joint).toMatchObject({ verdict: 'allow', remaining: 0 });
    expect(await api.tryAcquire('k', 1)).toMatchObject({ limit: 'flights', retryAfterMs: 0 });
    expect(await api.tryAcquire('k', 4)).toMatchObject({ limit: 'flights', reason: 'never' });
    expect([await leftOf(flights, 'k'), await leftOf(bucket, 'k')]).toEqual([0, 8]);
    settle(joint);
    await vi.waitFor(async () => expect(await leftOf(flights, 'k')).toBe(6));
    settle(alone);
    await vi.waitFor(async () => expect(await leftOf(flights, 'k')).toBe(10));
  });

  test('prefetch: tokens in this process are spent, and put back when another limit refuses', async () => {
    const quick = shared('quick', fixed(100), { prefetch: 20 });
    const strict = shared('strict', fixed(5));
    const api = all([quick, strict]);
    await api.check('k');
    const before = calls();
    for (let n = 0; n < 4; n++) expect((await api.check('k')).verdict).toBe('allow');
    expect(calls() - before).toBe(4); // of `strict` alone
    for (let n = 0; n < 40; n++) expect((await api.check('k')).verdict).toBe('deny');
    await quick.close(); // returns the tokens that are left
    expect(await leftOf(shared('quick', fixed(100)), 'k')).toBe(95);
  });

  test('quota, window and lockout: are charged together, or not at all', async () => {
    const parts = [
      shared('quota', { quota: { limit: 4, per: 'month' } }),
      shared('window', { window: { limit: 3, per: '365d' } }),
      shared('lockout', { lockout: { after: 9, lock: '1m', on: 'failure' } }),
    ];
    const [quota, window, lockout] = parts;
    for (const two of [all([quota, window]), all([window, lockout])]) {
      const verdicts = [];
      for (let n = 0; n < 4; n++) verdicts.push((await two.check('k')).verdict);
      expect(verdicts).toEqual(['allow', 'allow', 'allow', 'deny']);
      await window.giveBack('k', 3);
    }
    expect([await leftOf(quota, 'k'), await leftOf(window, 'k')]).toEqual([1, 3]);
    await all(parts).report('k', 'success');
    await all(parts).change({ window: { window: { limit: 5, per: '365d' } } });
    expect(await leftOf(window, 'k')).toBe(5);
    expect((await all([window, shared('one', fixed(9))]).check('k', 5)).verdict).toBe('allow');
    await expect(all(parts).change({ windo: { concurrency: 1 } })).rejects.toThrow('window');
  });

  test('local limiter: is charged with a limit in Redis, or not at all', async () => {
    const local = limiter({ name: 'local', limit: fixed(3) });
    const far = shared('far', fixed(2));
    const api = all([local, far]);
    const verdicts = [await api.check('k'), await api.check('k'), await api.check('k')];
    expect(verdicts.map(({ verdict }) => verdict)).toEqual(['allow', 'allow', 'deny']);
    expect(local.inspect('k').remaining).toBe(1);
    local.check('k');
    expect(await api.tryAcquire('k')).toMatchObject({ limit: 'local' });
    expect(await leftOf(far, 'k')).toBe(0);
  });

  test('acquire: waits for the limit that refuses, in order of arrival', async () => {
    const flights = shared('flights', { concurrency: 1 });
    const api = all([flights, shared('bucket', fixed(100))]);
    const order: number[] = [];
    const run = async (n: number) => {
      const entry = await api.acquire('k', 1, { wait: '5s' });
      order.push(n);
      settle(entry);
    };
    await Promise.all(Array.from({ length: 10 }, (_, n) => run(n)));
    expect(order).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    const held = await api.tryAcquire('k');
    expect(await api.acquire('k', 1, { wait: 30 })).toMatchObject({
      reason: 'too-long',
      limit: 'flights',
    });
    const abort = new AbortController();
    const waiting = api.acquire('k', 1, { signal: abort.signal });
    abort.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
    settle(held);
    await vi.waitFor(async () => expect(await leftOf(flights, 'k')).toBe(1));
    expect(api.stats().waiting).toBe(0);
  });

  test('takeUpTo, giveBack, settle, update, peek and close: reach every component', async () => {
    const one = shared('one', fixed(5));
    const other = shared('other', fixed(3));
    const api = all([one, { limiter: other, key: '*' }], { name: 'both' });
    expect(await api.takeUpTo('k', 10)).toBe(3);
    expect(await leftOf(one, 'k')).toBe(2);
    await api.giveBack('k', 2);
    expect(await api.peek('k', 2)).toEqual({ verdict: 'allow', remaining: 0 });
    expect((await api.peek('k', 3))?.verdict).toBe('deny');
    await api.settle('k', { used: 2 });
    expect((await api.inspect('k'))?.rules.map(({ remaining }) => remaining)).toEqual([3, 1]);
    expect(await api.update('k', { hits: 1 })).toBe(true);
    expect(await api.inspect('k')).toMatchObject({ name: 'both', by: 'other', remaining: 0 });
    await expect(all([one, { limiter: other, cost: 2 }]).takeUpTo('k', 1)).rejects.toThrow('cost');
    await api.close();
    expect(await api.tryAcquire('k')).toMatchObject({ reason: 'closed' });
    expect(await api.acquire('k', 1, { wait: 10 })).toMatchObject({ reason: 'closed' });
  });

  test('outage: each fallback decides, and what one granted is taken back when another refuses', async () => {
    const open = shared('open', fixed(4), { onUnavailable: 'local', deadline: OUTAGE_DEADLINE_MS });
    const closed = shared('closed', fixed(4), {
      onUnavailable: 'deny',
      deadline: OUTAGE_DEADLINE_MS,
    });
    const both = all([open, closed]);
    await both.check('k');
    await whilePaused(fixture.service, async () => {
      for (let n = 0; n < 5; n++)
        expect(await both.tryAcquire('k')).toMatchObject({
          limit: 'closed',
          reason: 'unavailable',
        });
      const verdicts = [];
      for (let n = 0; n < 4; n++) verdicts.push((await open.check('k')).verdict);
      expect(verdicts).toEqual(['allow', 'allow', 'allow', 'deny']);
      expect(both.stats()).toMatchObject({ isAvailable: false });
      expect(both.stats().fallback).toBeGreaterThan(5);
    });
  });

  describe('two steps, for limits on different servers', () => {
    const pair = (first: Limit, second: Limit) => {
      const a = shared('a', first);
      const b = shared('b', second, {}, true);
      return { a, b, api: all([a, b]) };
    };

    test('a refusal in the second step charges nothing in the first', async () => {
      const { a, b, api } = pair(fixed(9), fixed(2));
      for (let n = 0; n < 6; n++) await api.check('k');
      expect([await leftOf(a, 'k'), await leftOf(b, 'k')]).toEqual([7, 0]);
    });

    test('a plain check counts reservations, and sees those that expired as returned', async () => {
      const { a } = pair(fixed(3), fixed(3));
      fixture.cli('FLUSHALL');
      const backend = (a as unknown as { backend: RedisLike }).backend;
      expect((await backend.reserve('k', 2)).reservationId).toBeDefined();
      const lost = await backend.reserve('k', 1);
      expect((await a.check('k')).verdict).toBe('deny');
      expect(await backend.confirm('k', lost.reservationId ?? '')).toBe(true);
      await vi.waitFor(async () => expect(await leftOf(a, 'k')).toBe(2), {
        timeout: RESERVATION_TTL_MS + 10_000,
        interval: 100,
      });
      expect((await a.check('k', 2)).verdict).toBe('allow');
      expect((await a.check('k')).verdict).toBe('deny');
    });

    test('confirm and cancel may be sent twice, in any order', async () => {
      const { a } = pair(fixed(9), fixed(9));
      const backend = (a as unknown as { backend: RedisLike }).backend;
      const { reservationId: id = '' } = await backend.reserve('k', 4);
      expect([await backend.confirm('k', id), await backend.confirm('k', id)]).toEqual([
        true,
        true,
      ]);
      await backend.cancel('k', id);
      await backend.cancel('k', id);
      expect(await leftOf(a, 'k')).toBe(9);
      expect(await backend.confirm('k', id)).toBe(false);
      const { reservationId: other = '' } = await backend.reserve('k', 4);
      await backend.cancel('k', other);
      expect([await backend.confirm('k', other), await leftOf(a, 'k')]).toEqual([false, 9]);
    });

    test('a bucket that refills at once keeps its reservation until it is confirmed', async () => {
      const { api } = pair({ bucket: { rate: 1000, burst: 5 } }, { spacing: { every: 1 } });
      for (let n = 0; n < 20; n++) {
        const entry = await api.acquire('k', 1, { wait: '30s' });
        expect(entry.verdict).toBe('allow');
      }
    });

    test.skipIf(etcdServer() === undefined)(
      'with etcd: a refusal of either charges neither',
      async () => {
        const server = await borrowEtcd();
        try {
          const endpoints = [`http://127.0.0.1:${server.port}`];
          const make = (burst: number, name: string): RemoteLimiter => {
            const backend = etcd({ endpoints, deadline: '5s' });
            const made = limiter({ name, limit: fixed(burst), backend });
            fixture.limiters.push(made);
            return made;
          };
          const wide = make(9, 'wide');
          const narrow = make(2, 'narrow');
          const far = shared('far', fixed(5));
          const local = limiter({ name: 'near', limit: fixed(20) });
          for (let n = 0; n < 4; n++) await all([wide, local, narrow, far]).check('k');
          const left = async () => [await leftOf(wide, 'k'), await leftOf(far, 'k')];
          expect([await leftOf(narrow, 'k'), ...(await left())]).toEqual([0, 7, 3]);
          for (let n = 0; n < 5; n++) await all([wide, far]).check('k');
          expect(await left()).toEqual([4, 0]);
          expect(local.inspect('k').remaining).toBe(18);
        } finally {
          await server.stop();
        }
      },
      20_000,
    );

    test('of two calls for the last units of both limits, one succeeds', async () => {
      for (let round = 0; round < 10; round++) {
        const { api } = pair(fixed(1), fixed(1));
        const reversed = all([shared('b', fixed(1)), shared('a', fixed(1), {}, true)]);
        const key = `round-${round}`;
        const both = await Promise.all([api.check(key), reversed.check(key)]);
        expect(both.map(({ verdict }) => verdict).sort()).toEqual(['allow', 'deny']);
      }
    });
  });

  interface RedisLike {
    reserve(key: string, cost: number): Promise<{ readonly reservationId?: string }>;
    confirm(key: string, id: string): Promise<boolean>;
    cancel(key: string, id: string): Promise<void>;
  }

  /** Limits that only fill up during a test, so that a refused call is always refused. */
  const LIMITS: readonly Limit[] = [
    fixed(7),
    fixed(20),
    { all: [fixed(9), fixed(12)] },
    { spacing: { every: '365d' } },
    { concurrency: 8 },
    { window: { limit: 9, per: '365d' } },
  ];

  test.each([1, 2, 3, 4, 5, 6])(
    'several clients: admitted is exactly what an oracle admits, and a refusal charges nothing (seed %i)',
    async (seed) => {
      const random = seededRandom(seed);
      const pick = (count: number) => Math.floor(random() * count);
      const limits = LIMITS.filter(() => random() < 0.7);
      const chosen = limits.length > 1 ? limits : LIMITS.slice(0, 2);
      // Keys and costs of a part are functions of the call's: separate, shared by two parts, or one for all.
      const parts = chosen.map((limit, n) => ({
        limit,
        name: `limit-${n}`,
        keyOf: [(key: string) => key, (key: string) => key.slice(0, 1), () => '*'][pick(3)],
        costOf: [(cost: number) => cost, () => 1, (cost: number) => 2 * cost][pick(3)],
      }));
      const clients = [false, true].map((isSecond) => {
        const limiters = parts.map(({ name, limit }) => shared(name, limit, {}, isSecond));
        return all(
          parts.map(({ keyOf, costOf }, n) => ({ limiter: limiters[n], key: keyOf, cost: costOf })),
        );
      });
      const questions = Array.from({ length: 150 }, () => ({
        api: clients[pick(2)],
        key: ['a1', 'a2', 'b1', 'b2'][pick(4)],
        cost: pick(4),
      }));
      const entries: { key: string; cost: number; entry: Permit | Refusal }[] = [];
      for (let n = 0; n < questions.length; n += 30) {
        const asked = questions.slice(n, n + 30).map(async ({ api, key, cost }) => {
          entries.push({ key, cost, entry: await api.tryAcquire(key, cost) });
        });
        await Promise.all(asked);
      }

      // The oracle is the rule in this process, with the admitted calls at their instants on Redis's clock.
      const states = new Map<string, Float64Array>();
      const policies = parts.map(({ limit }) => createPolicy(limit, random));
      const check = (n: number, key: string, cost: number, at: number, isPeek: boolean) => {
        const policy = policies[n];
        const id = `${n} ${parts[n].keyOf(key)}`;
        const state = states.get(id) ?? new Float64Array(policy.width);
        if (!states.has(id)) policy.init(state, 0, at);
        if (!isPeek) states.set(id, state);
        return policy.check(isPeek ? state.slice() : state, 0, parts[n].costOf(cost), at).verdict;
      };
      const dueAt = ({ entry }: { entry: Permit | Refusal }) =>
        entry.verdict === 'allow' ? entry.dueAt : Infinity;
      const admitted = entries.filter(({ entry }) => entry.verdict === 'allow');
      let last = 0;
      for (const call of admitted.sort((a, b) => dueAt(a) - dueAt(b))) {
        last = dueAt(call);
        for (const n of parts.keys())
          expect(check(n, call.key, call.cost, last, false)).toBe('allow');
      }
      const refused = entries.filter(({ entry }) => entry.verdict === 'deny');
      for (const { key, cost } of refused) {
        const verdicts = parts.map((_, n) => check(n, key, cost, last, true));
        expect(verdicts).toContain('deny');
      }
      expect(Math.min(admitted.length, refused.length)).toBeGreaterThan(0);
      for (const [id, state] of states) {
        const [n, key] = id.split(' ');
        const policy = policies[Number(n)];
        const left = policy.available(state, 0, last);
        const far = shared(parts[Number(n)].name, parts[Number(n)].limit);
        expect([id, await leftOf(far, key)]).toEqual([id, left]);
      }
    },
  );

  test("limits that refill: a call is admitted exactly when an oracle on Redis's clock admits it", async () => {
    const random = seededRandom(11);
    const { client } = fixture.firstClient as {
      client: { sendCommand(words: string[]): Promise<string[]> };
    };
    const redisTime = async (): Promise<number> => {
      const [seconds, micros] = await client.sendCommand(['TIME']);
      return Number(seconds) * 1000 + Number(micros) / 1000;
    };
    const limits: readonly Limit[] = [
      { bucket: { rate: 150, burst: 6 } },
      { all: [{ bucket: { rate: 250, burst: 3 } }, { bucket: { rate: 100, burst: 9 } }] },
      { spacing: { every: 8 } },
    ];
    const keyOf = [(key: string) => key, () => '*', (key: string) => key];
    const costOf = [(cost: number) => cost, (cost: number) => cost, () => 1];
    const clients = [false, true].map((isSecond) =>
      all(
        limits.map((limit, n) => {
          const part = shared(`refilled-${n}`, limit, {}, isSecond);
          return { limiter: part, key: keyOf[n], cost: costOf[n] };
        }),
      ),
    );
    const policies = limits.map((limit) => createPolicy(limit, random));
    const states = new Map<string, Float64Array>();
    /** Whether all parts allow at this instant; they are charged unless it is a peek. */
    const admits = (key: string, cost: number, at: number, isPeek: boolean): boolean => {
      const verdicts = policies.map((policy, n) => {
        const id = `${n} ${keyOf[n](key)}`;
        const state = states.get(id)?.slice() ?? new Float64Array(policy.width);
        if (!states.has(id)) policy.init(state, 0, at);
        const { verdict } = policy.check(state, 0, costOf[n](cost), at);
        if (!isPeek) states.set(id, state);
        return verdict;
      });
      return verdicts.every((verdict) => verdict === 'allow');
    };
    let [admitted, refused] = [0, 0];
    for (let n = 0; n < 300; n++) {
      const key = ['a', 'b'][n % 2];
      const cost = Math.floor(4 * random());
      const sentAt = await redisTime();
      const entry = await clients[Math.floor(2 * random())].tryAcquire(key, cost);
      if (entry.verdict === 'allow') {
        admitted++;
        expect(admits(key, cost, entry.dueAt, false)).toBe(true);
      } else {
        refused++;
        expect(admits(key, cost, sentAt, true)).toBe(false); // it did not fit when it was sent
      }
    }
    expect(Math.min(admitted, refused)).toBeGreaterThan(10);
  });
});
