import { expect, test } from 'vitest';
import { shareContract } from '../../../test/support/share-contract.ts';
import { deny } from '../../core/decision.ts';
import { engineOf } from '../../limiter/limiter.ts';
import type { Engine } from '../../limiter/sync-limiter.ts';
import { type Limit, policyOf } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import type { ShareMaker } from '../backend.ts';
import { type PartOf, PoolShare, undivided } from './backend.ts';
import { Pool, type PooledLimit } from './membership.ts';
import { memoryStore } from './memory-store.ts';

/** One that has all of it, and no doubt about the time. */
const ALONE: PartOf = {
  claim: () => ({ size: 1, rank: 0, round: 0 }),
  claimTo: () => Infinity,
  secondEnd: () => [Infinity, Infinity],
  aheadMs: 0,
  isFree: () => false,
  add: () => () => {},
};

shareContract('pool', ({ policy, clock, keysMax }) => {
  return new PoolShare(policy, { name: 'x', clock, random: () => 0.5, keysMax }, ALONE);
});

test('whoever looks sees that there is no part, not what the limit would have left', () => {
  const clock = new VirtualClock(0);
  const pool = { ...ALONE, claim: () => ({ size: 0, rank: -1, round: 0 }) };
  const share: ShareMaker = {
    isRemote: false,
    make: (policy, setting) => new PoolShare(policy, setting, pool),
  };
  const limit = { bucket: { rate: 10, burst: 10 } };
  const none = engineOf({ name: 'api', limit, share, clock });
  expect(none.ask('a')).toEqual({ verdict: 'deny', retryAfterMs: 100 });
  expect(none.inspect('a')).toMatchObject({
    ...{ remaining: 0, poolSize: 0, by: 'api', opensInMs: 100 },
    rules: [{ quota: 10, remaining: 0 }],
  });
});

/** Without a part, and with no limit either where that was asked for. */
const without = (isFree: boolean, limit: Limit) => {
  const pool = { ...ALONE, claim: () => ({ size: 0, rank: -1, round: 0 }), isFree: () => isFree };
  const setting = { name: 'x', clock: new VirtualClock(0), random: () => 0.5, keysMax: 10 };
  return new PoolShare(
    policyOf(limit, () => 0.5),
    setting,
    pool,
  );
};

test('without a part every way to ask is refused, and so is whatever a look would find', () => {
  const share = without(false, { adaptive: { fixed: 3 } });
  const refused = deny(100);
  const answers = [share.ask('a', 1), share.askNow('a', 1, 0), share.askHashed(1, 2, 1)];
  expect([...answers, share.peek('a', 1)]).toEqual([refused, refused, refused, refused]);
  expect(share.take('a', 2)).toBe(0);
  expect(share.inspect('a').standings).toMatchObject([{ quota: 3, remaining: 0, opensInMs: 100 }]);
});

test('how many share a ramp is for the pool to say, and for nobody else', () => {
  const share = without(false, { ramp: { min: 4, max: 8, over: '4s' } });
  expect(share.hear('a', { poolSize: 2 })).toBe(false);
  expect(share.hear('a', { hits: 1 })).toBe(true);
});

test('where nobody can say what its part is, and that is no reason to refuse, all are let through', () => {
  const share = without(true, { bucket: { rate: 1, burst: 2 } });
  expect(share.ask('a', 50).verdict).toBe('allow');
  expect(share.askHashed(1, 2, 50).verdict).toBe('allow');
  expect(share.peek('a', 50).verdict).toBe('allow');
  expect(share.take('a', 50)).toBe(50);
  expect(share.take('a', Infinity)).toBe(0); // all there is of no limit is nothing to count on
});

test('what cannot be divided is no limit of a pool', () => {
  const setting = { name: 'x', clock: new VirtualClock(0), random: () => 0.5, keysMax: 10 };
  const window = policyOf({ window: { limit: 1, per: 1000 } }, () => 0.5);
  const complaint = 'expected `limit` to be one that a pool can divide, got "window"';
  expect(() => new PoolShare(window, setting, ALONE)).toThrow(complaint);
  expect(() => undivided.make(window, setting)).toThrow(complaint);
});

const OPTIONS = {
  ...{ name: 'p', id: 'a', onUnavailable: 'deny' as const },
  ...{ syncMs: 100, staleMs: 1000, holdMs: 5000 },
};

test('a limit that nobody needs any more is not told of the pool, however many come and go', () => {
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
  const share: ShareMaker = {
    isRemote: false,
    make: (policy, setting) => new PoolShare(policy, setting, pool),
  };
  const engine = engineOf({ limit: { bucket: { rate: 1 } }, share, clock }) as Engine;
  expect(listening).toBe(1);
  engine.leave();
  expect(listening).toBe(0);
});
