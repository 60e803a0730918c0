import { describe, expect, test, vi } from 'vitest';
import { whilePaused } from '../../../test/support/paused.ts';
import { nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisKeyOf } from '../../../test/support/redis-contract.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../test/support/services.ts';
import { OUTAGE_DEADLINE_MS } from '../../../test/support/wait-timeout.ts';
import { type Clock, systemClock } from '../../core/clock.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import type { QuotaOptions } from '../../policies/quota.ts';
import { type RedisOptions, redis } from './options.ts';

const HOUR = 3_600_000;
const DAY = 24 * HOUR;

/** A clock with an error of `ms`. */
const wrongBy = (ms: number): Clock => ({ now: () => systemClock.now() + ms });

const quotaOf = (limit: number, per: QuotaOptions['per'], options: object = {}): Limit => ({
  quota: { limit, per, ...options },
});

describe.skipIf(redisServer() === undefined)('quota through Redis', () => {
  const fixture = redisFixture(nodeRedis);

  const shared = (limit: Limit, clock: Clock = systemClock, options: RedisOptions = {}) => {
    const { client } = clock === systemClock ? fixture.firstClient : fixture.secondClient;
    const backend = redis(client, { deadline: OUTAGE_DEADLINE_MS, ...options });
    const api = limiter({ name: 'api', limit, clock, backend });
    fixture.limiters.push(api);
    return api;
  };

  async function grantsOf(api: RemoteLimiter, most: number): Promise<number> {
    let granted = 0;
    for (let n = 0; n < most; n++) if ((await api.check('key')).verdict === 'allow') granted++;
    return granted;
  }

  /** The next midnight on the clock of Redis. */
  const midnight = (): number => {
    const [seconds] = fixture.cli('TIME').split('\n');
    return (Math.floor(Number(seconds) / 86_400) + 1) * DAY;
  };

  test.each([
    ['5 minutes ahead', 5 * 60_000],
    ['5 minutes behind', -5 * 60_000],
    ['40 days ahead', 40 * DAY],
    ['40 days behind', -40 * DAY],
  ])('quota: a client whose clock is %s does not change a period', async (_, ms) => {
    const resetsAt = midnight();
    const [right, wrong] = [shared(quotaOf(10, 'day')), shared(quotaOf(10, 'day'), wrongBy(ms))];
    expect(await grantsOf(wrong, 3)).toBe(3);
    expect(await grantsOf(right, 3)).toBe(3);
    expect(await grantsOf(wrong, 9)).toBe(4);
    expect(await grantsOf(right, 9)).toBe(0);
    const refusals = [await right.check('key'), await wrong.check('key')];
    for (const decision of refusals) {
      const retryAfterMs = decision.verdict === 'deny' ? decision.retryAfterMs : 0;
      expect(Math.abs(retryAfterMs - (resetsAt - Date.now()))).toBeLessThan(5000);
    }
    expect(await right.inspect('key')).toMatchObject({ remaining: 0, resetsAt });
    const ttl = Number(fixture.cli('PTTL', redisKeyOf('key', 'quota')));
    expect(Math.abs(ttl - (resetsAt - Date.now()))).toBeLessThan(5000);
  });

  test('quota: the next period begins on time, also for a client that is an hour behind', async () => {
    const api = shared(quotaOf(2, '400ms'), wrongBy(-HOUR));
    const periods = new Map<number, number>();
    const granted = () => [...periods.values()];
    while (periods.size < 3 || Math.max(...granted()) < 2) {
      const period = Math.floor(Date.now() / 400);
      const isAllowed = (await api.check('key')).verdict === 'allow';
      const isSame = Math.floor(Date.now() / 400) === period; // otherwise the period is unknown
      if (isAllowed && isSame) periods.set(period, (periods.get(period) ?? 0) + 1);
    }
    expect(Math.max(...granted())).toBe(2);
  });

  test('quota: a rule with another period keeps what was used, until that period ends', async () => {
    const resetsAt = midnight();
    expect(await grantsOf(shared(quotaOf(100, 'year')), 8)).toBe(8);
    const daily = shared(quotaOf(10, 'day'));
    expect(await grantsOf(daily, 9)).toBe(2);
    expect(await daily.inspect('key')).toMatchObject({ remaining: 0, resetsAt });
  });

  test('quota: changed at run time to another period, it keeps what was used', async () => {
    const api = shared(quotaOf(10, 'day'));
    expect(await grantsOf(api, 8)).toBe(8);
    await api.change(quotaOf(50, 'year'));
    const resetsAt = Date.UTC(new Date().getUTCFullYear() + 1, 0);
    expect(await api.inspect('key')).toMatchObject({ remaining: 42, resetsAt });
    expect(await grantsOf(api, 1)).toBe(1);
    const ttl = Number(fixture.cli('PTTL', redisKeyOf('key', 'quota')));
    expect(Math.abs(ttl - (resetsAt - Date.now()))).toBeLessThan(5000);
    await api.change(quotaOf(20, 'day'));
    expect(await api.inspect('key')).toMatchObject({ remaining: 11, resetsAt: midnight() });
  });

  test('quota: a waiting call gets the next period, in the queue of the fleet as well', async () => {
    for (const fairQueue of [false, true]) {
      const api = shared(quotaOf(1, '500ms'), systemClock, { fairQueue });
      const since = Date.now();
      for (let n = 0; n < 3; n++) {
        const permit = await api.acquire(`waiting ${fairQueue}`, 1, { wait: '30s' });
        expect(permit.verdict).toBe('allow');
      }
      expect(Date.now() - since).toBeGreaterThanOrEqual(500); // a whole period between the first and the third
    }
  });

  test('quota: during an outage the fallback begins with what Redis had left', async () => {
    const limit = quotaOf(10, 'year');
    const [first, other] = [shared(limit), shared(limit, wrongBy(1))]; // of two processes
    expect(await grantsOf(other, 7)).toBe(7);
    expect(await grantsOf(first, 1)).toBe(1); // this process has used one, and knows of eight
    await whilePaused(fixture.service, async () => {
      expect(await grantsOf(first, 10)).toBe(2);
    });
    await vi.waitFor(() => expect(first.stats().isAvailable).toBe(true));
    await vi.waitFor(async () => expect((await other.inspect('key'))?.remaining).toBe(0));
  });

  test('quota: the fallback of a client with a wrong clock has the periods of Redis', async () => {
    const resetsAt = midnight();
    const api = shared(quotaOf(3, 'day'), wrongBy(7 * HOUR));
    expect(await grantsOf(api, 3)).toBe(3);
    await whilePaused(fixture.service, async () => {
      const decision = await api.check('key');
      const retryAfterMs = decision.verdict === 'deny' ? decision.retryAfterMs : 0;
      expect(api.stats().fallback).toBe(1);
      expect(Math.abs(retryAfterMs - (resetsAt - Date.now()))).toBeLessThan(5000);
    });
  });
});
