import { describe, expect, test } from 'vitest';
import { deny, NEVER, WHEN_SETTLED } from '../core/decision.ts';
import { seededRandom } from '../core/random.ts';
import { createPolicy, type Limit } from './limit.ts';
import type { Policy } from './policy.ts';

/** One of several that share a limit, and the only key it has. */
class Member {
  readonly policy: Policy;
  readonly #state: Float64Array;

  constructor(limit: Limit, size = 1, rank = -1) {
    this.policy = createPolicy(limit, seededRandom(1));
    this.#state = new Float64Array(this.policy.width);
    this.policy.init(this.#state, 0, 0);
    if (size > 1) this.divide(size, rank, 0);
  }

  divide(size: number, rank: number, now: number): void {
    this.policy.divide?.({ size, rank }, now);
  }

  check = (cost: number, now: number, partitionIndex?: number) =>
    this.policy.check(this.#state, 0, cost, now, partitionIndex);
  available = (now: number) => this.policy.available(this.#state.slice(), 0, now);
  ruleStatuses = (now: number) => this.policy.ruleStatuses(this.#state.slice(), 0, now);
  update = (hits: number, now: number) => this.policy.update(this.#state, 0, { hits }, now);
  ratePerSecond = () => this.policy.ratePerSecond?.(this.#state, 0, 0);

  /** A call that was good at `dueAt` is over. */
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

describe('a bucket that is divided', () => {
  const TEN = { bucket: { rate: 10, burst: 10 } };
  /** It refills so slowly that nothing comes back while one looks. */
  const EIGHT = { bucket: { rate: '1/h', burst: 8 } } as const;

  test('has its part of burst and rate, in whole tokens', () => {
    const one = new Member(TEN, 4, 0);
    expect(one.ruleStatuses(0)).toMatchObject([{ quota: 2, remaining: 2, opensInMs: 0 }]);
    expect(one.ratePerSecond()).toBe(2.5);
    expect(one.check(3, 0)).toEqual(deny(NEVER));
    expect(one.check(2, 0)).toEqual({ verdict: 'allow', remaining: 0 });
    expect(one.check(1, 0)).toEqual(deny(200)); // half a token was left: it counts
    expect(one.check(1, 200).verdict).toBe('allow');
    expect(one.check(1, 200)).toEqual(deny(400));
  });

  test('with fewer tokens than members they take turns, and are told when theirs is', () => {
    const two = { bucket: { rate: 2, burst: 2 } };
    const answersAt = (now: number) => membersOf(two, 5).map((one) => one.check(1, now));
    const go = { verdict: 'allow', remaining: 0 };
    expect(answersAt(300)).toEqual([go, go, deny(2700), deny(1700), deny(700)]);
    expect(answersAt(7300)).toEqual([deny(2700), deny(1700), deny(700), go, go]);

    const waiting = new Member(two, 5, 2);
    expect(waiting.available(300)).toBe(0);
    expect(waiting.check(0, 300)).toEqual(go); // a look never refuses, and tells what there is
    expect(waiting.ruleStatuses(300)).toMatchObject([{ remaining: 0, opensInMs: 2700 }]);
    expect(waiting.check(1, 2999)).toEqual(deny(1));
    expect(waiting.available(3000)).toBe(1);
    expect(waiting.check(1, 3000)).toEqual(go);
  });

  test('without a rank it has no turn, and asks again every second whether it has one now', () => {
    const stranger = new Member({ bucket: { rate: 2, burst: 2 } }, 5);
    expect(stranger.check(1, 300)).toEqual(deny(1000));
    stranger.divide(2, -1, 1300); // as many as there are tokens: nobody needs a turn
    expect(stranger.check(1, 1300).verdict).toBe('allow');
  });

  test('gives back what was taken, also if there are more of them by now', () => {
    const one = new Member(EIGHT);
    one.check(6, 0);
    one.divide(4, 0, 10);
    one.settle(2, 0, 0, 10); // two of the whole bucket, not two parts of it
    expect(one.available(10)).toBe(1);
    one.check(1, 10);
    one.divide(4, 0, 20); // as before: what was taken since is worth what it was
    one.settle(1, 0, 10, 20);
    expect(one.available(20)).toBe(1);
    one.settle(0, 1, 0, 20); // what was used beyond is owed by all of them, whenever it began
    expect(one.check(1, 20)).toEqual(deny(4 * 3_600_000 - 20)); // a part is four tokens
  });
});

test('spacing that is divided keeps the rate of all together', () => {
  const one = new Member({ spacing: { every: 100 } }, 3, 0);
  expect(one.ratePerSecond()).toBeCloseTo(1000 / 300, 12);
  expect(one.check(1, 0).verdict).toBe('allow');
  expect(one.check(1, 100)).toEqual(deny(200));
  expect(one.ruleStatuses(100)).toMatchObject([{ quota: 1, windowMs: 300, freshInMs: 200 }]);
});

describe('a ramp that is divided', () => {
  const TEN = { ramp: { min: 10, max: 20, over: '10s', mode: 'only-if-used' } } as const;

  test('is all of its pool and no more, what an even division leaves by rank and second', () => {
    const members = membersOf(TEN, 4);
    expect(members.map((one) => one.available(0))).toEqual([3, 3, 2, 2]);
    expect(members.map((one) => one.available(1000))).toEqual([3, 2, 2, 3]);
    expect(members.map((one) => one.ratePerSecond())).toEqual([2.5, 2.5, 2.5, 2.5]);
  });

  test('with another rank it has the turns of that one, though they are as many as before', () => {
    const one = new Member(TEN, 4, 0);
    expect(one.check(1, 0)).toEqual({ verdict: 'allow', remaining: 2 });
    one.divide(4, 2, 100);
    expect(one.available(100)).toBe(1);
  });

  test('without a rank it has its even part, whatever the second', () => {
    const stranger = new Member(TEN, 3);
    for (const now of [0, 1000, 2000]) {
      expect(stranger.ruleStatuses(now)).toMatchObject([{ quota: 3, remaining: 3 }]);
    }
  });

  test.each([0, -1])(
    'has what its part grew by at once, and not what it shrank by (rank %i)',
    (rank) => {
      const one = new Member(TEN, 2, rank);
      one.check(3, 0);
      expect(one.available(0)).toBe(2);
      one.divide(1, rank, 100);
      expect(one.check(3, 100)).toEqual({ verdict: 'allow', remaining: 4 });
      one.divide(2, rank, 200);
      expect(one.check(1, 200)).toEqual(deny(800)); // six are more than its five
      one.divide(1, rank, 300);
      expect(one.check(1, 300)).toEqual({ verdict: 'allow', remaining: 3 });
      one.check(3, 300);
      expect(one.available(1000)).toBe(11); // all ten were used
    },
  );

  test('what others served stays served, whatever becomes of the part', () => {
    const leftAfter = ([before, after]: readonly number[], hits: number, size: number): number => {
      const one = new Member(TEN, 2, before);
      one.update(hits, 0);
      expect(one.check(1, 0)).toEqual({ verdict: 'allow', remaining: 2 }); // of five
      one.divide(size, after, 100);
      return one.available(100);
    };
    expect(leftAfter([0, 0], 2, 1)).toBe(7);
    expect(leftAfter([0, -1], 2, 2)).toBe(2);
    expect(leftAfter([-1, 0], 4, 2)).toBe(2); // without a rank it is heard of the whole pool
    expect(leftAfter([-1, -1], 4, 1)).toBe(5); // and stays as many of it
    expect(leftAfter([-1, -1], 4, 3)).toBe(1); // three of ten, among three
  });
});

describe('calls in flight that are divided', () => {
  const TEN = { adaptive: { fixed: 10 } };

  test('are all of them and no more, those that an even division leaves by rank', () => {
    expect(membersOf(TEN, 4).map((one) => one.available(0))).toEqual([3, 3, 2, 2]);
    expect(new Member(TEN, 4).available(0)).toBe(2);
    expect(membersOf({ adaptive: { fixed: 2 } }, 3).map((one) => one.available(0))).toEqual([
      1, 1, 0,
    ]);
  });

  test('keep their partitions: what one was refused is kept for it, of the places there are here', () => {
    const partitions = { live: 0.8, batch: 0.2 };
    const one = new Member({ adaptive: { fixed: 10, partitions } }, 2, 0);
    const [live, batch] = [0, 1];
    expect(one.check(5, 0, batch).verdict).toBe('allow');
    expect(one.check(4, 0, live).verdict).toBe('deny');
    one.settle(2, 2, 0, 0, batch);
    expect(one.check(1, 0, batch).verdict).toBe('deny');
    expect(one.check(2, 0, live).verdict).toBe('allow');
  });

  test('what is too much for a part may fit when there are fewer of them', () => {
    const one = new Member(TEN, 4, 0);
    expect(one.check(4, 0)).toEqual(deny(WHEN_SETTLED));
    one.divide(2, 0, 0);
    expect(one.check(4, 0)).toEqual({ verdict: 'allow', remaining: 1 });
    one.divide(1, 0, 0);
    expect(one.check(11, 0)).toEqual(deny(NEVER));
  });
});

describe('several limits that are divided', () => {
  const PARTS = [{ bucket: { rate: 10, burst: 20 } }, { spacing: { every: 50 } }];

  test('are divided one by one; the slowest sets the pace and takes longest to fill', () => {
    const one = new Member({ all: PARTS }, 4, 0);
    expect(one.ratePerSecond()).toBe(2.5);
    expect(one.policy.refillMs).toBe(2000);
    expect(one.check(1, 0).verdict).toBe('allow');
    expect(one.check(1, 0)).toEqual(deny(200));
    expect(one.ruleStatuses(0)).toMatchObject([{ quota: 5 }, { windowMs: 200 }]);
  });

  test('are not, if one of them cannot be', () => {
    const { policy } = new Member({ all: [...PARTS, { window: { limit: 5, per: 1000 } }] });
    expect(policy.divide).toBeUndefined();
    expect(policy.refillMs).toBeUndefined();
  });

  test('have no pace if all of them count calls in flight', () => {
    const inFlight = { adaptive: { fixed: 3 } };
    expect(new Member({ all: [inFlight, inFlight] }).ratePerSecond()).toBeUndefined();
    expect(new Member({ all: [inFlight, ...PARTS] }, 2, 0).ratePerSecond()).toBe(5);
  });
});
