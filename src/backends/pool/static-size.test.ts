import { describe, expect, test } from 'vitest';
import { StallableClock } from '../../../test/support/stallable-clock.ts';
import { limiter } from '../../limiter/limiter.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { pool } from './options.ts';
import { fixedPool, poolFromEnvironment } from './static-size.ts';

const OPTIONS = { memberTimeoutMs: 2000, isStrict: false };
const REQUEST = { id: 'a', seq: 1, using: { size: 0, rank: -1, round: 0 } };

describe('static pool', () => {
  test('static pool: divides a limit at once', async () => {
    const clock = new VirtualClock(5_000);
    const limit = { ramp: { min: 100, max: 100, over: '1s' } } as const;
    const pods = [0, 1, 2].map((rank) => pool(fixedPool(3, rank, clock), { clock }));
    const limiters = pods.map((membership) => limiter({ limit, backend: membership, clock }));
    await clock.advanceAsync(0);
    const taken = limiters.map((each) => each.takeUpTo('', Infinity));
    expect(taken.sort()).toEqual([33, 33, 34]);
    for (const pod of pods) await pod.close();
  });

  test('static pool: a member whose process was suspended keeps its part', async () => {
    const inner = new VirtualClock(5_000);
    const suspended = new StallableClock(inner);
    const limit = { ramp: { min: 100, max: 100, over: '1s' } } as const;
    const pods = pool(fixedPool(4, 0, suspended), { clock: suspended });
    const api = limiter({ limit, backend: pods, clock: suspended });
    await inner.advanceAsync(500);
    suspended.stall();
    await inner.advanceAsync(5000);
    suspended.resume();
    expect(api.takeUpTo('', Infinity)).toBe(25);
    suspended.fireOverdue();
    await pods.close();
  });

  test.each([
    ['a number', { PODS: '5', RANK: '2' }, { size: 5, rank: 2 }],
    ['a name', { PODS: '5', RANK: 'worker-3' }, { size: 5, rank: 3 }],
    ['a long name', { PODS: '12', RANK: 'job-7-worker-11' }, { size: 12, rank: 11 }],
  ])('static pool: reads the rank from the environment: %s', async (_, environment, claim) => {
    const store = poolFromEnvironment('PODS', 'RANK', environment);
    expect(await store.sync('', REQUEST, OPTIONS)).toMatchObject({ claim, active: claim.size });
  });

  test('static pool: without a rank there are no turns at the remainder', async () => {
    const store = poolFromEnvironment('PODS', undefined, { PODS: '5' });
    expect(await store.sync('', REQUEST, OPTIONS)).toMatchObject({ claim: { size: 5, rank: -1 } });
  });

  test.each([
    [{ RANK: '1' }, /`PODS` to be a whole number from 1 on, got undefined/],
    [{ PODS: '0', RANK: '0' }, /`PODS` to be a whole number from 1 on, got "0"/],
    [{ PODS: '3', RANK: '3' }, /`RANK` to be a number from 0 to 2, or a name .* got "3"/],
    [{ PODS: '3', RANK: 'worker' }, /`RANK` .* got "worker"/],
    [{ PODS: '3' }, /`RANK` .* got undefined/],
  ])('static pool: refuses the environment %o', (environment, message) => {
    expect(() => poolFromEnvironment('PODS', 'RANK', environment)).toThrow(message);
  });

  test.each([
    [0, -1, /size/],
    [2.5, 0, /size/],
    [3, 3, /rank/],
    [3, -2, /rank/],
    [1e308, 0, /size/],
  ])('static pool: refuses size %s with rank %s', (size, rank, message) => {
    expect(() => fixedPool(size, rank)).toThrow(message);
  });

  test('static pool: refuses an invalid clock or variable name', () => {
    expect(() => fixedPool(3, 0, 5 as never)).toThrow('`clock`');
    expect(() => poolFromEnvironment(undefined as never)).toThrow('`sizeVariable`');
    expect(() => poolFromEnvironment('PODS', '', { PODS: '3' })).toThrow('`rankVariable`');
  });
});
