import { describe, expect, test } from 'vitest';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { batchClock, type Clock, coarseClock, systemClock } from './clock.ts';

/** A clock that counts how often it is looked at, and moves a step with every look. */
function countingClock(stepMs: number): Clock & { looks: number } {
  let now = 1000;
  return {
    looks: 0,
    now() {
      this.looks++;
      now += stepMs;
      return now;
    },
  };
}

describe('the system clock', () => {
  test('counts milliseconds since 1970 and never goes backwards', () => {
    const first = systemClock.now();
    expect(first).toBeGreaterThan(Date.UTC(2024, 0));
    expect(systemClock.now()).toBeGreaterThanOrEqual(first);
  });
});

const nextTurn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('the clock of a turn', () => {
  test('is looked at once for many asks that come in one run', () => {
    const source = countingClock(0.001);
    const clock = coarseClock(source);
    for (let n = 0; n < 1000; n++) clock.now();
    expect(source.looks).toBeLessThan(40);
  });

  test('is looked at once for many, also where several looks see the same instant', () => {
    let looks = 0;
    // As the system's does: asks are closer together than it moves.
    const clock = coarseClock({ now: () => 1000 + Math.floor(looks++ / 3) * 0.00025 });
    for (let n = 0; n < 1000; n++) clock.now();
    expect(looks).toBeLessThan(60);
  });

  test('is looked at every time by a few looks that happen to be close', () => {
    const source = countingClock(0.001);
    const clock = coarseClock(source);
    for (let n = 0; n < 4; n++) clock.now();
    expect(source.looks).toBe(4);
  });

  test('is looked at every time when asks are further apart', () => {
    const source = countingClock(1);
    const clock = coarseClock(source);
    for (let n = 0; n < 100; n++) clock.now();
    expect(source.looks).toBe(100);
  });

  test('does not carry a look over into the next turn', async () => {
    const source = countingClock(0.001);
    const clock = coarseClock(source);
    for (let n = 0; n < 5; n++) clock.now();
    const looks = source.looks;
    await nextTurn();
    clock.now();
    expect(source.looks).toBe(looks + 1);
  });

  test('shares a look among the steps of an awaited loop: they are one turn', async () => {
    const source = countingClock(0.001);
    const clock = coarseClock(source);
    for (let n = 0; n < 1000; n++) {
      await undefined;
      clock.now();
    }
    expect(source.looks).toBeLessThan(40);
  });

  test('never shares a clock that is moved by hand: what it says is always new', () => {
    let now = 5;
    const clock = coarseClock({ now: () => now });
    for (let n = 0; n < 10; n++) clock.now();
    now = 1005;
    expect(clock.now()).toBe(1005);
  });

  test('goes on sharing in later turns', async () => {
    const source = countingClock(0.001);
    const clock = coarseClock(source);
    for (let turn = 0; turn < 10; turn++) {
      for (let n = 0; n < 100; n++) clock.now();
      await nextTurn();
    }
    expect(source.looks).toBeLessThan(100);
  });

  test('never goes backwards and never runs ahead', () => {
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

describe('a clock that is held', () => {
  test('stands still until it is let go, and was right when it was held', () => {
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
