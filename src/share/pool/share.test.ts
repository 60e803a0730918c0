import { expect, test } from 'vitest';
import { type Engine, engineOf } from '../../limiter.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import type { ShareMaker } from '../share.ts';
import { memoryStore } from './memory.ts';
import { Pool, type PooledLimit } from './pool.ts';
import { PoolShare } from './share.ts';

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
