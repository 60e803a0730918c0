import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../test/support/services.ts';
import { systemClock } from '../../core/clock.ts';
import type { Rate } from '../../core/duration.ts';
import { limiter } from '../../limiter/limiter.ts';
import { type RedisOptions, redis } from './options.ts';

const HOUR_MS = 3_600_000;
const BURST = 20;
const PER_SECOND = 20;

describe.skipIf(redisServer() === undefined)('giveBack with takenAt over Redis', () => {
  const fixture = redisFixture(nodeRedis);

  const shared = (aheadMs: number, rate: Rate, options: RedisOptions = {}) => {
    const backend = redis(fixture.firstClient.client, { deadline: '10s', ...options });
    const clock = { now: () => systemClock.now() + aheadMs };
    const api = limiter({ name: 'api', limit: { bucket: { rate, burst: BURST } }, backend, clock });
    fixture.limiters.push(api);
    return { api, clock };
  };

  test.each([
    [-HOUR_MS, {}],
    [0, {}],
    [HOUR_MS, {}],
    [HOUR_MS, { prefetch: 5 }],
  ])('at most burst + rate × span, with a clock %d ms ahead (%j)', async (aheadMs, options) => {
    const { api, clock } = shared(aheadMs, `${PER_SECOND}/s`, options);
    const takenAt = clock.now();
    await api.takeUpTo('x', 10);
    await sleep(550);
    const since = performance.now();
    const used = await api.takeUpTo('x', BURST);
    await api.giveBack('x', 10, takenAt);
    const usedLater = await api.takeUpTo('x', BURST);
    const refilled = ((performance.now() - since) * PER_SECOND) / 1000;
    expect(used + usedLater).toBeLessThanOrEqual(BURST + refilled);
  });

  test.each([-HOUR_MS, HOUR_MS])('returns all of it without a refill (%d ms)', async (aheadMs) => {
    const { api, clock } = shared(aheadMs, '1/h');
    const takenAt = clock.now();
    await api.takeUpTo('x', 10);
    await api.takeUpTo('x', 5);
    await api.giveBack('x', 10, takenAt);
    await expect.poll(() => api.inspect('x')).toMatchObject({ remaining: 15 });
  });
});
