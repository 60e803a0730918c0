import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { Limits, type PeerLimit } from './limits.ts';
import { Anticipation } from './prediction.ts';

const BURST = 10;
const RATE = 10;

/** A bucket that only says how much of it is spent, on a clock of its own. */
function bucket() {
  let spent = 0;
  let at = 0;
  const flow = (now: number): void => {
    spent = Math.max(0, spent - ((now - at) * RATE) / 1000);
    at = now;
  };
  return {
    flow,
    spend: (hits: number) => {
      spent = Math.max(0, spent + hits);
    },
    get spent() {
      return spent;
    },
  };
}

/** One limit whose others are anticipated, beside the same bucket without. */
function beside(addsUp = true) {
  const held = bucket();
  const plain = bucket();
  const limits = new Limits();
  const limit: PeerLimit = {
    id: 7,
    addsUp,
    hear: () => {},
    buckets: 1,
    stateFrom: () => ({ standings: [], next: 0 }),
    raise: () => {},
    level: () => held.spent,
    move: (_low, _high, by) => held.spend(by),
  };
  limits.join(limit);
  const anticipation = new Anticipation(limits);
  const at = (now: number): void => {
    held.flow(now);
    plain.flow(now);
  };
  const served = (hits: number, now: number): void => {
    at(now);
    for (const own of [held, plain]) own.spend(hits);
    anticipation.served([7, 1, 2, hits], now);
  };
  const heard = (hits: number, now: number): void => {
    at(now);
    anticipation.heard([7, 1, 2, hits], now);
    for (const own of [held, plain]) own.spend(hits);
  };
  return { anticipation, held, plain, at, served, heard, more: () => held.spent - plain.spent };
}

describe('hits that are expected of others', () => {
  test('nobody else was there: nothing is held back', () => {
    const { served, more } = beside();
    served(5, 0);
    expect(more()).toBe(0);
  });

  test('as many as they served lately for one served here, and no more than fits the time', () => {
    const { served, heard, more } = beside();
    served(1, 0);
    heard(6, 0);
    served(1, 0);
    expect(more()).toBeCloseTo((8 * 200) / 1000, 5); // three for one, but eight a second are 1.6 in 200 ms
    served(1, 0);
    expect(more()).toBeCloseTo((9 * 200) / 1000, 5);
  });

  test('what they then tell is met by what was held back', () => {
    const { served, heard, more, held } = beside();
    heard(4, 0);
    served(4, 0);
    const before = held.spent;
    expect(more()).toBeCloseTo(1.6, 5);
    heard(1, 0);
    expect(held.spent).toBeCloseTo(before, 5);
    expect(more()).toBeCloseTo(0.6, 5);
  });

  test('what they do not tell is given back in a moment', () => {
    const { anticipation, served, heard, more, at } = beside();
    heard(4, 0);
    served(4, 0);
    at(200);
    anticipation.tick(200);
    expect(more()).toBeCloseTo(1.6 / Math.E, 5);
    at(600);
    anticipation.tick(600);
    expect(more()).toBeLessThan(0.1);
  });

  test('a limit of several buckets is left alone', () => {
    const { served, heard, more } = beside(false);
    heard(4, 0);
    served(4, 0);
    expect(more()).toBe(0);
  });

  test('a busy key keeps its place, one that was busy makes room and gets back what was held', () => {
    const { anticipation, served, heard, more } = beside();
    const sharesItsPlace = 1 + 4096;
    heard(4, 0);
    served(4, 0);
    const held = more();
    expect(held).toBeGreaterThan(1);
    anticipation.heard([7, sharesItsPlace, 2, 1], 0);
    expect(more()).toBe(held);
    anticipation.heard([7, sharesItsPlace, 2, 1], 1001);
    expect(more()).toBeCloseTo(0, 5);
    expect(anticipation.of(7, 1, 2)).toBe(0);
  });

  test('never let through more, and are no more in the end, whatever the traffic', () => {
    const step = fc.record({
      afterMs: fc.integer({ min: 0, max: 900 }),
      hits: fc.integer({ min: 1, max: 5 }),
      isOwn: fc.boolean(),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const { anticipation, served, heard, more } = beside();
        let now = 0;
        for (const { afterMs, hits, isOwn } of steps) {
          now += afterMs;
          (isOwn ? served : heard)(hits, now);
          expect(more()).toBeGreaterThanOrEqual(-1e-9);
          expect(more()).toBeLessThanOrEqual(anticipation.of(7, 1, 2) + 1e-9);
          expect(more()).toBeLessThanOrEqual(BURST * 6);
        }
        anticipation.giveUp();
        expect(more()).toBeCloseTo(0, 6);
      }),
    );
  });
});
