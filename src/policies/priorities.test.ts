import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { NEVER, WHEN_SETTLED } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { Heap } from '../core/heap.ts';
import { type Random, seededRandom } from '../core/random.ts';
import { all } from '../limiter/composite-limiter.ts';
import { limiter } from '../limiter/limiter.ts';
import type { SyncLimiter } from '../limiter/sync-limiter.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { createPolicy, type Limit } from './limit.ts';
import { UNDIVIDED } from './policy.ts';

const user = { level: 'user' };
const prefetch = { level: 'prefetch' };
const priorities = ['user', 'prefetch'];

function sinkOf(limit: number, levels: readonly string[] = priorities) {
  const clock = new VirtualClock();
  const sink = limiter({ limit: { concurrency: { limit, priorities: levels } }, clock });
  const check = (options: object, times = 1, cost = 1): number =>
    Array.from(
      { length: times },
      () => sink.check('', cost, { ...options, willSettle: true }).verdict,
    ).filter((verdict) => verdict === 'allow').length;
  const settle = (options: object, times = 1): void => {
    for (let n = 0; n < times; n++) sink.settle('', { ...options, rttMs: 10 });
  };
  const inFlight = () => sink.inspect('').priorities;
  return { clock, sink, check, settle, inFlight };
}

describe('priorities: one limit', () => {
  test('priorities: a lower level may use every slot while higher levels are quiet', () => {
    const { check, inFlight } = sinkOf(10);
    expect(check(prefetch, 20)).toBe(10);
    expect(inFlight()).toEqual({ user: 0, prefetch: 10 });
  });

  test('priorities: a level that begins while a lower one has every slot gets each slot that comes free', () => {
    const { check, settle, inFlight } = sinkOf(10);
    check(prefetch, 10);
    expect(check(user)).toBe(0);
    for (let n = 1; n <= 10; n++) {
      settle(prefetch);
      expect(check(prefetch)).toBe(0);
      expect(check(user)).toBe(1);
      expect(inFlight()).toEqual({ user: n, prefetch: 10 - n });
    }
  });

  test('priorities: after a refusal a slot is kept free, so that the next call is admitted at once', () => {
    const { check, settle } = sinkOf(10);
    check(user);
    check(prefetch, 9);
    expect(check(user)).toBe(0);
    settle(prefetch, 9);
    expect(check(prefetch, 9)).toBe(7); // ten, without one in flight and two kept
    expect(check(user, 2)).toBe(2);
  });

  test('priorities: calls without level have the lowest', () => {
    const { check, settle, inFlight } = sinkOf(2);
    expect(check({}, 2)).toBe(2);
    expect(inFlight()).toEqual({ user: 0, prefetch: 2 });
    expect(check(user)).toBe(0);
    settle({});
    expect([check({}), check(user)]).toEqual([0, 1]);
    expect(inFlight()).toEqual({ user: 1, prefetch: 1 });
  });

  test('priorities: a limit of 1 goes to the higher level as long as it makes calls', () => {
    const { clock, check, settle } = sinkOf(1);
    check(prefetch);
    expect(check(user)).toBe(0);
    settle(prefetch);
    for (let n = 0; n < 50; n++) {
      expect([check(prefetch), check(user)]).toEqual([0, 1]);
      clock.advance(1000);
      settle(user);
    }
    clock.advance(20_000);
    expect(check(prefetch)).toBe(1);
  });

  test('priorities: slots kept for a level that left are released within 10 s, and a refusal says when', () => {
    const { clock, sink, check, settle } = sinkOf(10);
    check(user, 4);
    check(prefetch, 6);
    check(user); // refused: four slots are kept
    settle(user, 4);
    settle(prefetch, 6);
    expect(check(prefetch, 10)).toBe(6);
    for (const free of [3, 2, 1, 0]) {
      const refusal = sink.check('', 1, { ...prefetch, willSettle: true });
      if (refusal.verdict !== 'deny') throw new Error('expected a refusal');
      clock.advance(refusal.retryAfterMs - 2);
      expect(check(prefetch)).toBe(0);
      clock.advance(2);
      expect(check(prefetch)).toBe(1);
      expect(clock.now()).toBeCloseTo(10_000 * (1 - free / 4), -1);
    }
    expect(sink.check('', 1, { ...prefetch, willSettle: true })).toMatchObject({
      retryAfterMs: WHEN_SETTLED,
    });
  });

  test('priorities: the time of a refusal is exact with several levels above', () => {
    const levels = ['a', 'b', 'c', 'd'];
    const { clock, sink, check, settle } = sinkOf(12, levels);
    for (const [n, level] of levels.slice(0, 3).entries()) {
      check({ level: 'd' }, 12);
      for (let times = 0; times <= n; times++) {
        check({ level });
        settle({ level: 'd' });
        check({ level: 'd' });
      }
      settle({ level: 'd' }, 12);
      clock.advance(1500);
    }
    check({ level: 'd' }, 12);
    for (let left = 12 - (sink.inspect('').priorities?.d ?? 0); left > 0; left--) {
      const refusal = sink.check('', 1, { level: 'd', willSettle: true });
      if (refusal.verdict !== 'deny') throw new Error('expected a refusal');
      clock.advance(refusal.retryAfterMs - 2);
      expect(check({ level: 'd' })).toBe(0);
      clock.advance(2);
      expect(check({ level: 'd' })).toBe(1);
    }
  });

  test('priorities: a level that was quiet for long starts anew', () => {
    const { clock, check, settle } = sinkOf(4);
    check(prefetch, 4);
    expect(check(user)).toBe(0);
    settle(prefetch, 4);
    clock.advance(60_000);
    expect(check(user)).toBe(1); // its first call in a minute keeps nothing
    expect(check(prefetch, 4)).toBe(3);
  });

  test('priorities: a higher level that fills the limit alone takes nothing more from a lower one afterwards', () => {
    const { check, settle } = sinkOf(4);
    check(prefetch);
    settle(prefetch);
    expect(check(user, 9)).toBe(4); // its own doing: no lower call was in the way
    settle(user, 4);
    expect(check(prefetch, 4)).toBe(4);
  });

  test('priorities: one shortage counts once, however many calls it refuses one after the other', () => {
    const { clock, check, settle } = sinkOf(20);
    check(prefetch, 20);
    for (let n = 0; n < 10; n++) {
      expect(check(user)).toBe(0);
      clock.advance(2);
    }
    settle(prefetch, 20);
    expect(check(prefetch, 20)).toBe(19);
    expect(check(user, 2)).toBe(1); // one more would have been needed
    settle(prefetch, 19);
    settle(user);
    expect(check(prefetch, 20)).toBe(18);
  });

  test('priorities: calls that are refused together are kept as many slots, so that the next burst fits', () => {
    const { clock, check, settle } = sinkOf(20);
    check(prefetch, 20);
    expect(check(user, 6)).toBe(0);
    settle(prefetch, 20);
    clock.advance(100);
    expect(check(prefetch, 20)).toBe(14);
    expect(check(user, 6)).toBe(6);
  });

  test('priorities: a level that is refused no more keeps fewer slots, until some of its calls are refused again', () => {
    const { check, settle } = sinkOf(4);
    check(prefetch, 4);
    check(user);
    settle(prefetch, 4);
    for (let n = 0; n < 1000; n++) {
      if (n === 900) expect(check(prefetch, 4)).toBe(3);
      if (n === 900) settle(prefetch, 3);
      expect(check(user)).toBe(1);
      settle(user);
    }
    expect(check(prefetch, 4)).toBe(4);
  });

  test('priorities: a cost above 1 keeps so many slots, and cheap calls cannot starve it', () => {
    const { sink, check, settle } = sinkOf(4);
    check(prefetch, 4);
    expect(check(user, 1, 3)).toBe(0);
    for (let n = 0; n < 3; n++) {
      settle(prefetch);
      expect(check(prefetch)).toBe(0);
    }
    expect(check(user, 1, 3)).toBe(1);
    expect(sink.inspect('').priorities).toEqual({ user: 3, prefetch: 1 });
    expect(sink.check('', 5, { ...user, willSettle: true })).toMatchObject({
      verdict: 'deny',
      retryAfterMs: NEVER,
    });
  });

  test('priorities: a cost of 0 changes nothing', () => {
    const { check, settle, inFlight } = sinkOf(2);
    check(prefetch, 2);
    expect(check(user, 5, 0)).toBe(5);
    settle(prefetch);
    expect(check(prefetch)).toBe(1);
    expect(inFlight()).toEqual({ user: 0, prefetch: 2 });
  });

  test('priorities: takeUpTo takes what is free and not kept', () => {
    const { sink, check, settle } = sinkOf(10);
    check(prefetch, 10);
    check(user);
    settle(prefetch, 5);
    expect(sink.takeUpTo('', Infinity)).toBe(4); // of five, one is kept for user
    expect(check(user)).toBe(1);
    expect(sink.takeUpTo('', 1)).toBe(0);
  });

  test('priorities: peek decides as check, and changes nothing', () => {
    const { sink, check, settle } = sinkOf(2);
    check(prefetch, 2);
    for (let n = 0; n < 5; n++) expect(sink.peek('', 1, user).verdict).toBe('deny');
    settle(prefetch);
    expect(check(prefetch)).toBe(1); // no peek has kept a slot
    check(user);
    settle(prefetch);
    expect(sink.peek('', 1, prefetch).verdict).toBe('deny');
    expect(sink.peek('', 1, user).verdict).toBe('allow');
  });

  test('priorities: an expired permit gives its slot back to its level', async () => {
    const clock = new VirtualClock();
    const limit = { concurrency: { limit: 3, priorities } };
    const sink = limiter({ limit, clock, permitTimeout: '1s' });
    sink.tryAcquire('', 1, user);
    sink.tryAcquire('', 1, prefetch);
    expect(sink.inspect('').priorities).toEqual({ user: 1, prefetch: 1 });
    await clock.advanceAsync(1500);
    expect(sink.inspect('').priorities).toEqual({ user: 0, prefetch: 0 });
  });

  test('priorities: a snapshot keeps what each level has in flight, and the slots kept for it', () => {
    const clock = new VirtualClock();
    const make = (): SyncLimiter => {
      const limit = { concurrency: { limit: 4, priorities } };
      return limiter({ limit, clock, random: seededRandom(1) }) as SyncLimiter;
    };
    const [sink, restored] = [make(), make()];
    for (const options of [user, prefetch, prefetch, prefetch, user])
      sink.check('', 1, { ...options, willSettle: true });
    for (let n = 0; n < 3; n++) sink.settle('', prefetch);
    restored.restore(sink.snapshot());
    expect(restored.inspect('').priorities).toEqual({ user: 1, prefetch: 0 });
    for (const one of [sink, restored]) {
      const allowed = [1, 2, 3].filter(
        () => one.check('', 1, { ...prefetch, willSettle: true }).verdict === 'allow',
      );
      expect(allowed).toHaveLength(1); // of three free slots two are kept
    }
  });

  test('priorities: a member of a pool keeps slots within its part', () => {
    const whole = createPolicy({ concurrency: { limit: 10, priorities } }, seededRandom(1));
    const part = whole.divide?.ofPool?.({ ...UNDIVIDED, size: 2, rank: 0 }, 0) ?? whole;
    const state = new Float64Array(whole.width);
    part.init(state, 0, 0);
    const check = (level: number) => part.check(state, 0, 1, 0, level).verdict;
    for (let n = 0; n < 5; n++) expect(check(1)).toBe('allow');
    expect([check(1), check(0)]).toEqual(['deny', 'deny']);
    part.settle(state, 0, { outcome: 'ok', cost: 1, dueAt: 0, partition: 1 }, 0);
    expect([check(1), check(0)]).toEqual(['deny', 'allow']);
    expect(part.keyState(state, 0, 0).priorities).toEqual({ user: 1, prefetch: 4 });
  });

  test('priorities: invalid levels are refused, naming the option', () => {
    const make = (options: object) => () =>
      limiter({ limit: { concurrency: { limit: 4, ...options } } as never });
    const expected =
      'expected `limit.concurrency.priorities` to be a list of 2 to 16 different names';
    const many = Array.from({ length: 17 }, (_, n) => `${n}`);
    for (const value of ['user', [], ['user'], ['a', 'a'], ['a', ''], ['a', 1], many, null, {}])
      expect(make({ priorities: value })).toThrow(expected);
    expect(make({ priorities, partitions: { live: 0.5 } })).toThrow(
      'expected `limit.concurrency.priorities` to be left out beside `partitions`',
    );
    const { sink } = sinkOf(4);
    expect(() => sink.check('', 1, { level: 'batch' })).toThrow(
      'expected `level` to be one of user, prefetch, got "batch"',
    );
    expect(() => sink.settle('', { level: 'batch' })).toThrow(ConfigError);
    expect(() => sink.check('', 1, { partition: 'user' })).toThrow(
      'expected `partition` to be left out: the limit has none',
    );
    const plain = limiter({ limit: { concurrency: 2 } });
    expect(() => plain.check('', 1, user)).toThrow('`level` to be left out: the limit has none');
  });
});

describe('priorities: wait queues', () => {
  /** Callers that wait for a slot and hold it for 100 ms. */
  const callersOf = (limit: number) => {
    const { clock, sink } = sinkOf(limit);
    const order: string[] = [];
    const call = async (name: string, options: object, cost = 1): Promise<void> => {
      const permit = await sink.acquire('', cost, options);
      order.push(`${clock.now()} ${name}`);
      clock.wakeAt(clock.now() + 100, () => permit.verdict === 'allow' && permit.settle());
    };
    return { clock, sink, order, call };
  };

  test('priorities: the waiter of the highest level goes first, then the order of arrival', async () => {
    const { clock, order, call } = callersOf(1);
    call('prefetch 1', prefetch);
    call('prefetch 2', {});
    call('prefetch 3', prefetch);
    call('user 1', user);
    call('user 2', user);
    await clock.advanceAsync(30_000);
    expect(order.slice(0, 3)).toEqual(['0 prefetch 1', '100 user 1', '200 user 2']);
    expect(order.slice(3).map((line) => line.split(' ').slice(1).join(' '))).toEqual([
      'prefetch 2',
      'prefetch 3',
    ]);
  });

  test('priorities: a lower waiter gets its slot once the slots of a level that left are released', async () => {
    const { clock, order, call } = callersOf(1);
    call('prefetch 1', prefetch);
    call('user 1', user);
    call('prefetch 2', prefetch);
    await clock.advanceAsync(30_000);
    expect(order.slice(0, 2)).toEqual(['0 prefetch 1', '100 user 1']);
    const [at, ...name] = (order[2] ?? '').split(' ');
    expect(name).toEqual(['prefetch', '2']);
    expect(Number(at)).toBeGreaterThan(9_000);
    expect(Number(at)).toBeLessThanOrEqual(10_101);
  });

  test('priorities: a waiter with a high cost gets its slots before cheap calls of a lower level', async () => {
    const { clock, order, call } = callersOf(4);
    for (const n of [1, 2, 3, 4]) call(`prefetch ${n}`, prefetch);
    call('user', user, 3);
    for (const n of [5, 6]) call(`prefetch ${n}`, prefetch);
    await clock.advanceAsync(30_000);
    expect(order[4]).toBe('100 user');
    expect(order).toHaveLength(7);
  });

  test('priorities: a call that does not wait overtakes only waiters of lower levels', async () => {
    const { clock, sink, call } = callersOf(1);
    call('first', prefetch);
    call('second', user);
    await clock.advanceAsync(1);
    const queued = sink as SyncLimiter;
    expect([queued.hasWaiters('', user), queued.hasWaiters('', prefetch)]).toEqual([true, true]);
    expect(queued.hasWaiters('')).toBe(true);
    await clock.advanceAsync(100);
    call('third', prefetch);
    await clock.advanceAsync(1);
    expect([queued.hasWaiters('', user), queued.hasWaiters('', prefetch)]).toEqual([false, true]);
  });
});

describe('priorities: several limits', () => {
  test('priorities: in `all` the other limits are charged only for admitted calls', () => {
    const parts = [
      { bucket: { rate: '1/h', burst: 9 } },
      { concurrency: { limit: 2, priorities } },
    ];
    const sink = limiter({ limit: { all: parts } as never, clock: new VirtualClock() });
    for (let n = 0; n < 5; n++) sink.check('', 1, { ...prefetch, willSettle: true });
    for (let n = 0; n < 5; n++) sink.check('', 1, { ...user, willSettle: true });
    expect(sink.inspect('')).toMatchObject({ priorities: { user: 0, prefetch: 2 } });
    expect(sink.inspect('').rules[0].remaining).toBe(7);
    sink.settle('', prefetch);
    expect(sink.check('', 1, { ...prefetch, willSettle: true }).verdict).toBe('deny');
    expect(sink.check('', 1, { ...user, willSettle: true }).verdict).toBe('allow');
  });

  test('priorities: `all` refuses levels that differ, and levels beside partitions', () => {
    const make = (...parts: object[]) => createPolicy({ all: parts as Limit[] }, seededRandom(1));
    const ranked = { concurrency: { limit: 2, priorities } };
    expect(make(ranked, { adaptive: { priorities } }).classes?.names).toEqual(priorities);
    expect(() => make(ranked, { adaptive: { priorities: ['prefetch', 'user'] } })).toThrow(
      'expected `limit.all` to be limits with the same priorities (user,prefetch)',
    );
    expect(() => make(ranked, { adaptive: { partitions: { live: 1 } } })).toThrow(
      'expected `limit.all` to be limits with either `partitions` or `priorities`',
    );
  });

  test('priorities: all([...]) counts the level in the components that have it', async () => {
    const clock = new VirtualClock();
    const ranked = limiter({ limit: { concurrency: { limit: 2, priorities } }, clock });
    const parted = limiter({ limit: { concurrency: { limit: 5, partitions: { a: 0.5 } } }, clock });
    const both = all([ranked, parted]);
    const options = { level: 'user', partition: 'a' };
    both.check('', 1, { ...options, willSettle: true });
    const permit = await both.acquire('', 1, options);
    expect(ranked.inspect('').priorities).toEqual({ user: 2, prefetch: 0 });
    expect(parted.inspect('').partitions).toEqual({ a: 2 });
    if (permit.verdict === 'allow') permit.settle();
    both.settle('', options);
    expect(ranked.inspect('').priorities).toEqual({ user: 0, prefetch: 0 });
    expect(parted.inspect('').partitions).toEqual({ a: 0 });
    expect(() => both.check('', 1, { level: 'batch', willSettle: true })).toThrow(
      'a level of one of its limits',
    );
    expect(() => both.check('', 1, { level: 'a', willSettle: true })).toThrow(
      'a level of one of its limits',
    );
  });
});

describe('priorities: any traffic', () => {
  const levels = ['a', 'b', 'c'];
  const limits: readonly object[] = [
    { concurrency: { limit: 5, priorities: levels } },
    { concurrency: { limit: 1, priorities: levels } },
    { adaptive: { initial: 3, max: 8, priorities: levels } },
  ];
  const steps = fc.array(
    fc.record({
      level: fc.nat(2),
      cost: fc.integer({ min: 1, max: 3 }),
      isCheck: fc.boolean(),
      ms: fc.constantFrom(0, 0, 1, 20, 300, 4000, 30_000),
    }),
    { maxLength: 120, size: 'max' },
  );

  test('priorities: the limit holds, levels add up, and no level gets what a higher one is refused', () => {
    const kinds = { allow: 0, deny: 0, keptOnly: 0 };
    fc.assert(
      fc.property(fc.constantFrom(...limits), steps, (limit, traffic) => {
        const policy = createPolicy(limit as Limit, seededRandom(1));
        const state = new Float64Array(policy.width);
        policy.init(state, 0, 0);
        const calls: { level: number; cost: number; at: number }[] = [];
        let now = 0;
        const allows = (cost: number, level: number): boolean =>
          policy.check(state.slice(), 0, cost, now, level).verdict === 'allow';
        for (const { level, cost, isCheck, ms } of traffic) {
          now += ms;
          if (isCheck) {
            const before = policy.keyState(state, 0, now);
            const verdicts = levels.map((_, n) => allows(cost, n));
            expect(verdicts).toEqual(verdicts.toSorted((x, y) => Number(y) - Number(x)));
            const { verdict } = policy.check(state, 0, cost, now, level);
            expect(verdict === 'allow').toBe(verdicts[level]);
            if (verdict === 'allow') {
              calls.push({ level, cost, at: now });
              const { inFlight = 0, limit: most = 0 } = before;
              if (inFlight > 0) expect(inFlight + cost).toBeLessThanOrEqual(most);
            }
            kinds[verdict === 'allow' ? 'allow' : 'deny']++;
            if (verdicts[0] && !verdicts[2]) kinds.keptOnly++;
          } else if (calls.length > 0) {
            const [call] = calls.splice((level * 7 + cost) % calls.length, 1);
            const { level: partition, cost: paid, at } = call as (typeof calls)[number];
            const settlement = { cost: paid, dueAt: at, rttMs: now - at, partition };
            policy.settle(state, 0, { outcome: 'ok', ...settlement }, now);
          }
          const { priorities: byLevel = {}, inFlight } = policy.keyState(state, 0, now);
          const expected = levels.map((_, n) =>
            calls.reduce((sum, call) => sum + (call.level === n ? call.cost : 0), 0),
          );
          expect(Object.values(byLevel)).toEqual(expected);
          expect(inFlight).toBe(expected[0] + expected[1] + expected[2]);
          const available = policy.available(state.slice(), 0, now);
          if (available > 0) expect(allows(available, 2)).toBe(true);
        }
      }),
      { numRuns: 150, seed: 7 },
    );
    for (const count of Object.values(kinds)) expect(count).toBeGreaterThan(300);
  });

  test('priorities: one level alone is decided as without priorities', () => {
    fc.assert(
      fc.property(steps, fc.nat(2), (traffic, level) => {
        const ranked = createPolicy({ concurrency: { limit: 5, priorities: levels } }, Math.random);
        const plain = createPolicy({ concurrency: 5 }, Math.random);
        const states = [ranked, plain].map((policy) => new Float64Array(policy.width));
        ranked.init(states[0], 0, 0);
        plain.init(states[1], 0, 0);
        let now = 0;
        for (const { cost, isCheck, ms } of traffic) {
          now += ms;
          if (isCheck) {
            const decision = ranked.check(states[0], 0, cost, now, level);
            expect(decision).toEqual(plain.check(states[1], 0, cost, now));
          } else {
            const settlement = { outcome: 'ok', cost, dueAt: now, rttMs: 5 } as const;
            ranked.settle(states[0], 0, { ...settlement, partition: level }, now);
            plain.settle(states[1], 0, settlement, now);
          }
        }
      }),
      { numRuns: 100, seed: 7 },
    );
  });
});

// ─── A server with 20 workers of 50 ms behind a limit ────────────────────────────────────────────

interface Phase {
  readonly ms: number;
  /** Calls a second of each level, Poisson. */
  readonly rates: readonly number[];
}

interface Shares {
  /** Of each phase and level: the share of its calls that was admitted. */
  readonly admitted: readonly (readonly number[])[];
  /** The limit at the end of each phase. */
  readonly limits: readonly number[];
}

function serve(limit: Limit, phases: readonly Phase[], seed: number): Shares {
  const WORKERS = 20;
  const random: Random = seededRandom(seed);
  const exponential = (mean: number): number => -Math.log(1 - random()) * mean;
  const policy = createPolicy(limit, seededRandom(seed));
  const state = new Float64Array(policy.width);
  policy.init(state, 0, 0);
  const events = new Heap<{ at: number; run: () => void }>((a, b) => a.at < b.at);
  const queue: (() => void)[] = [];
  let [now, busy] = [0, 0];

  const start = (level: number, since: number): void => {
    busy++;
    const end = (): void => {
      busy--;
      const settlement = { cost: 1, dueAt: since, rttMs: now - since, partition: level };
      policy.settle(state, 0, { outcome: 'ok', ...settlement }, now);
      queue.shift()?.();
    };
    events.push({ at: now + 40 + 20 * random(), run: end });
  };

  let until = 0;
  const limits: number[] = [];
  const admitted = phases.map(({ ms, rates }) => {
    const from = until;
    until += ms;
    const counts = rates.map(() => ({ calls: 0, admitted: 0 }));
    const arrive = (level: number): void => {
      const at = now + exponential(1000 / rates[level]);
      if (at < until) events.push({ at, run: () => arrive(level) });
      if (now === from) return;
      counts[level].calls++;
      if (policy.check(state, 0, 1, now, level).verdict !== 'allow') return;
      counts[level].admitted++;
      const since = now;
      if (busy < WORKERS) start(level, since);
      else queue.push(() => start(level, since));
    };
    now = from;
    for (const level of rates.keys()) arrive(level);
    for (let next = events.peek(); next && next.at < until; next = events.peek()) {
      events.pop();
      now = next.at;
      next.run();
    }
    limits.push(policy.keyState(state, 0, now).limit ?? 0);
    return counts.map((count) => count.admitted / count.calls);
  });
  return { admitted, limits };
}

describe('priorities: 12 times as many prefetch calls on a server that is half full of user calls', () => {
  const NORMAL = { ms: 20_000, rates: [200, 100] };
  const SPIKE = { ms: 20_000, rates: [200, 1200] };
  const seeds = [1, 2, 3, 4, 5];
  const meanOf = (values: readonly number[]) =>
    values.reduce((sum, value) => sum + value, 0) / values.length;

  test.each<[string, Limit, number, number]>([
    ['concurrency: 30', { concurrency: { limit: 30, priorities } }, 0.997, 0.15],
    ['adaptive, rule aimd', { adaptive: { rule: 'aimd', priorities } }, 0.997, 0.15],
    ['adaptive, rule delay', { adaptive: { priorities } }, 0.996, 0.05],
  ])(
    '%s with priorities: admits 99.4 percent of the user calls, and prefetch gets what is left',
    (_, limit, minUser, minPrefetch) => {
      const runs = seeds.map((seed) => serve(limit, [NORMAL, SPIKE], seed).admitted[1]);
      expect(meanOf(runs.map(([share]) => share))).toBeGreaterThan(minUser);
      expect(meanOf(runs.map(([, share]) => share))).toBeGreaterThan(0.13);
      for (const [userShare, prefetchShare] of runs) {
        expect(userShare).toBeGreaterThan(0.994);
        expect(prefetchShare).toBeGreaterThan(minPrefetch); // all that is left is 200 of 1,200 a second
      }
    },
  );

  test('concurrency: 30 without priorities: user calls are refused as often as prefetch calls', () => {
    const [spike] = serve({ concurrency: 30 }, [SPIKE], 1).admitted;
    expect(spike[0]).toBeLessThan(0.35);
  });

  test.each(['delay', 'aimd'] as const)(
    'adaptive, rule %s, with priorities: the limit grows under a flood of the lowest level, with slots kept for a higher one',
    (rule) => {
      for (const seed of seeds) {
        const { limits, admitted } = serve(
          { adaptive: { rule, priorities } },
          [{ ms: 10_000, rates: [40, 2000] }],
          seed,
        );
        expect(limits[0]).toBeGreaterThan(20);
        expect(admitted[0][1]).toBeGreaterThan(0.12); // of 0.18 that the server can take once the limit is found
      }
    },
  );
});

describe('priorities behind a server with a quota', () => {
  /** 80 calls in any second, then 429 after 2 ms. Shares of the calls of both levels that are answered, after 30 s. */
  const answered = (prefetchRate: number, seed: number): readonly number[] => {
    const clock = new VirtualClock(1_000_000);
    const random = seededRandom(seed);
    const limit = limiter({ limit: { adaptive: { priorities } }, clock, random });
    const counts = priorities.map(() => ({ calls: 0, answered: 0 }));
    const accepted: number[] = [];
    const isMeasured = () => clock.now() > 1_030_000;
    const call = (level: number): void => {
      if (isMeasured()) counts[level].calls++;
      const permit = limit.tryAcquire('server', 1, { level: priorities[level] });
      if (permit.verdict !== 'allow') return;
      while (accepted.length > 0 && accepted[0] <= clock.now() - 1000) accepted.shift();
      const isAccepted = accepted.length < 80;
      if (isAccepted) accepted.push(clock.now());
      const ms = Math.round(isAccepted ? -50 * Math.log(1 - random()) : 2);
      clock.wakeAt(clock.now() + ms, () => {
        if (isAccepted && isMeasured()) counts[level].answered++;
        permit.settle({ outcome: isAccepted ? 'ok' : 'busy' });
      });
    };
    const arrive = (level: number, perSecond: number): void => {
      const ms = Math.round((-1000 * Math.log(1 - random())) / perSecond);
      clock.wakeAt(clock.now() + ms, () => {
        call(level);
        arrive(level, perSecond);
      });
    };
    arrive(0, 40);
    arrive(1, prefetchRate);
    clock.advance(90_000);
    return counts.map((count) => count.answered / count.calls);
  };

  test.each([200, 1000])(
    'adaptive with priorities: %i prefetch calls a second, four of five user calls are answered',
    (prefetchRate) => {
      for (const seed of [1, 2, 3]) expect(answered(prefetchRate, seed)[0]).toBeGreaterThan(0.8);
    },
  );
});
