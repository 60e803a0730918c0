import { describe, expect, test } from 'vitest';
import type { Clock } from '../../core/clock.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limiter } from '../../limiter/limiter-interface.ts';
import type { Limit } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { memoryStore } from './memory-store.ts';
import { pool } from './options.ts';
import type { PoolStore } from './store.ts';

const GROWS = { min: 10, max: 110, over: '10s' } as const;
const RESUMES: Limit = { ramp: { ...GROWS, resumeFor: '60s' } };

function world(limit: Limit) {
  const clock = new VirtualClock(1_000_250);
  const store = memoryStore(clock);
  let created = 0;
  /** A member whose clock is off by an hour, in either direction. */
  const start = (through: PoolStore = store) => {
    const wrongByMs = created++ % 2 === 0 ? 3_600_000 : -3_600_000;
    const memberClock: Clock = {
      now: () => clock.now() + wrongByMs,
      wakeAt: (at, act) => clock.wakeAt(at - wrongByMs, act),
    };
    const membership = pool(through, {
      id: `pod${created}`,
      clock: memberClock,
      random: () => 0.5,
    });
    return {
      membership,
      llm: limiter({ name: 'llm', limit, backend: membership, clock: memberClock }),
    };
  };
  /** Calls every second for `seconds`, for each key. */
  const growFor = async (pod: ReturnType<typeof start>, seconds: number, ...keys: string[]) => {
    for (let n = 0; n < seconds; n++) {
      await clock.advanceAsync(1000);
      for (const key of keys) pod.llm.takeUpTo(key, Infinity);
    }
  };
  return { clock, store, start, growFor };
}

const poolOf = ({ llm }: { llm: Limiter }, key = ''): number | undefined => {
  llm.takeUpTo(key, 1);
  return llm.inspect(key).level;
};

describe('ramp checkpoint', () => {
  test('ramp checkpoint: a ramp resumes per key after a redeploy', async () => {
    const { clock, start, growFor } = world(RESUMES);
    const first = start();
    await growFor(first, 8, 'a');
    await growFor(first, 3, 'a', 'b');
    const [a, b] = [poolOf(first, 'a'), poolOf(first, 'b')];
    expect([a, b]).toEqual([expect.closeTo(90, -1.5), 30]);
    await first.membership.close();
    await clock.advanceAsync(20_000);

    const second = start();
    await clock.advanceAsync(4000);
    expect([poolOf(second, 'a'), poolOf(second, 'b'), poolOf(second, 'c')]).toEqual([a, b, 10]);
  });

  test('ramp checkpoint: a ramp restarts once its level is older than resumeFor, or without resumeFor', async () => {
    const late = world(RESUMES);
    const forgetful = world({ ramp: GROWS });
    for (const { clock, start, growFor } of [late, forgetful]) {
      const first = start();
      await growFor(first, 8, '');
      await first.membership.close();
      await clock.advanceAsync(clock === late.clock ? 60_000 : 1000);
      const second = start();
      await clock.advanceAsync(4000);
      expect(poolOf(second)).toBe(10);
    }
  });

  test('ramp checkpoint: a member that joins starts near the level of the other members, also after a crash', async () => {
    const { clock, store, start, growFor } = world(RESUMES);
    let isDead = false;
    const first = start({
      ...store,
      sync: (...args) => (isDead ? new Promise(() => {}) : store.sync(...args)),
    });
    await growFor(first, 12, '');
    const reached = poolOf(first) ?? 0;
    expect(reached).toBeGreaterThan(80);

    const joins = start();
    await growFor(first, 4, '');
    expect(poolOf(joins)).toBeGreaterThanOrEqual(reached - 20);

    isDead = true;
    await joins.membership.pause();
    const last = start();
    await clock.advanceAsync(6000);
    expect(poolOf(last)).toBeGreaterThanOrEqual(reached - 20);
  });

  test.each([
    ['relaxed', 0],
    ['relaxed', 7300],
    ['only-if-used', 0],
    ['go-back-n', 2100],
    ['scheduled', 0],
    ['scheduled', 7300],
  ] as const)(
    'ramp checkpoint: members that join a ramp (%s) and call %i ms later stand within one step of the others',
    async (mode, idleMs) => {
      const slope = 10;
      const grows = { min: 10, max: 10 + 100 * slope, over: '100s', mode, threshold: 50 } as const;
      for (const grownMs of [1500, 3250, 5900, 7000, 8650]) {
        const { clock, start } = world({ ramp: { ...grows, resumeFor: '60s' } });
        const calling = [start(), start()];
        const callFor = async (ms: number): Promise<void> => {
          for (let n = 0; n < ms / 50; n++) {
            await clock.advanceAsync(50);
            for (const { llm } of calling) llm.takeUpTo('', Infinity);
          }
        };
        await callFor(4000 + grownMs);
        const newcomers = [start(), start()];
        await callFor(4000 + idleMs);
        calling.push(...newcomers);
        for (let n = 0; n < 8; n++) {
          await callFor(450);
          const levels = calling.map(({ llm }) => llm.inspect('').level ?? 0);
          expect(levels[0]).toBeGreaterThan(20);
          expect(Math.max(...levels) - Math.min(...levels)).toBeLessThanOrEqual(slope + 1e-6);
        }
      }
    },
  );

  test('ramp checkpoint: the latest level of several members counts, and none is lost', async () => {
    const { clock, start, growFor } = world(RESUMES);
    const [one, two] = [start(), start()];
    await growFor(one, 5, '');
    await Promise.all([growFor(one, 6, 'mine'), growFor(two, 6, 'yours')]);
    await one.membership.close();
    await two.membership.close();
    const next = start();
    await clock.advanceAsync(4000);
    expect(poolOf(next, 'mine')).toBeGreaterThan(50);
    expect(poolOf(next, 'yours')).toBeGreaterThan(50);
  });

  test('ramp checkpoint: a ramp starts at min if the checkpoint is not readable', async () => {
    for (const text of ['', '{', '[1]', '[["llm",[["",["x",1]]]]]', '[["llm",5]]', 'null']) {
      const { clock, store, start } = world(RESUMES);
      await store.saveCheckpoint('sluice', text, 60_000);
      const pod = start();
      await clock.advanceAsync(4000);
      expect([text, poolOf(pod)]).toEqual([text, 10]);
    }
  });
});

describe('saturation', () => {
  test('saturation: the used fraction of the part in the last complete seconds', async () => {
    const { clock, start } = world({ ramp: { min: 100, max: 100, over: '1s' } });
    const [one, two] = [start(), start()];
    await clock.advanceAsync(4000);
    for (let second = 0; second < 12; second++) {
      await clock.advanceAsync(1000);
      expect(one.llm.takeUpTo('', 20)).toBe(20); // of fifty
      expect(two.llm.takeUpTo('', Infinity)).toBe(50);
      two.llm.giveBack('', 10);
    }
    expect(one.membership.view().saturation).toEqual({ llm: expect.closeTo(0.4, 5) });
    expect(two.membership.view().saturation).toEqual({ llm: expect.closeTo(0.8, 5) });
    await clock.advanceAsync(5500);
    expect(one.membership.view().saturation.llm).toBeCloseTo(0.2, 1);
    await clock.advanceAsync(60_000);
    expect(one.membership.view().saturation.llm).toBe(0);
  });

  test.each([
    [{ bucket: { rate: '100/s', burst: 10 } }, 10, 0.2],
    [{ spacing: { every: '100ms' } }, 1, 0.2],
    [{ all: [{ bucket: { rate: '1000/s' } }, { spacing: { every: '100ms' } }] }, 1, 0.2],
  ] as const)('saturation: of %j in a pool of two', async (limit, calls, expected) => {
    const { clock, start } = world(limit as unknown as Limit);
    const [one] = [start(), start()];
    await clock.advanceAsync(4000);
    for (let second = 0; second < 12; second++) {
      for (const key of ['a', 'b']) {
        for (let n = 0; n < calls; n++) {
          expect(one.llm.check(key).verdict).toBe('allow');
          await clock.advanceAsync(20);
        }
      }
      await clock.advanceAsync(1000 - 2 * calls * 20);
    }
    expect(one.membership.view().saturation.llm).toBeCloseTo(expected, 1);
  });

  test('saturation: stays within 0 to 1 while the pool grows and shrinks', async () => {
    const { clock, start } = world({ bucket: { rate: '90/s', burst: 90 } });
    const pods = [start()];
    const read: number[] = [];
    const useAll = async (seconds: number): Promise<void> => {
      for (let n = 0; n < seconds * 20; n++) {
        await clock.advanceAsync(50);
        for (const { llm } of pods) llm.takeUpTo('', Infinity);
        read.push(pods[0].membership.view().saturation.llm);
      }
    };
    await useAll(15);
    pods.push(start(), start());
    await useAll(15);
    await pods.pop()?.membership.close();
    await useAll(15);
    expect(Math.max(...read)).toBeLessThanOrEqual(1);
    expect(Math.min(...read)).toBeGreaterThanOrEqual(0);
    expect(read.at(-1)).toBeGreaterThan(0.95);
  });

  test('saturation: a return counts in the second of its take, and at most what was taken then', async () => {
    const { clock, start } = world({ bucket: { rate: '100/s', burst: 100 } });
    const { membership, llm } = start();
    await clock.advanceAsync(4250);
    for (let second = 0; second < 12; second++) {
      await clock.advanceAsync(1000);
      llm.takeUpTo('', 60);
    }
    const takenAt = clock.now() - 3_000 + 3_600_000; // on the clock of this member
    expect(membership.view().saturation.llm).toBeCloseTo(0.6, 5);
    llm.giveBack('', 500);
    await clock.advanceAsync(1000);
    expect(membership.view().saturation.llm).toBeCloseTo(0.54, 5); // one second of ten
    llm.giveBack('', 20, takenAt);
    expect(membership.view().saturation.llm).toBeCloseTo(0.52, 5);
  });

  test('saturation: of adaptive, calls in flight over the limit', async () => {
    const { clock, start } = world({ adaptive: { max: 20, initial: 20 } });
    const [one] = [start(), start()];
    await clock.advanceAsync(4000);
    for (let n = 0; n < 5; n++) one.llm.tryAcquire('');
    expect(one.membership.view().saturation.llm).toBeCloseTo(0.5, 5);
  });
});
