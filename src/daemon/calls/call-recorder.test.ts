import { describe, expect, test } from 'vitest';
import { zipf } from '../../../test/support/zipf.ts';
import { createHasher } from '../../core/hash.ts';
import { seededRandom } from '../../core/random.ts';
import { VirtualClock } from '../../testing/index.ts';
import { CallRecorder } from './call-recorder.ts';

const HOUR_MS = 3_600_000;

function setUp(seed = 1) {
  const clock = new VirtualClock(50 * HOUR_MS);
  const calls = new CallRecorder(clock, seededRandom(seed));
  const hasher = createHasher([1, 2], 'latin1');
  calls.start();
  const call = (key: string, limit = 'api'): void => {
    if (!calls.sampler.isDue()) return;
    hasher.hash(key);
    calls.add([{ id: limit }], key, hasher.low, hasher.high);
  };
  const keysOf = (span: 'now' | 'hour') =>
    calls.top(span, 9, 9).flatMap(({ keys }) => keys.map(({ key, calls: n }) => [key, n]));
  return { clock, calls, call, keysOf };
}

describe('call recorder', () => {
  test('few calls: every count is exact, without an error', () => {
    const { calls, call } = setUp();
    for (let n = 0; n < 300; n++) call(n % 3 === 0 ? 'caf\xc3\xa9' : 'alice');
    call('bob', 'login');
    expect(calls.top('now', 9, 9)).toEqual([
      {
        limit: 'api',
        calls: 300,
        keys: [
          { key: 'alice', calls: 200 },
          { key: 'café', calls: 100 },
        ],
      },
      { limit: 'login', calls: 1, keys: [{ key: 'bob', calls: 1 }] },
    ]);
    expect(calls.top('now', 1, 1).flatMap(({ keys }) => keys)).toHaveLength(1);
  });

  test.each([1, 2, 3])(
    'Zipf, 50,000 calls a second of 100,000 keys, seed %i: the top 10 are found, counts within the error',
    (seed) => {
      const { clock, calls, call } = setUp(seed);
      const truth = new Map<string, number>();
      const draw = zipf(100_000, seededRandom(seed + 100));
      for (let tick = 0; tick < 200; tick++, clock.advance(50))
        for (let n = 0; n < 2500; n++) {
          const key = `client-${draw()}`;
          truth.set(key, (truth.get(key) ?? 0) + 1);
          call(key);
        }
      const ranked = [...truth].sort((a, b) => b[1] - a[1]).map(([key]) => key);
      const [{ calls: total, keys }] = calls.top('now', 1, 10);
      const found = keys.map(({ key }) => key);
      expect(Math.abs(total / 500_000 - 1)).toBeLessThan(0.02);
      expect(found.slice(0, 4)).toEqual(ranked.slice(0, 4));
      for (const key of found) expect(ranked.slice(0, 13), key).toContain(key);
      const off = keys.map(({ key, calls: n, error = 0 }) => {
        expect(error, key).toBeLessThan(0.01 * total);
        return Math.abs(n - (truth.get(key) ?? 0)) / error;
      });
      expect(off.filter((part) => part <= 1).length).toBeGreaterThanOrEqual(9);
      expect(Math.max(...off)).toBeLessThan(2);
    },
  );

  test('top now: covers the last 10 to 20 s; top of the hour: the last one to two hours', () => {
    const { clock, calls, call, keysOf } = setUp();
    for (let n = 0; n < 7; n++) call('early');
    clock.advance(9999);
    expect(calls.secondsOf('now')).toBe(10);
    for (let n = 0; n < 3; n++) call('late');
    const both = [
      ['early', 7],
      ['late', 3],
    ];
    expect(keysOf('now')).toEqual(both);
    clock.advance(10_000);
    expect(keysOf('now')).toEqual(both);
    expect(calls.secondsOf('now')).toBe(20);
    clock.advance(10_000);
    expect(keysOf('now')).toEqual([]);
    expect(keysOf('hour')).toEqual(both);
    expect(calls.secondsOf('now')).toBe(20);
    expect(calls.secondsOf('hour')).toBe(30);
    clock.advance(3 * HOUR_MS);
    expect(keysOf('hour')).toEqual([]);
    expect(calls.secondsOf('hour')).toBeLessThanOrEqual(7200);
  });

  test('counts of several intervals: errors of the sample add up', () => {
    const { clock, calls, call } = setUp();
    for (let tick = 0; tick < 400; tick++, clock.advance(100))
      for (let n = 0; n < 5000; n++) call(n % 4 === 0 ? 'often' : `k${n}`);
    const [{ calls: total, keys }] = calls.top('hour', 1, 1);
    const [{ key, calls: n, error = 0 }] = keys;
    expect(key).toBe('often');
    expect(Math.abs(total / 2_000_000 - 1)).toBeLessThan(0.02);
    expect(Math.abs(n - 500_000)).toBeLessThan(error);
    expect(error).toBeLessThan(0.1 * n);
  });

  test('4,500 keys of 4 KB at 150 limits: names are cut, and later limits share a record', () => {
    const { calls } = setUp();
    const key = 'x'.repeat(4096);
    for (let n = 0; n < 4500; n++) {
      calls.add([{ id: `limit-${n % 150}` }], key, Math.imul(n, 0x9e3779b1), ~n);
    }
    const top = calls.top('now', 1000, 1000);
    expect(top).toHaveLength(101);
    expect(top[0]).toMatchObject({ reason: 'further-limits', calls: 1500 });
    expect(top.reduce((sum, { calls: n }) => sum + n, 0)).toBe(4500);
    for (const { keys } of top) expect(keys.length).toBeLessThanOrEqual(512);
    expect(top[0].keys[0].key).toHaveLength(200);
  });

  test('stop: no timer is left', () => {
    const { clock, calls, call } = setUp();
    calls.stop();
    for (let n = 0; n < 20_000; n++) call('a');
    clock.advance(60_000);
    expect(calls.sampler.meanGap).toBeGreaterThan(1);
  });
});
