import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { NEVER, WHEN_SETTLED } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { seededRandom } from '../core/random.ts';
import { limiter } from '../limiter/limiter.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { createPolicy } from './limit.ts';

const live = { partition: 'live' };
const batch = { partition: 'batch' };

function sinkOf(limit: number, partitions: Record<string, number> = { live: 0.9, batch: 0.1 }) {
  const clock = new VirtualClock();
  const sink = limiter({ limit: { concurrency: { limit, partitions } }, clock });
  const check = (options: object, times = 1): number =>
    Array.from(
      { length: times },
      () => sink.check('', 1, { ...options, willSettle: true }).verdict,
    ).filter((verdict) => verdict === 'allow').length;
  const settle = (options: { partition?: string }, times = 1): void => {
    for (let n = 0; n < times; n++) sink.settle('', { ...options, rttMs: 10 });
  };
  const inFlight = () => sink.inspect('').partitions;
  return { clock, sink, check, settle, inFlight };
}

describe('partitions', () => {
  test('partitions: one partition may use what another leaves unused', () => {
    const { check, inFlight } = sinkOf(10);
    expect(check(batch, 20)).toBe(10);
    expect(inFlight()).toEqual({ live: 0, batch: 10 });
  });

  test('partitions: a partition refused below its part gets the next free slots, within the limit', () => {
    const { check, settle, inFlight, sink, clock } = sinkOf(10);
    check(batch, 10);
    expect(check(live, 9)).toBe(0); // no free slot yet, but the demand is recorded
    for (let n = 1; n <= 9; n++) {
      settle(batch);
      expect(check(batch)).toBe(0); // kept for live
      expect(check(live)).toBe(1);
      expect(sink.inspect('').inFlight).toBe(10);
    }
    expect(inFlight()).toEqual({ live: 9, batch: 1 });
    settle(live);
    check(live, 2); // one more than its part
    clock.advance(1001);
    settle(batch);
    expect(check(live)).toBe(1); // batch's demand has expired: no slot is kept for it
    expect(inFlight()).toEqual({ live: 10, batch: 0 });
  });

  test('partitions: the smallest partition gets its part too', () => {
    const { check, settle, inFlight } = sinkOf(10);
    check(live, 10);
    expect(check(batch)).toBe(0);
    settle(live);
    expect(check(live)).toBe(0);
    expect(check(batch)).toBe(1);
    expect(inFlight()).toEqual({ live: 9, batch: 1 });
  });

  test('partitions: takeUpTo takes no slot kept for a partition', () => {
    const { check, settle, sink, inFlight } = sinkOf(10);
    check(batch, 10);
    check(live, 9);
    settle(batch, 3);
    expect(sink.takeUpTo('', Infinity)).toBe(0); // it names no partition, and none of the three is free
    expect(check(live, 4)).toBe(3);
    expect(inFlight()).toEqual({ live: 3, batch: 7 });
  });

  test('partitions: an unknown index counts as no partition and writes nowhere else', () => {
    const options = { concurrency: { limit: 4, partitions: { live: 0.5, batch: 0.5 } } };
    const policy = createPolicy(options, seededRandom(1));
    const state = new Float64Array(policy.width * 3).fill(-77);
    const i = policy.width;
    policy.init(state, i, 0);
    for (const partitionIndex of [-1, 2, 3]) {
      expect(policy.check(state, i, 1, 0, partitionIndex).verdict).toBe('allow');
      policy.settle(state, i, { outcome: 'ok', cost: 1, dueAt: 0, partition: partitionIndex }, 0);
    }
    expect(policy.keyState(state, i, 0).partitions).toEqual({ live: 0, batch: 0 });
    const neighbours = [...state.subarray(0, i), ...state.subarray(i + policy.width)];
    expect(new Set(neighbours)).toEqual(new Set([-77]));
  });

  test('partitions: learning does not depend on the partition', () => {
    const partitions = { live: 0.5, batch: 0.3 };
    const options = { rule: 'aimd', initial: 4, slowStart: true };
    const [plain, parted] = [options, { ...options, partitions }].map((adaptive) =>
      createPolicy({ adaptive }, seededRandom(1)),
    );
    const [one, other] = [plain, parted].map((policy) => {
      const state = new Float64Array(policy.width);
      policy.init(state, 0, 0);
      const limits: unknown[] = [];
      for (let n = 1; n <= 60; n++) {
        const now = n * 2000; // demand of the round before has expired
        const partitionIndex = [0, 1, 2, 3, -1, undefined][n % 6];
        const checks = Array.from(
          { length: 99 },
          () => policy.check(state, 0, 1, now, partitionIndex).verdict,
        );
        const started = checks.filter((verdict) => verdict === 'allow').length;
        const rttMs = 100 + ((n * 37) % 20) * (n % 10 === 0 ? 9 : 1);
        const over = {
          outcome: 'ok' as const,
          cost: started,
          dueAt: now,
          partition: partitionIndex,
          rttMs,
        };
        policy.settle(state, 0, over, now + rttMs);
        const { limit, inFlight, rttMs: normal } = policy.keyState(state, 0, now);
        limits.push({ limit, inFlight, normal });
      }
      return limits;
    });
    expect(other).toEqual(one);
  });

  test('partitions: demand lasts two round trips, and a refusal for it says until when', () => {
    const { check, sink, clock } = sinkOf(10, { live: 0.5, batch: 0.5 });
    check(batch, 1);
    clock.advance(2000);
    sink.settle('', { ...batch, rttMs: 2000 });
    check(batch, 10);
    check(live, 1);
    sink.settle('', { ...batch, rttMs: 2000 });
    const refused = (): unknown => sink.check('', 1, { ...batch, willSettle: true });
    expect(refused()).toMatchObject({ verdict: 'deny', retryAfterMs: 4001 });
    clock.advance(4000);
    expect(refused()).toMatchObject({ verdict: 'deny', retryAfterMs: 1 });
    clock.advance(1);
    expect(check(batch)).toBe(1);
  });

  test('partitions: demand adds up while it lasts, and starts again after it expired', () => {
    const { check, settle, clock } = sinkOf(10, { live: 0.5, batch: 0.5 });
    clock.advance(5000);
    check(batch, 10);
    check(live, 2);
    settle(batch, 3);
    expect(check(batch, 3)).toBe(1); // two are kept
    clock.advance(1001);
    expect(check(batch, 2)).toBe(2);
    check(live, 1);
    settle(batch, 3);
    expect(check(batch, 3)).toBe(2); // one is kept: the two before have expired
  });

  test('partitions: demand lasts to the last millisecond of its second', () => {
    const { check, settle, clock } = sinkOf(10, { live: 0.5, batch: 0.5 });
    check(batch, 10);
    check(live, 1);
    clock.advance(1000);
    check(live, 1);
    settle(batch, 3);
    expect(check(batch, 3)).toBe(1); // both are kept
  });

  test('partitions: satisfied demand keeps no slot', () => {
    const { check, settle } = sinkOf(10, { live: 0.5, batch: 0.5 });
    check(batch, 10);
    check(live, 2);
    settle(batch, 5);
    expect(check(live, 2)).toBe(2);
    expect(check(batch, 5)).toBe(3);
  });

  test('partitions: keeps at most the part of a partition, and nothing from itself', () => {
    const { check, settle, sink } = sinkOf(10, { live: 0.5, batch: 0.1 });
    check(live, 4);
    check(batch, 6);
    expect(sink.check('', 3, { ...live, willSettle: true }).verdict).toBe('deny');
    settle(batch, 3);
    expect(check(batch, 3)).toBe(2); // live has four of its five
    settle(batch, 2);
    expect(sink.check('', 3, { ...live, willSettle: true }).verdict).toBe('allow');
  });

  test('partitions: two refused partitions keep no slots from each other', () => {
    const { check, settle } = sinkOf(2, { live: 0.5, batch: 0.5 });
    check({}, 2);
    expect([check(live), check(batch)]).toEqual([0, 0]);
    settle({});
    expect(check(live)).toBe(1);
    settle({});
    expect(check(batch)).toBe(1);
  });

  test('partitions: a call without partition gets the time until demand expires, however often it checks', () => {
    const { check, settle, sink, clock } = sinkOf(10);
    clock.advance(5000);
    check({}, 10);
    check(live, 2);
    settle({});
    for (const [waited, retryAfterMs] of [
      [500, 501],
      [900, 101],
    ]) {
      clock.advance(5000 + waited - clock.now());
      expect(sink.check('', 1, { willSettle: true })).toMatchObject({
        verdict: 'deny',
        retryAfterMs,
      });
    }
    expect(sink.check('', 0)).toMatchObject({ verdict: 'allow' }); // a cost of 0 is never refused
    clock.advance(101);
    expect(check({})).toBe(1);
  });

  test('partitions: without demand it decides as without partitions', () => {
    const { check, sink } = sinkOf(10);
    check(batch, 10);
    expect(sink.check('', 1, { ...batch, willSettle: true })).toMatchObject({
      retryAfterMs: WHEN_SETTLED,
    });
    expect(sink.check('', 11, { ...batch, willSettle: true })).toMatchObject({
      retryAfterMs: NEVER,
    });
  });

  test('partitions: repeated refusals name the same instant', () => {
    const { check, settle, sink, clock } = sinkOf(10);
    check(batch, 10);
    check(live);
    settle(batch, 1);
    for (const retryAfterMs of [701, 401, 101]) {
      clock.advance(300);
      expect(sink.check('', 1, { ...batch, willSettle: true })).toMatchObject({
        verdict: 'deny',
        retryAfterMs,
      });
    }
    clock.advance(101);
    expect(check(batch)).toBe(1);
  });

  test('partitions: demand that is not repeated expires', () => {
    const { check, settle, clock } = sinkOf(10);
    check(batch, 10);
    expect(check(live, 5)).toBe(0);
    clock.advance(1001);
    settle(batch, 3);
    expect(check(batch, 5)).toBe(3);
  });

  test('partitions: a call without partition gets what partitions leave', () => {
    const { check, settle } = sinkOf(4, { live: 0.5 });
    expect(check({}, 9)).toBe(4);
    expect(check(live, 2)).toBe(0);
    settle({}, 2);
    expect(check({}, 2)).toBe(0);
    expect(check(live, 2)).toBe(2);
  });

  test('partitions: each partition has its own wait queue', async () => {
    const clock = new VirtualClock();
    const partitions = { live: 0.5, batch: 0.5 };
    const sink = limiter({ limit: { concurrency: { limit: 2, partitions } }, clock });
    const order: string[] = [];
    const call = async (name: string, options: object): Promise<void> => {
      const permit = await sink.acquire('', 1, options);
      order.push(`${clock.now()} ${name}`);
      clock.wakeAt(clock.now() + 100, () => permit.verdict === 'allow' && permit.settle());
    };
    for (const n of [1, 2, 3, 4]) call(`batch ${n}`, batch);
    for (const n of [1, 2]) call(`live ${n}`, live);
    await clock.advanceAsync(1000);
    expect(order).toEqual([
      '0 batch 1',
      '0 batch 2',
      '100 live 1', // before batch 3, which came earlier: live had less than its part
      '100 batch 3',
      '200 live 2',
      '200 batch 4',
    ]);
  });

  test('partitions: no waiter waits for ever for a slot kept for a partition that left', async () => {
    const { sink, clock, check, settle } = sinkOf(10, { live: 0.8, batch: 0.2 });
    check(live, 8);
    check(batch, 2);
    check(live, 8); // refused, and never seen again
    let at = -1;
    sink.acquire('', 1, batch).then(() => {
      at = clock.now();
    });
    settle(live, 8);
    await clock.advanceAsync(5000);
    expect(at).toBe(1001);
  });

  test('partitions: a cancelled waiter keeps no slot', async () => {
    const { sink, clock, check, settle } = sinkOf(2, { live: 0.5, batch: 0.5 });
    check({}, 2);
    const giveUp = new AbortController();
    const leaving = [live, batch].map((options) =>
      sink.acquire('', 1, { ...options, signal: giveUp.signal }).catch(() => {}),
    );
    let isIn = false;
    sink.acquire('').then(() => {
      isIn = true;
    });
    giveUp.abort();
    await Promise.all(leaving);
    settle({});
    await clock.advanceAsync(2100);
    expect(isIn).toBe(true);
  });

  test('partitions: under any traffic the limit holds, and a partition with demand gets its part', () => {
    const partitions = { a: 0.5, b: 0.3, c: 0.2 };
    const names = Object.keys(partitions) as (keyof typeof partitions)[];
    fc.assert(
      fc.property(
        fc.integer({ min: 5, max: 40 }),
        fc.array(fc.nat(2), { minLength: 100, maxLength: 300 }),
        (fixed, who) => {
          const { sink, check, settle, inFlight } = sinkOf(fixed, partitions);
          const had = () => inFlight() as Record<string, number>;
          for (const n of who) {
            check({ partition: names[n] });
            expect(sink.inspect('').inFlight).toBeLessThanOrEqual(fixed);
          }
          // From here on every partition has demand, and calls settle in turn.
          for (let n = 0; n < fixed * 6; n++) {
            for (const name of names) check({ partition: name }, fixed);
            const ending = names.filter((name) => had()[name] > 0)[n % 3] ?? names[0];
            if (had()[ending] > 0) settle({ partition: ending });
            for (const name of names) check({ partition: name });
          }
          for (const name of names) {
            expect(had()[name]).toBeGreaterThanOrEqual(Math.floor(fixed * partitions[name] + 1e-9));
          }
        },
      ),
      { numRuns: 50 },
    );
  });

  test('partitions: invalid fractions and names are refused, naming the field', () => {
    const make = (partitions: unknown) => () =>
      limiter({ limit: { adaptive: { partitions } } as never });
    expect(make({ live: 0.9, batch: 0.2 })).toThrow(
      'expected `limit.adaptive.partitions` to be fractions that add up to at most 1, got 1.1',
    );
    expect(make({ live: 0 })).toThrow('limit.adaptive.partitions.live');
    expect(make({})).toThrow(ConfigError);
    expect(make([0.5])).toThrow(ConfigError);
    const many = (count: number) =>
      Object.fromEntries(Array.from({ length: count }, (_, n) => [`p${n}`, 0.01]));
    expect(make(many(64))).not.toThrow();
    expect(make(many(65))).toThrow('to be 1 to 64 names with their fractions');
    const { sink } = sinkOf(1);
    expect(() => sink.check('', 1, { partition: 'love' })).toThrow(
      'expected `partition` to be one of live, batch, got "love"',
    );
    const plain = limiter({ limit: { adaptive: {} } });
    expect(() => plain.check('', 1, live)).toThrow('left out: the limit has none');
  });
});
