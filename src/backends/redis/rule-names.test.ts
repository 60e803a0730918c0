import { describe, expect, test } from 'vitest';
import { nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../test/support/services.ts';
import { all } from '../../limiter/composite-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { redis } from './options.ts';

const LIMIT: Limit = {
  all: [
    { bucket: { rate: '1/h', burst: 9 } },
    { window: { limit: 5, per: '1h' } },
    { bucket: { rate: '1/365d', burst: 3 } },
  ],
};

describe.skipIf(redisServer() === undefined)('several rules in Redis', () => {
  const fixture = redisFixture(nodeRedis);

  function shared(limit = LIMIT, fairQueue = false, isSecond = false) {
    const { client } = isSecond ? fixture.secondClient : fixture.firstClient;
    const backend = redis(client, { fairQueue, deadline: '5s' });
    const name = isSecond ? 'other' : 'api';
    const created = limiter({ name, limit, backend });
    fixture.limiters.push(created);
    return created;
  }

  test('check, tryAcquire and acquire: name the rule with the longest wait, and stats count it', async () => {
    const api = shared();
    await api.check('k', 3);
    const rule = 'bucket-2';
    expect(await api.check('k')).toMatchObject({ verdict: 'deny', rule });
    expect(await api.check('k', 1, { id: 'once' })).toMatchObject({ verdict: 'deny', rule });
    expect(await api.check('k', 6)).toEqual({
      verdict: 'deny',
      retryAfterMs: Infinity,
      rule: 'window',
    });
    expect(await api.tryAcquire('k')).toMatchObject({ reason: 'not-now', rule });
    expect(await api.acquire('k', 1, { wait: '10s' })).toMatchObject({ reason: 'too-long', rule });
    expect(await api.acquire('k', 8, { wait: '10s' })).toMatchObject({
      reason: 'never',
      rule: 'window',
    });
    expect(await api.peek('k')).toMatchObject({ rule });
    expect(api.stats().deniedByRule).toEqual({ 'bucket-2': 4, window: 2 });
  });

  test('all([...]): names limit and rule, in one call and in two steps', async () => {
    const [api, other] = [shared(), shared({ bucket: { rate: 1, burst: 99 } }, false, true)];
    const beside = limiter({
      name: 'beside',
      limit: { bucket: { rate: 1, burst: 99 } },
      backend: redis(fixture.firstClient.client, { deadline: '5s' }),
    });
    fixture.limiters.push(beside);
    await api.check('k', 3);
    for (const both of [all([beside, api]), all([other, api])]) {
      const refused = { limit: 'api', rule: 'bucket-2' };
      expect(await both.tryAcquire('k')).toMatchObject(refused);
      expect(await both.acquire('k', 1, { wait: '10s' })).toMatchObject(refused);
    }
  });

  test('fair queue: the first waiter and those behind it are told the rule that they waited for', async () => {
    const api = shared(LIMIT, true);
    await api.check('k', 3);
    const waiting = [1, 2, 3].map((cost) => api.acquire('k', cost, { wait: 900 })); // with a heartbeat
    for (const refused of await Promise.all(waiting))
      expect(refused).toMatchObject({ reason: 'too-long', rule: 'bucket-2' });
  });
});
