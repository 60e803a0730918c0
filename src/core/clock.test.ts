import { describe, expect, test } from 'vitest';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { batchClock, type Clock, coarseClock, systemClock } from './clock.ts';

/** A clock that counts its reads and advances by a step with each of them. */
function countingClock(stepMs: number): Clock & { reads: number } {
  let now = 1000;
  return {
    reads: 0,
    now() {
      this.reads++;
      now += stepMs;
      return now;
    },
  };
}

describe('systemClock', () => {
  test('counts milliseconds since 1970 and never goes backwards', () => {
    const first = systemClock.now();
    expect(first).toBeGreaterThan(Date.UTC(2024, 0));
    expect(systemClock.now()).toBeGreaterThanOrEqual(first);
  });
});

const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('coarseClock', () => {
  test('reads the source once for many checks in one run', () => {
    const source = countingClock(0.001);
    const clock = coarseClock(source);
    for (let n = 0; n < 1000; n++) clock.now();
    expect(source.reads).toBeLessThan(40);
  });

  test('reads the source once for many checks, also if several reads return the same instant', () => {
    let reads = 0;
    // Like the system's clock: checks are closer together than its resolution.
    const clock = coarseClock({ now: () => 1000 + Math.floor(reads++ / 3) * 0.00025 });
    for (let n = 0; n < 1000; n++) clock.now();
    expect(reads).toBeLessThan(60);
  });

  test('reads the source every time for a few reads that happen to be close', () => {
    const source = countingClock(0.001);
    const clock = coarseClock(source);
    for (let n = 0; n < 4; n++) clock.now();
    expect(source.reads).toBe(4);
  });

  test('reads the source every time when checks are further apart', () => {
    const source = countingClock(1);
    const clock = coarseClock(source);
    for (let n = 0; n < 100; n++) clock.now();
    expect(source.reads).toBe(100);
  });

  test('does not carry a reading over into the next turn', async () => {
    const source = countingClock(0.001);
    const clock = coarseClock(source);
    for (let n = 0; n < 5; n++) clock.now();
    const reads = source.reads;
    await nextTurn();
    clock.now();
    expect(source.reads).toBe(reads + 1);
  });

  test('shares a reading among the steps of an awaited loop, which are one turn', async () => {
    const source = countingClock(0.001);
    const clock = coarseClock(source);
    for (let n = 0; n < 1000; n++) {
      await undefined;
      clock.now();
    }
    expect(source.reads).toBeLessThan(40);
  });

  test('never shares readings of a clock that is advanced by hand', () => {
    let now = 5;
    const clock = coarseClock({ now: () => now });
    for (let n = 0; n < 10; n++) clock.now();
    now = 1005;
    expect(clock.now()).toBe(1005);
  });

  test('shares readings again in later turns', async () => {
    const source = countingClock(0.001);
    const clock = coarseClock(source);
    for (let turn = 0; turn < 10; turn++) {
      for (let n = 0; n < 100; n++) clock.now();
      await nextTurn();
    }
    expect(source.reads).toBeLessThan(100);
  });

  test('never goes backwards and never runs ahead of the source', () => {
    let real = 0;
    const clock = coarseClock({ now: () => real });
    let last = 0;
    for (let n = 0; n < 1000; n++) {
      real += n % 7 === 0 ? 0.5 : 0.0001;
      const now = clock.now();
      expect(now).toBeGreaterThanOrEqual(last);
      expect(now).toBeLessThanOrEqual(real);
      last = now;
    }
  });
});

describe('batchClock', () => {
  test('returns the time of freeze() until unfreeze()', () => {
    const source = new VirtualClock(100);
    const clock = batchClock(source);
    source.advance(5);
    expect(clock.now()).toBe(105);
    clock.freeze();
    source.advance(5);
    expect(clock.now()).toBe(105);
    clock.freeze();
    expect(clock.now()).toBe(110);
    clock.unfreeze();
    source.advance(1);
    expect(clock.now()).toBe(111);
  });
});
