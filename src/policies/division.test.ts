import { describe, expect, test } from 'vitest';
import { deny, NEVER, WHEN_SETTLED } from '../core/decision.ts';
import { seededRandom } from '../core/random.ts';
import { createPolicy, type Limit } from './limit.ts';
import { type Policy, type PoolPosition, UNDIVIDED } from './policy.ts';

/** One member of a pool, with a single key. */
class Member {
  policy: Policy;
  readonly #state: Float64Array;
  #position: PoolPosition = UNDIVIDED;

  constructor(limit: Limit, size = 1, rank = -1) {
    this.policy = createPolicy(limit, seededRandom(1));
    this.#state = new Float64Array(this.policy.width);
    this.policy.init(this.#state, 0, 0);
    if (size > 1) this.moveTo(size, rank, 0);
  }

  moveTo(size: number, rank: number, now: number): void {
    const since = size === this.#position.size ? this.#position.since : now;
    this.#position = { size, rank, since };
    this.policy = this.policy.divide?.ofPool?.(this.#position, now) ?? this.policy;
  }

  check = (cost: number, now: number, partitionIndex?: number) =>
    this.policy.check(this.#state, 0, cost, now, partitionIndex);
  available = (now: number) => this.policy.available(this.#state.slice(), 0, now);
  ruleStatuses = (now: number) => this.policy.ruleStatuses(this.#state.slice(), 0, now);
  update = (hits: number, now: number) => this.policy.update(this.#state, 0, { hits }, now);
  ratePerSecond = () => this.policy.divide?.ratePerSecond?.(this.#state, 0, 0);

  /** Settles a call whose permit was valid from `dueAt`. */
  settle(cost: number, used: number, dueAt: number, now: number, partitionIndex?: number): void {
    this.policy.settle(
      this.#state,
      0,
      { outcome: 'ok', cost, used, dueAt, partition: partitionIndex },
      now,
    );
  }
}

const membersOf = (limit: Limit, size: number): Member[] =>
  Array.from({ length: size }, (_, rank) => new Member(limit, size, rank));

describe('divided bucket', () => {
  const TEN = { bucket: { rate: 10, burst: 10 } };
  /** Refills so slowly that no token comes back during a test. */
  const EIGHT = { bucket: { rate: '1/h', burst: 8 } } as const;

  test('divided bucket: has its part of burst and rate, in whole tokens', () => {
    const one = new Member(TEN, 4, 0);
    expect(one.ruleStatuses(0)).toMatchObject([{ quota: 2, remaining: 2, opensInMs: 0 }]);
    expect(one.ratePerSecond()).toBe(2.5);
    expect(one.check(3, 0)).toEqual(deny(NEVER));
    expect(one.check(2, 0)).toEqual({ verdict: 'allow', remaining: 0 });
    expect(one.check(1, 0)).toEqual(deny(200)); // half a token was left and counts
    expect(one.check(1, 200).verdict).toBe('allow');
    expect(one.check(1, 200)).toEqual(deny(400));
  });

  test('divided bucket: with fewer tokens than members, members take turns and retry times point to them', () => {
    const two = { bucket: { rate: 2, burst: 2 } };
    const decisionsAt = (now: number) => membersOf(two, 5).map((one) => one.check(1, now));
    const allowed = { verdict: 'allow', remaining: 0 };
    expect(decisionsAt(300)).toEqual([allowed, allowed, deny(2700), deny(1700), deny(700)]);
    expect(decisionsAt(7300)).toEqual([deny(2700), deny(1700), deny(700), allowed, allowed]);

    const waiting = new Member(two, 5, 2);
    expect(waiting.available(300)).toBe(0);
    expect(waiting.check(0, 300)).toEqual(allowed); // a cost of 0 is never refused
    expect(waiting.ruleStatuses(300)).toMatchObject([{ remaining: 0, opensInMs: 2700 }]);
    expect(waiting.check(1, 2999)).toEqual(deny(1));
    expect(waiting.available(3000)).toBe(1);
    expect(waiting.check(1, 3000)).toEqual(allowed);
  });

  test('divided bucket: without a rank a member has no turn and retries every second', () => {
    const unranked = new Member({ bucket: { rate: 2, burst: 2 } }, 5);
    expect(unranked.check(1, 300)).toEqual(deny(1000));
    unranked.moveTo(2, -1, 1300); // as many members as tokens: no turns needed
    expect(unranked.check(1, 1300).verdict).toBe('allow');
  });

  test('divided bucket: gives back what was taken, even if the pool has grown since', () => {
    const one = new Member(EIGHT);
    one.check(6, 0);
    one.moveTo(4, 0, 10);
    one.settle(2, 0, 0, 10); // two tokens of the whole bucket, not of a part
    expect(one.available(10)).toBe(1);
    one.check(1, 10);
    one.moveTo(4, 0, 20); // same size: what was taken since keeps its price
    one.settle(1, 0, 10, 20);
    expect(one.available(20)).toBe(1);
    one.settle(0, 1, 0, 20); // use beyond the cost is charged at the current price, whenever it began
    expect(one.check(1, 20)).toEqual(deny(4 * 3_600_000 - 20)); // one unit here costs four tokens
  });
});

test('divided spacing: keeps the rate of all members together', () => {
  const one = new Member({ spacing: { every: 100 } }, 3, 0);
  expect(one.ratePerSecond()).toBeCloseTo(1000 / 300, 12);
  expect(one.check(1, 0).verdict).toBe('allow');
  expect(one.check(1, 100)).toEqual(deny(200));
  expect(one.ruleStatuses(100)).toMatchObject([{ quota: 1, windowMs: 300, freshInMs: 200 }]);
});

describe('divided window', () => {
  const TEN = { window: { limit: 10, per: '1m', steps: 6 } } as const;

  test('divided window: members add up to the whole limit, the remainder goes by rank', () => {
    expect(membersOf(TEN, 4).map((one) => one.available(0))).toEqual([3, 3, 2, 2]);
    expect(new Member(TEN, 4).available(0)).toBe(2);
    expect(
      membersOf({ window: { limit: 2, per: '1m' } }, 3).map((one) => one.available(0)),
    ).toEqual([1, 1, 0]);
    const one = new Member(TEN, 4, 0);
    expect(one.ratePerSecond()).toBe(3 / 60);
    expect(one.ruleStatuses(0)).toMatchObject([{ quota: 3, windowMs: 60_000, remaining: 3 }]);
  });

  test('divided window: a smaller part counts at once, a larger one after a window', () => {
    const one = new Member(TEN, 2, 0);
    expect(one.check(3, 0)).toEqual({ verdict: 'allow', remaining: 2 });
    one.moveTo(5, 0, 1000);
    expect(one.check(1, 1000)).toEqual(deny(69_000));
    one.moveTo(1, 0, 20_000); // the others may have spent their parts
    expect(one.available(70_000)).toBe(2);
    expect(one.check(3, 70_000)).toEqual(deny(20_000));
    expect(one.available(89_999)).toBe(2);
    expect(one.check(10, 90_000).verdict).toBe('allow');
  });

  test('divided window: a cost above the part is refused until the pool may have shrunk', () => {
    const one = new Member(TEN, 5, 0);
    expect(one.check(3, 0)).toEqual(deny(60_000));
    expect(one.check(11, 0)).toEqual(deny(NEVER));
  });
});

describe('divided ramp', () => {
  const TEN = { ramp: { min: 10, max: 20, over: '10s', mode: 'only-if-used' } } as const;

  test('divided ramp: members add up to the whole level, the remainder rotates by rank and second', () => {
    const members = membersOf(TEN, 4);
    expect(members.map((one) => one.available(0))).toEqual([3, 3, 2, 2]);
    expect(members.map((one) => one.available(1000))).toEqual([3, 2, 2, 3]);
    expect(members.map((one) => one.ratePerSecond())).toEqual([2.5, 2.5, 2.5, 2.5]);
  });

  test('divided ramp: a changed rank at the same size moves the turns', () => {
    const one = new Member(TEN, 4, 0);
    expect(one.check(1, 0)).toEqual({ verdict: 'allow', remaining: 2 });
    one.moveTo(4, 2, 100);
    expect(one.available(100)).toBe(1);
  });

  test('divided ramp: without a rank a member has its even part in every second', () => {
    const unranked = new Member(TEN, 3);
    for (const now of [0, 1000, 2000]) {
      expect(unranked.ruleStatuses(now)).toMatchObject([{ quota: 3, remaining: 3 }]);
    }
  });

  test.each([0, -1])(
    'divided ramp: growth of a part is available at once, shrinkage counts at once (rank %i)',
    (rank) => {
      const one = new Member(TEN, 2, rank);
      one.check(3, 0);
      expect(one.available(0)).toBe(2);
      one.moveTo(1, rank, 100);
      expect(one.check(3, 100)).toEqual({ verdict: 'allow', remaining: 4 });
      one.moveTo(2, rank, 200);
      expect(one.check(1, 200)).toEqual(deny(800)); // six are more than its five
      one.moveTo(1, rank, 300);
      expect(one.check(1, 300)).toEqual({ verdict: 'allow', remaining: 3 });
      one.check(3, 300);
      expect(one.available(1000)).toBe(11); // all ten were used
    },
  );

  test('divided ramp: hits reported from elsewhere survive a change of position', () => {
    const remainingAfter = (
      [before, after]: readonly number[],
      hits: number,
      size: number,
    ): number => {
      const one = new Member(TEN, 2, before);
      one.update(hits, 0);
      expect(one.check(1, 0)).toEqual({ verdict: 'allow', remaining: 2 }); // of five
      one.moveTo(size, after, 100);
      return one.available(100);
    };
    expect(remainingAfter([0, 0], 2, 1)).toBe(7);
    expect(remainingAfter([0, -1], 2, 2)).toBe(2);
    expect(remainingAfter([-1, 0], 4, 2)).toBe(2); // without a rank, hits count against the whole level
    expect(remainingAfter([-1, -1], 4, 1)).toBe(5); // and keep their number
    expect(remainingAfter([-1, -1], 4, 3)).toBe(1); // 3 tokens of 10, among three members
  });
});

describe('divided concurrency', () => {
  const TEN = { concurrency: 10 };

  test('divided concurrency: members add up to the whole limit, the remainder goes by rank', () => {
    expect(membersOf(TEN, 4).map((one) => one.available(0))).toEqual([3, 3, 2, 2]);
    expect(new Member(TEN, 4).available(0)).toBe(2);
    expect(membersOf({ concurrency: 2 }, 3).map((one) => one.available(0))).toEqual([1, 1, 0]);
  });

  test('divided concurrency: partitions keep slots for a refused partition within the part', () => {
    const partitions = { live: 0.8, batch: 0.2 };
    const one = new Member({ concurrency: { limit: 10, partitions } }, 2, 0);
    const [live, batch] = [0, 1];
    expect(one.check(5, 0, batch).verdict).toBe('allow');
    expect(one.check(4, 0, live).verdict).toBe('deny');
    one.settle(2, 2, 0, 0, batch);
    expect(one.check(1, 0, batch).verdict).toBe('deny');
    expect(one.check(2, 0, live).verdict).toBe('allow');
  });

  test('divided concurrency: a cost above the part waits, and fits once the pool shrinks', () => {
    const one = new Member(TEN, 4, 0);
    expect(one.check(4, 0)).toEqual(deny(WHEN_SETTLED));
    one.moveTo(2, 0, 0);
    expect(one.check(4, 0)).toEqual({ verdict: 'allow', remaining: 1 });
    one.moveTo(1, 0, 0);
    expect(one.check(11, 0)).toEqual(deny(NEVER));
  });
});

describe('divided all', () => {
  const COMPONENTS = [{ bucket: { rate: 10, burst: 20 } }, { spacing: { every: 50 } }];

  test('divided all: each component is divided; the slowest sets rate and refill time', () => {
    const one = new Member({ all: COMPONENTS }, 4, 0);
    expect(one.ratePerSecond()).toBe(2.5);
    expect(one.policy.traits.refillMs).toBe(2000);
    expect(one.check(1, 0).verdict).toBe('allow');
    expect(one.check(1, 0)).toEqual({ ...deny(200), rule: 'spacing' });
    expect(one.ruleStatuses(0)).toMatchObject([{ quota: 5 }, { windowMs: 200 }]);
  });

  test('divided all: is indivisible if one component is', () => {
    const { policy } = new Member({ all: [...COMPONENTS, { busy: {} }] });
    expect(policy.divide).toBeUndefined();
    expect(policy.traits.refillMs).toBeUndefined();
  });

  test('divided all: has no rate if all components count calls in flight', () => {
    const inFlight = { concurrency: 3 };
    expect(new Member({ all: [inFlight, inFlight] }).ratePerSecond()).toBeUndefined();
    expect(new Member({ all: [inFlight, ...COMPONENTS] }, 2, 0).ratePerSecond()).toBe(5);
  });
});
