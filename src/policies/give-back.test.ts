/**
 * Giving back keeps the promise of each limit: units that were taken and not returned never exceed it in any span.
 *
 * The test keeps its own account of what a caller took and when. It knows the promises of the documentation, and
 * nothing of the rules.
 */

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { limiter } from '../limiter/limiter.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import type { Limit } from './limit.ts';

/** What a caller took at one time, less what it returned since. */
interface Taken {
  readonly at: number;
  units: number;
}

/** One key of a limiter, used by a caller that keeps an account. */
class Caller {
  readonly clock = new VirtualClock(1_700_000_000_250);
  readonly #limiter;
  readonly account: Taken[] = [];

  constructor(limit: Limit) {
    this.#limiter = limiter({ limit, clock: this.clock });
  }

  take(most: number): number {
    const units = this.#limiter.takeUpTo('', most);
    if (units > 0) this.account.push({ at: this.clock.now(), units });
    return units;
  }

  /** Returns units of one take, by its time. */
  giveBack(which: number, most: number): void {
    const taken = this.account[which % this.account.length];
    if (!taken) return;
    const units = Math.min(most, taken.units);
    taken.units -= units;
    this.#limiter.giveBack('', units, taken.at);
  }

  /** Returns units without a time: those that were taken last. */
  giveBackLast(most: number): void {
    let left = most;
    for (const taken of this.account.toReversed()) {
      const units = Math.min(left, taken.units);
      taken.units -= units;
      left -= units;
    }
    this.#limiter.giveBack('', most - left);
  }

  /** Units of all spans that end with the last take, with the length of the span. */
  *spans(): Generator<[units: number, spanMs: number]> {
    let units = 0;
    for (const taken of this.account.toReversed()) {
      units += taken.units;
      yield [units, this.clock.now() - taken.at];
    }
  }
}

type Step = [act: 'take' | 'giveBack' | 'giveBackLast', waitMs: number, units: number, of: number];

const steps = fc.array(
  fc.tuple(
    fc.constantFrom('take', 'take', 'giveBack', 'giveBackLast'),
    fc.oneof(fc.constant(0), fc.integer({ min: 0, max: 700 })),
    fc.integer({ min: 1, max: 20 }),
    fc.nat(20),
  ) as fc.Arbitrary<Step>,
  { minLength: 3, maxLength: 30 },
);

/** Each limit with the most that it promises for a span. */
const PROMISES: readonly (readonly [Limit, (spanMs: number) => number])[] = [
  [{ bucket: { rate: '20/s', burst: 20 } }, (spanMs) => 20 + spanMs * 0.02],
  [{ bucket: { rate: '5/s', burst: 15 } }, (spanMs) => 15 + spanMs * 0.005],
  [{ window: { limit: 20, per: '1s' } }, (spanMs) => 20 * (1 + Math.floor(spanMs / 1000))],
  [{ spacing: { every: '200ms' } }, (spanMs) => 1 + Math.floor(spanMs / 200)],
  // Calls are counted by the calendar second.
  [{ quota: { limit: 20, per: 'second' } }, (spanMs) => 20 * (2 + Math.floor(spanMs / 1000))],
  [{ ramp: { min: 20, max: 20, over: '1s' } }, (spanMs) => 20 * (2 + Math.floor(spanMs / 1000))],
];

describe('giving back', () => {
  test('bucket: tokens given back after they were refilled are not granted twice', () => {
    const caller = new Caller({ bucket: { rate: '20/s', burst: 20 } });
    expect(caller.take(10)).toBe(10);
    caller.clock.advance(550);
    expect(caller.take(20)).toBe(20);
    caller.giveBack(0, 10);
    expect(caller.take(10)).toBe(0);
  });

  test('bucket: returns all that the last taker did not use, and all of a take at this instant', () => {
    const caller = new Caller({ bucket: { rate: '20/s', burst: 20 } });
    expect(caller.take(20)).toBe(20);
    caller.clock.advance(250);
    caller.giveBack(0, 5);
    caller.giveBack(0, 5);
    expect(caller.take(20)).toBe(15); // 5 were refilled
    caller.giveBack(1, 15);
    expect(caller.take(20)).toBe(15);
  });

  test('bucket: without a time, what was taken last is returned', () => {
    const caller = new Caller({ bucket: { rate: '20/s', burst: 20 } });
    expect(caller.take(10)).toBe(10);
    caller.clock.advance(550);
    expect(caller.take(20)).toBe(20);
    caller.giveBackLast(10);
    expect(caller.take(20)).toBe(10);
  });

  test.each(PROMISES.map(([limit, promise]) => [JSON.stringify(limit), limit, promise] as const))(
    'giving back: %s grants no span more than it promises, less what was returned',
    (_name, limit, promise) => {
      fc.assert(
        fc.property(steps, (all) => {
          const caller = new Caller(limit);
          for (const [act, waitMs, units, of] of all) {
            caller.clock.advance(waitMs);
            if (act === 'giveBack') caller.giveBack(of, units);
            else if (act === 'giveBackLast') caller.giveBackLast(units);
            else caller.take(units);
            for (const [net, spanMs] of caller.spans())
              expect(net).toBeLessThanOrEqual(promise(spanMs) + 1e-6);
          }
        }),
        { numRuns: 600 },
      );
    },
  );
});
