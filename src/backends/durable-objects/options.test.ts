import { describe, expect, test } from 'vitest';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { groups } from '../groups/options.ts';
import { type DurableObjectsOptions, durableObjects } from './options.ts';
import type { ObjectNamespace } from './platform.ts';

const namespace: ObjectNamespace = {
  idFromName: (name) => ({ name }),
  get: () => ({ fetch: () => Promise.reject(new Error('down')) }),
};

const create = (limit: Limit, options?: DurableObjectsOptions) =>
  limiter({ limit, backend: durableObjects(namespace, options) });

describe('durableObjects', () => {
  test.each([
    [{ deadlin: 1 }, 'did you mean `deadline`?'],
    [{ deadline: 0 }, '`backend.deadline` to be a duration'],
    [{ onUnavailable: 'open' }, '`backend.onUnavailable` to be one of'],
    [{ shards: 0 }, '`backend.shards` to be a whole number'],
    [{ shards: 10_001 }, '`backend.shards` to be a whole number'],
    [{ writeDelay: 'soon' }, '`backend.writeDelay` to be a duration'],
    [{ leaseTimeout: -1 }, '`backend.leaseTimeout` to be a duration'],
    [{ locationHint: 1 }, '`backend.locationHint` to be a string'],
    [{ waitUntil: true }, '`backend.waitUntil` to be a function'],
  ])('%j is refused', (options, message) => {
    expect(() => durableObjects(namespace, options as never)).toThrow(message);
  });

  test.each([undefined, {}, { idFromName: () => ({}) }, 'LIMITS'])(
    'no binding: %j is refused',
    (value) => {
      expect(() => durableObjects(value as never)).toThrow('such as env.LIMITS');
    },
  );

  test('a limit that objects cannot decide is refused when the limiter is created', () => {
    expect(() => create({ concurrency: 1001 })).toThrow('at most 1000 calls in flight');
    const local = { onUnavailable: 'local' } as const;
    expect(() => create({ concurrency: 10 }, local)).toThrow('deny or allow for a limit on calls');
    const two = { a: {}, b: {} };
    const transport = { borrow: async () => [] };
    const group = () =>
      groups({ self: 'a', groups: two, transport, bucket: durableObjects(namespace) });
    expect(() =>
      limiter({ name: 'api', limit: { bucket: { rate: 1, burst: 9 } }, backend: group() }),
    ).toThrow('a whole limit when Durable Objects decide it');
  });

  test('an unreachable object: the first call opens its breaker, and only its own', async () => {
    const down = new Set(['["api","a"]']);
    const calls: string[] = [];
    const reply = {
      protocol: 'sluice-1',
      at: 1,
      replies: [{ decision: { verdict: 'allow', remaining: 1 } }],
    };
    const some: ObjectNamespace = {
      idFromName: (name) => ({ name }),
      get: (id) => ({
        fetch: async () => {
          const { name } = id as { name: string };
          calls.push(name);
          if (down.has(name)) throw new Error('down');
          return { status: 200, text: async () => JSON.stringify(reply) };
        },
      }),
    };
    const backend = durableObjects(some, { onUnavailable: 'deny' });
    const api = limiter({ name: 'api', limit: { bucket: { rate: 1, burst: 2 } }, backend });
    for (let n = 0; n < 3; n++)
      expect(await api.tryAcquire('a')).toMatchObject({ verdict: 'deny', reason: 'unavailable' });
    expect(calls).toEqual(['["api","a"]']);
    expect((await api.check('b')).verdict).toBe('allow');
    expect(api.stats()).toMatchObject({ isAvailable: false, fallback: 3 });
    await api.close();
  });

  test.each<[Limit, string]>([
    [{ bucket: { rate: 1, burst: 1 } }, 'allow'],
    [{ spacing: { every: '1s' } }, 'deny'],
    [{ concurrency: 1 }, 'deny'],
  ])('%j: without onUnavailable the decision is %s', async (limit, verdict) => {
    const api = create(limit);
    expect((await api.tryAcquire('k')).verdict).toBe(verdict);
    await api.close();
  });

  test('changes in quick succession are in their order, although the estimated clock of objects jumps', async () => {
    const sinces: number[] = [];
    let ahead = 0;
    const jumping: ObjectNamespace = {
      idFromName: (name) => ({ name }),
      get: () => ({
        fetch: async (_, { body }) => {
          sinces.push(Number(JSON.parse(body).since));
          ahead -= 50;
          const decision = { verdict: 'allow', remaining: 1 };
          const reply = { protocol: 'sluice-1', at: 1e6 + ahead, replies: [{ decision }] };
          return { status: 200, text: async () => JSON.stringify(reply) };
        },
      }),
    };
    const bucket = (burst: number): Limit => ({ bucket: { rate: 1, burst } });
    const clock = { now: () => 1e6 };
    const api = limiter({ name: 'api', limit: bucket(1), backend: durableObjects(jumping), clock });
    for (const burst of [2, 3, 4]) {
      await api.check('k');
      await api.change(bucket(burst));
    }
    await api.check('k');
    expect(sinces.slice(2)).toEqual(sinces.slice(2).toSorted((x, y) => x - y));
    expect(new Set(sinces).size).toBe(4);
    await api.close();
  });

  test('a key that is too long is refused for good, also while objects are unavailable', async () => {
    const api = create({ bucket: { rate: 1 } }, { onUnavailable: 'allow' });
    expect(await api.check('k'.repeat(501))).toEqual({ verdict: 'deny', retryAfterMs: Infinity });
    expect((await api.check('k'.repeat(500))).verdict).toBe('allow');
    await api.close();
  });
});
