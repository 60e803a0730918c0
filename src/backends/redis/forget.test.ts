import { describe, expect, test } from 'vitest';
import { nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../test/support/services.ts';
import type { AsyncLimiter } from '../../limiter/async-limiter.ts';
import { createLimiter, type LimiterOptions } from '../../limiter/limiter.ts';
import { redis } from './options.ts';

describe.skipIf(redisServer() === undefined)('redis: a key is forgotten', () => {
  const fixture = redisFixture(nodeRedis);

  const create = (limit: LimiterOptions['limit']): AsyncLimiter => {
    const backend = redis(fixture.firstClient.client, { deadline: '10s' });
    const api = createLimiter({ name: 'api', limit, backend }) as AsyncLimiter;
    fixture.limiters.push(api);
    return api;
  };

  test.each<LimiterOptions['limit']>([
    { bucket: { rate: '1/h', burst: 3 } },
    { spacing: { every: '1h' } },
    { all: [{ bucket: { rate: '1/h', burst: 3 } }, { spacing: { every: '1h' } }] },
  ])('forget: the key starts anew for all processes, others do not (%j)', async (limit) => {
    const [here, there] = [create(limit), create(limit)];
    const drain = async (key: string): Promise<void> => {
      for (let n = 0; n < 3; n++) await here.check(key);
    };
    await drain('x');
    await drain('y');
    expect((await there.check('x')).verdict).toBe('deny');
    await here.forget('x');
    expect((await there.check('x')).verdict).toBe('allow');
    expect((await there.check('y')).verdict).toBe('deny');
  });

  test('forget: a concurrency limit says that it cannot', async () => {
    await expect(create({ concurrency: 2 }).forget('x')).rejects.toThrow('cannot forget a key');
  });
});
