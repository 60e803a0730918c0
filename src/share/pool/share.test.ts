import { expect, test } from 'vitest';
import { shareContract } from '../../../test/support/share-contract.ts';
import { type Engine, engineOf } from '../../limiter.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import type { ShareMaker } from '../share.ts';
import { memoryStore } from './memory.ts';
import { Pool, type PooledLimit } from './pool.ts';
import { type PartOf, PoolShare } from './share.ts';

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
