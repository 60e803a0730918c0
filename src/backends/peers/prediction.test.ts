import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type PeerLimit, PeerLimits } from './limits.ts';
import { PeerPrediction } from './prediction.ts';

const BURST = 10;
const RATE = 10;

/** A bucket that only knows its level. */
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

/** A limit with prediction, and an equal bucket without. */
function beside(isAdditive = true) {
  const held = bucket();
  const plain = bucket();
  const limits = new PeerLimits();
  const limit: PeerLimit = {
    id: 7,
    isAdditive,
    isCompared: true,
    applyRemoteHits: () => {},
    buckets: 1,
    readPage: () => ({ refillTimes: [], next: 0 }),
    raiseLevel: () => {},
    level: () => held.spent,
    adjustLevel: (_low, _high, by) => held.spend(by),
  };
  limits.add(limit);
  const prediction = new PeerPrediction(limits);
  const at = (now: number): void => {
    held.flow(now);
    plain.flow(now);
  };
  const localHits = (hits: number, now: number): void => {
    at(now);
    for (const each of [held, plain]) each.spend(hits);
    prediction.onLocalHits([7, 1, 2, hits], now);
  };
  const remoteHits = (hits: number, now: number): void => {
    at(now);
    prediction.onRemoteHits([7, 1, 2, hits], now);
    for (const each of [held, plain]) each.spend(hits);
  };
  return {
    prediction,
    held,
    plain,
    at,
    localHits,
    remoteHits,
    more: () => held.spent - plain.spent,
  };
}

describe('prediction', () => {
  test('without remote hits, holds back nothing', () => {
    const { localHits, more } = beside();
    localHits(5, 0);
    expect(more()).toBe(0);
  });

  test('holds back in proportion to recent remote hits, at most what the fleet serves in 200 ms', () => {
    const { localHits, remoteHits, more } = beside();
    localHits(1, 0);
    remoteHits(6, 0);
    localHits(1, 0);
    expect(more()).toBeCloseTo((8 * 200) / 1000, 5); // three per local hit, but 8/s is 1.6 in 200 ms
    localHits(1, 0);
    expect(more()).toBeCloseTo((9 * 200) / 1000, 5);
  });

  test('reported hits replace predicted ones', () => {
    const { localHits, remoteHits, more, held } = beside();
    remoteHits(4, 0);
    localHits(4, 0);
    const before = held.spent;
    expect(more()).toBeCloseTo(1.6, 5);
    remoteHits(1, 0);
    expect(held.spent).toBeCloseTo(before, 5);
    expect(more()).toBeCloseTo(0.6, 5);
  });

  test('gives back predicted hits that are not reported, within a few 200 ms', () => {
    const { prediction, localHits, remoteHits, more, at } = beside();
    remoteHits(4, 0);
    localHits(4, 0);
    at(200);
    prediction.tick(200);
    expect(more()).toBeCloseTo(1.6 / Math.E, 5);
    at(600);
    prediction.tick(600);
    expect(more()).toBeLessThan(0.1);
  });

  test('ignores a limit of several buckets', () => {
    const { localHits, remoteHits, more } = beside(false);
    remoteHits(4, 0);
    localHits(4, 0);
    expect(more()).toBe(0);
  });

  test('a busy key keeps its slot; an idle one is evicted and its prediction given back', () => {
    const { prediction, localHits, remoteHits, more } = beside();
    const sameSlot = 1 + 4096;
    remoteHits(4, 0);
    localHits(4, 0);
    const held = more();
    expect(held).toBeGreaterThan(1);
    prediction.onRemoteHits([7, sameSlot, 2, 1], 0);
    expect(more()).toBe(held);
    prediction.onRemoteHits([7, sameSlot, 2, 1], 1001);
    expect(more()).toBeCloseTo(0, 5);
    expect(prediction.predictedFor(7, 1, 2)).toBe(0);
  });

  test('never adds capacity and gives back everything it held, for any traffic', () => {
    const step = fc.record({
      afterMs: fc.integer({ min: 0, max: 900 }),
      hits: fc.integer({ min: 1, max: 5 }),
      isLocal: fc.boolean(),
    });
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const { prediction, localHits, remoteHits, more } = beside();
        let now = 0;
        for (const { afterMs, hits, isLocal } of steps) {
          now += afterMs;
          (isLocal ? localHits : remoteHits)(hits, now);
          expect(more()).toBeGreaterThanOrEqual(-1e-9);
          expect(more()).toBeLessThanOrEqual(prediction.predictedFor(7, 1, 2) + 1e-9);
          expect(more()).toBeLessThanOrEqual(BURST * 6);
        }
        prediction.releaseAll();
        expect(more()).toBeCloseTo(0, 6);
      }),
    );
  });
});
