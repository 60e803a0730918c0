import { expect, test } from 'vitest';
import { backendContract } from '../../../test/support/backend-contract.ts';
import { deny } from '../../core/decision.ts';
import { createLimiter } from '../../limiter/limiter.ts';
import type { SyncLimiter } from '../../limiter/sync-limiter.ts';
import { createPolicy, type Limit } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import type { BackendFactory } from '../backend.ts';
import { dryRunPool, PoolBackend, type PoolClaimSource } from './backend.ts';
import { memoryStore } from './memory-store.ts';
import { Pool, type PooledLimit } from './pool.ts';

/** A membership with the whole limit and an exact clock. */
const ALONE: PoolClaimSource = {
  claim: () => ({ size: 1, rank: 0, round: 0 }),
  claimValidUntil: () => Infinity,
  nextSecondBoundary: () => [Infinity, Infinity],
  clockOffsetMs: 0,
  isUnlimited: () => false,
  add: () => () => {},
};

backendContract('pool', ({ policy, clock, maxKeys }) => {
  return new PoolBackend(policy, { name: 'x', clock, random: () => 0.5, maxKeys }, ALONE);
});

test('pool backend: inspect shows that there is no part, not what the limit has left', () => {
  const clock = new VirtualClock(0);
  const pool = { ...ALONE, claim: () => ({ size: 0, rank: -1, round: 0 }) };
  const backend: BackendFactory = {
    isRemote: false,
    create: (policy, setting) => new PoolBackend(policy, setting, pool),
  };
  const limit = { bucket: { rate: 10, burst: 10 } };
  const none = createLimiter({ name: 'api', limit, backend, clock });
  expect(none.check('a')).toEqual({ verdict: 'deny', retryAfterMs: 100 });
  expect(none.inspect('a')).toMatchObject({
    ...{ remaining: 0, poolSize: 0, by: 'api', opensInMs: 100 },
    rules: [{ quota: 10, remaining: 0 }],
  });
});

/** A membership without a part; `isUnlimited` makes it fail open. */
const without = (isUnlimited: boolean, limit: Limit) => {
  const pool = {
    ...ALONE,
    claim: () => ({ size: 0, rank: -1, round: 0 }),
    isUnlimited: () => isUnlimited,
  };
  const setting = { name: 'x', clock: new VirtualClock(0), random: () => 0.5, maxKeys: 10 };
  return new PoolBackend(
    createPolicy(limit, () => 0.5),
    setting,
    pool,
  );
};

test('pool backend: without a part every form of check is refused', () => {
  const backend = without(false, { concurrency: 3 });
  const refused = deny(100);
  const answers = [
    backend.check('a', 1),
    backend.checkNow('a', 1, 0),
    backend.checkHashed(1, 2, 1),
  ];
  expect([...answers, backend.peek('a', 1)]).toEqual([refused, refused, refused, refused]);
  expect(backend.takeUpTo('a', 2)).toBe(0);
  expect(backend.inspect('a').rules).toMatchObject([{ quota: 3, remaining: 0, opensInMs: 100 }]);
});

test('pool backend: the pool size of a ramp comes from the pool only', () => {
  const backend = without(false, { ramp: { min: 4, max: 8, over: '4s' } });
  expect(backend.update('a', { poolSize: 2 })).toBe(false);
  expect(backend.update('a', { hits: 1 })).toBe(true);
});

test('pool backend: with onUnavailable allow, all calls pass without a claim', () => {
  const backend = without(true, { bucket: { rate: 1, burst: 2 } });
  expect(backend.check('a', 50).verdict).toBe('allow');
  expect(backend.checkHashed(1, 2, 50).verdict).toBe('allow');
  expect(backend.peek('a', 50).verdict).toBe('allow');
  expect(backend.takeUpTo('a', 50)).toBe(50);
  expect(backend.takeUpTo('a', Infinity)).toBe(0); // "all" of an unlimited number is not a number
});

test('pool backend: refuses a limit that cannot be divided', () => {
  const setting = { name: 'x', clock: new VirtualClock(0), random: () => 0.5, maxKeys: 10 };
  const busy = createPolicy({ busy: {} }, () => 0.5);
  const complaint =
    'expected `limit` to be made of bucket, spacing, ramp, concurrency, adaptive, lockout (on failures), or a window or quota of at most an hour in a pool, got "busy"';
  expect(() => new PoolBackend(busy, setting, ALONE)).toThrow(complaint);
  expect(() => dryRunPool.create(busy, setting)).toThrow(complaint);
  const day = createPolicy({ window: { limit: 9, per: '1d' } }, () => 0.5);
  expect(() => new PoolBackend(day, setting, ALONE)).toThrow(
    'a window or quota of at most an hour',
  );
});

const OPTIONS = {
  ...{ name: 'p', id: 'a', onUnavailable: 'deny' as const },
  ...{ syncMs: 100, memberTimeoutMs: 1000, staleForMs: 5000 },
};

test('pool backend: a detached limit is removed from the pool', () => {
  const clock = new VirtualClock(0);
  let listening = 0;
  class Watched extends Pool {
    override add(limit: PooledLimit): () => void {
      const stop = super.add(limit);
      listening++;
      return () => {
        stop();
        listening--;
      };
    }
  }
  const pool = new Watched(memoryStore(clock), OPTIONS, clock, () => 0.5);
  const backend: BackendFactory = {
    isRemote: false,
    create: (policy, setting) => new PoolBackend(policy, setting, pool),
  };
  const limiter = createLimiter({ limit: { bucket: { rate: 1 } }, backend, clock }) as SyncLimiter;
  expect(listening).toBe(1);
  limiter.detach();
  expect(listening).toBe(0);
});
