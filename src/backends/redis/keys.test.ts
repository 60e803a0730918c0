import { createClient, RESP_TYPES } from 'redis';
import { describe, expect, test, vi } from 'vitest';
import { nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../test/support/services.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { redis } from './options.ts';

describe.skipIf(redisServer() === undefined)('redis keys', () => {
  const fixture = redisFixture(nodeRedis);

  function shared(limit: Limit, name?: string): RemoteLimiter {
    const api = limiter({
      ...(name && { name }),
      limit,
      backend: redis(fixture.firstClient.client, { deadline: '10s' }),
    });
    fixture.limiters.push(api);
    return api;
  }

  const once: Limit = { bucket: { rate: '1/h', burst: 1 } };
  const inFlight: Limit = { concurrency: 1 };

  test('limits of one name and different kinds have separate keys', async () => {
    const kinds: Limit[] = [
      once,
      { spacing: { every: '1h' } },
      { all: [once, { spacing: { every: '1h' } }] },
      inFlight,
    ];
    const limits = kinds.map((limit) => shared(limit, 'api'));
    const verdicts = async () => {
      const seen: string[] = [];
      for (const api of limits) seen.push((await api.check('x', 1, { willSettle: true })).verdict);
      return seen;
    };
    expect(await verdicts()).toEqual(['allow', 'allow', 'allow', 'allow']);
    expect(await verdicts()).toEqual(['deny', 'deny', 'deny', 'deny']);
    expect(limits.map((api) => api.stats().fallback)).toEqual([0, 0, 0, 0]);
  });

  test('name and key are separated unambiguously', async () => {
    expect((await shared(once, 'a').check('b:c')).verdict).toBe('allow');
    expect((await shared(once, 'a:b').check('c')).verdict).toBe('allow');
    expect((await shared(once, '}').check('c')).verdict).toBe('allow');
    const keys = fixture.cli('KEYS', '*').split('\n').sort();
    expect(keys).toEqual([
      'sluice:{%7D:c}:bucket',
      'sluice:{a%3Ab:c}:bucket',
      'sluice:{a:b:c}:bucket',
    ]);
  });

  test('a long key has a short name in Redis, and a count of its own', async () => {
    const api = shared(once, 'a');
    const long = 'x'.repeat(16_000);
    const verdictOf = async (key: string) => (await api.check(key)).verdict;
    expect(await verdictOf(`${long}1`)).toBe('allow');
    expect(await verdictOf(`${long}1`)).toBe('deny');
    expect(await verdictOf(`${long}2`)).toBe('allow');
    const names = fixture.cli('KEYS', '*').split('\n');
    expect(names).toHaveLength(2);
    for (const name of names) {
      const [, digest] = /^sluice:\{a#([\w-]{43})\}:bucket$/.exec(name) ?? [];
      expect(await verdictOf(`#${digest}`)).toBe('allow'); // a key that imitates the name
      expect((await shared(once, `a#${digest}`).check('')).verdict).toBe('allow');
    }
  });

  test('unnamed limits share a count only if their parameters are equal', async () => {
    expect((await shared({ bucket: { rate: '1/h', burst: 5 } }).check('x', 5)).verdict).toBe(
      'allow',
    );
    expect((await shared(once).check('x')).verdict).toBe('allow');
    expect((await shared(once).check('x')).verdict).toBe('deny');
  });

  test('a state that takes longer than a day to recover is kept as long', async () => {
    const DAY_MS = 86_400_000;
    const daysOf = (key: string) => Number(fixture.cli('PTTL', key)) / DAY_MS;
    await shared({ spacing: { every: '7d' } }, 'api').check('x');
    expect(daysOf('sluice:{api:x}:spacing')).toBeCloseTo(7, 3);
    const weekly = shared({ bucket: { rate: '1/7d', burst: 3 } }, 'api');
    await weekly.check('x', 3);
    expect(daysOf('sluice:{api:x}:bucket')).toBeCloseTo(21, 3);
    await weekly.giveBack('x', 1); // uses the full script
    expect(daysOf('sluice:{api:x}:bucket')).toBeCloseTo(14, 3);
    const never = shared({ bucket: { rate: 1e-18, burst: 3 } }, 'never');
    await never.check('x');
    expect(daysOf('sluice:{never:x}:bucket')).toBeGreaterThan(10_000_000);
    await shared({ ramp: { min: 1, max: 9, over: '4s' } }, 'api').check('x');
    expect(daysOf('sluice:{api:x}:ramp')).toBeCloseTo(1, 3);
    const both: Limit = {
      all: [{ ramp: { min: 1, max: 9, over: '4s' } }, { spacing: { every: '7d' } }],
    };
    await shared(both, 'api').check('x');
    expect(daysOf('sluice:{api:x}:ramp+spacing')).toBeCloseTo(7, 3);
    expect([weekly, never].map((api) => api.stats().fallback)).toEqual([0, 0]);
  });

  test('a client that returns strings as bytes is supported', async () => {
    const client = createClient({
      socket: { port: fixture.service.port, host: '127.0.0.1' },
    });
    await client.connect();
    const bytes = client.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
    const backend = redis(bytes, { deadline: '10s' });
    const api = limiter({ name: 'api', limit: { spacing: { every: '1h', reserve: 1 } }, backend });
    try {
      expect((await api.check('x')).verdict).toBe('allow');
      expect(await api.check('x')).toMatchObject({
        verdict: 'wait',
        waitMs: expect.closeTo(3.6e6, -4),
      });
    } finally {
      await api.close();
      client.destroy();
    }
  });

  test('a foreign value is overwritten and does not affect other keys', async () => {
    const limits: [string, Limit][] = [
      ['bucket', once],
      ['spacing', { spacing: { every: '1h' } }],
      ['concurrency', inFlight],
    ];
    for (const [kind, limit] of limits) {
      const api = shared(limit, 'api');
      const wrong = kind === 'concurrency' ? ['SET'] : ['LPUSH'];
      fixture.cli(...wrong, `sluice:{api:x}:${kind}`, 'foreign');
      const decisions = await Promise.all(
        ['x', 'y', 'x'].map((key) => api.check(key, 1, { willSettle: true })),
      );
      expect(decisions.map(({ verdict }) => verdict)).toEqual(['allow', 'allow', 'deny']);
      expect(api.stats()).toMatchObject({ isAvailable: true, fallback: 0 });
    }
  });

  test.each([
    ['is a replica', 'REPLICAOF 127.0.0.1 1', 'REPLICAOF NO ONE', [once, inFlight]],
    ['has no memory left', 'CONFIG SET maxmemory 1', 'CONFIG SET maxmemory 0', [once]],
    [
      'has lost its replicas',
      'CONFIG SET min-replicas-to-write 1',
      'CONFIG SET min-replicas-to-write 0',
      [once, inFlight],
    ],
    ['may not write', 'ACL SETUSER default -set', 'ACL SETUSER default +set', [once]],
  ])(
    'a Redis that %s is unavailable until it can decide again',
    async (_state, breakCommand, repairCommand, limits) => {
      for (const limit of limits) {
        const api = shared(limit, 'api');
        await api.check('before', 1, { willSettle: true });
        const changes: boolean[] = [];
        api.on((event) => event.type === 'availability' && changes.push(event.isAvailable));
        fixture.cli(...breakCommand.split(' '));
        try {
          for (let n = 0; n < 10; n++) {
            await api.check(`key ${n}`, 1, { willSettle: true });
            await new Promise((resolve) => setTimeout(resolve, 30));
          }
          expect(changes).toEqual([false]);
        } finally {
          fixture.cli(...repairCommand.split(' '));
        }
        await vi.waitFor(() => expect(changes).toEqual([false, true]));
      }
    },
  );
});
