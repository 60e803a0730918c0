import { describe, expect, test } from 'vitest';
import { policyOf, replyAfter, Sender, workers } from '../../../test/support/sender.ts';
import { OUTCOMES, type Outcome } from '../../core/decision.ts';
import { type Random, seededRandom } from '../../core/random.ts';
import type { KeyState, Policy } from '../policy.ts';

/** Calls a second that a server with 20 workers of 50 ms can serve. */
const CAPACITY = 400;

/** A sender that knows this server. */
function settled(): { sender: Sender; server: ReturnType<typeof workers> } {
  const sender = new Sender();
  const server = workers(20, 50, 1);
  sender.run(66_000, server);
  return { sender, server };
}

describe('delay: the state of a key', () => {
  test('delay: a key has at most 64 numbers', () => {
    expect(policyOf().width).toBeLessThanOrEqual(64);
  });

  test('delay: a new key may be removed; one that has learnt or is in flight is kept', () => {
    const { policy, state } = new Sender();
    expect(policy.freshAt(state, 0, false)).toBe(-Infinity);
    policy.check(state, 0, 1, 0);
    expect(policy.freshAt(state, 0, false)).toBe(Infinity);
    expect(policy.freshAt(state, 0, true)).toBe(Infinity);
    policy.settle(state, 0, { outcome: 'ok', cost: 1, dueAt: 0, rttMs: 5 }, 5);
    expect(policy.freshAt(state, 0, false)).toBe(Infinity);
    expect(policy.freshAt(state, 0, true)).toBe(-Infinity); // a new one would have the same limit
  });

  test('delay: a key below `initial` or with a pace is evicted a minute after its last call', () => {
    const sender = new Sender({ initial: 20 });
    sender.run(10_000, replyAfter(500, 'busy'));
    sender.run(1000, replyAfter(5), { demand: 0 });
    const { policy, state, now } = sender;
    expect(policy.freshAt(state, 0, true)).toBeGreaterThan(now + 50_000);
    expect(policy.freshAt(state, 0, true)).toBeLessThanOrEqual(now + 60_000);
  });

  test('delay: a key that was evicted too early starts with one call, and learns', () => {
    const sender = new Sender({ initial: 30 }, 0, 60_000);
    expect(sender.limit).toBe(1);
    const server = workers(20, 50, 2);
    sender.run(60_000, server);
    expect(sender.run(10_000, server)).toBeGreaterThan(0.8 * CAPACITY);
  });

  test('delay: a change of `max` keeps calls in flight and what was learnt, up to the new bound', () => {
    const { sender } = settled();
    const { policy: before, state, now, key } = sender;
    for (const max of [5, 1000]) {
      const after = policyOf({ max });
      const converted = new Float64Array(after.width);
      after.convertFrom?.(before)?.(converted, 0, state, 0, now);
      const {
        limit,
        inFlight,
        baseRttMs,
        knee = 0,
        headroom = 0,
      } = after.keyState(converted, 0, now);
      expect(knee + headroom).toBeLessThanOrEqual(max);
      expect(limit).toBe(Math.min(max, key.limit ?? 0));
      expect({ inFlight, baseRttMs }).toEqual({ inFlight: key.inFlight, baseRttMs: key.baseRttMs });
    }
    expect(policyOf({ max: 9 }).convertFrom?.(policyOf({ rule: 'aimd' }))).toBeUndefined();
  });

  test('delay: members of a pool divide `max`, the remainder by rank', () => {
    const limits = [0, 1, 2].map((rank) => {
      const sender = new Sender({ initial: 10, max: 11 });
      const member = sender.policy.divide?.ofPool?.({ size: 3, rank, since: 0 }, 0) as Policy;
      member.init(sender.state, 0, 0);
      let admitted = 0;
      while (member.check(sender.state, 0, 1, 0).verdict === 'allow') admitted++;
      expect(member.check(sender.state, 0, 5, 0)).toMatchObject({ verdict: 'deny' });
      return admitted;
    });
    expect(limits).toEqual([4, 4, 3]);
  });

  test('delay: two keys in one array that take turns learn as each does alone', () => {
    const policy = policyOf();
    const { width } = policy;
    const run = (keys: readonly number[]): Float64Array => {
      const state = new Float64Array(3 * width).fill(-77);
      const random = [0, 1, 2].map((key) => seededRandom(key));
      for (const key of keys) policy.init(state, key * width, 0);
      for (let now = 0; now < 20_000; now++)
        for (const key of keys) actRandomly(policy, state, key * width, now, random[key]);
      return state;
    };
    const [both, first, last] = [[0, 2], [0], [2]].map(run);
    expect(both.subarray(0, width)).toEqual(first.subarray(0, width));
    expect(both.subarray(2 * width)).toEqual(last.subarray(2 * width));
    expect(new Set(both.subarray(width, 2 * width))).toEqual(new Set([-77]));
  });

  test('delay: a clock that is set back every few seconds changes neither rate nor limit much', () => {
    const { sender, server } = settled();
    let rate = 0;
    for (let n = 0; n < 20; n++) {
      sender.aheadMs -= 1000;
      rate += sender.run(3000, server) / 20;
    }
    expect(rate).toBeGreaterThan(0.8 * CAPACITY);
    expect(sender.peak).toBeLessThan(70); // 64 while it starts
  });

  test.each([1, 7, 300])(
    'delay: random traffic with max %i, every number is within its bounds',
    (max) => {
      const policy = policyOf({ initial: Math.ceil(max / 2), max });
      const state = new Float64Array(policy.width);
      const random = seededRandom(max);
      policy.init(state, 0, 0);
      for (let step = 0, now = 0; step < 100_000; step++) {
        now +=
          random() < 0.99 ? 10 * random() : random() < 0.5 ? 50_000 * random() : -5000 * random();
        actRandomly(policy, state, 0, now, random);
        requireBounded(policy.keyState(state, 0, now), max);
      }
    },
  );

  function actRandomly(
    policy: Policy,
    state: Float64Array,
    i: number,
    now: number,
    random: Random,
  ) {
    if (random() < 0.55) return policy.check(state, i, random() < 0.9 ? 1 : 3, now);
    const outcome: Outcome =
      random() < 0.8 ? 'ok' : OUTCOMES[Math.floor(random() * OUTCOMES.length)];
    const rttMs = 1 + 20 * random();
    policy.settle(state, i, { outcome, cost: 1, dueAt: now - rttMs, rttMs }, now);
  }

  /** Without `expect`, which would take longer than the rule. */
  function requireBounded(key: KeyState, max: number): void {
    const { limit = 0 } = key;
    const numbers = Object.values(key).filter((value) => typeof value === 'number');
    const areFinite = numbers.every((value) => Number.isFinite(value) && value >= 0);
    if (!areFinite || !Number.isInteger(limit) || limit < 1 || limit > max)
      throw new Error(`expected numbers within their bounds, got ${JSON.stringify(key)}`);
  }
});
