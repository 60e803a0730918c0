import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { seededRandom } from '../core/random.ts';
import type { Limit } from '../policies/limit.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { all } from './composite-limiter.ts';
import type { LimitEvent } from './events.ts';
import { limiter } from './limiter.ts';

const per = (count: number, burst: number): Limit => ({ bucket: { rate: count, burst } });

function users() {
  const clock = new VirtualClock();
  const user = limiter({ name: 'user', limit: per(1, 2), clock });
  const total = limiter({ name: 'total', limit: per(2, 3), clock });
  const api = all([user, { limiter: total, key: '*' }]);
  return { clock, user, total, api };
}

describe('composite limiter', () => {
  test('check: per user and in total, all or nothing', () => {
    const { api, user, total } = users();
    expect(api.name).toBe('user+total');
    expect(api.check('alice')).toEqual({ verdict: 'allow', remaining: 1 });
    expect(api.check('alice').verdict).toBe('allow');
    expect(api.check('alice')).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
    expect(total.inspect('*').remaining).toBe(1); // the refused call took nothing here
    expect(api.check('bob').verdict).toBe('allow');
    expect(api.check('carol')).toEqual({ verdict: 'deny', retryAfterMs: 500 });
    expect(user.inspect('carol').remaining).toBe(2);
  });

  test('settle: requests and tokens, corrected by what was used', () => {
    const clock = new VirtualClock();
    const requests = limiter({ name: 'requests', limit: per(10, 10), clock });
    const tokens = limiter({ name: 'tokens', limit: per(100, 1000), clock });
    const llm = all([{ limiter: requests, cost: 1 }, tokens], { name: 'llm' });
    const permit = llm.tryAcquire('', 600);
    expect(llm.tryAcquire('', 600)).toMatchObject({ limit: 'tokens', retryAfterMs: 2000 });
    if (permit.verdict === 'allow') permit.settle({ used: 250 });
    expect(tokens.inspect('').remaining).toBe(750);
    expect(requests.inspect('').remaining).toBe(9);
    expect(llm.tryAcquire('', 600).verdict).toBe('allow');
  });

  test('tryAcquire: a rate limit and a concurrency limit', () => {
    const clock = new VirtualClock();
    const rate = limiter({ name: 'rate', limit: per(10, 3), clock });
    const flights = limiter({ name: 'flights', limit: { concurrency: 2 }, clock });
    const sink = all([rate, flights]);
    const [a, b] = [sink.tryAcquire(''), sink.tryAcquire('')];
    expect([a.verdict, b.verdict]).toEqual(['allow', 'allow']);
    expect(sink.tryAcquire('')).toMatchObject({ limit: 'flights', retryAfterMs: 0 });
    expect(rate.inspect('').remaining).toBe(1);
    if (a.verdict === 'allow') a.settle();
    expect(sink.tryAcquire('').verdict).toBe('allow');
    expect(flights.stats().held).toBe(2);
  });

  test('the same limiter twice: both costs are charged or none', () => {
    const clock = new VirtualClock();
    const one = limiter({ limit: per(1, 5), clock });
    const twice = all([one, { limiter: one, cost: (cost) => 2 * cost }]);
    expect(twice.check('x').verdict).toBe('allow');
    expect(one.inspect('x').remaining).toBe(2);
    expect(twice.check('x').verdict).toBe('deny');
    expect(one.inspect('x').remaining).toBe(2);
  });

  test('acquire: waits in the queue of the limiter that refuses', async () => {
    const { clock, api, total } = users();
    const log: string[] = [];
    const enter = async (name: string, from = api, key = name): Promise<void> => {
      await from.acquire(key);
      log.push(`${clock.now()} ${name}`);
    };
    for (const name of ['alice', 'alice', 'alice', 'bob', 'carol', 'dave']) enter(name);
    enter('direct', total, '*');
    await clock.advanceAsync(0);
    expect(total.stats().waiting).toBe(3); // carol, dave and the direct call
    await clock.advanceAsync(4000);
    expect(log).toEqual([
      '0 alice',
      '0 alice',
      '0 bob', // alice's third call waits for her own limit and blocks no other
      '500 carol',
      '1000 alice', // before dave, id waits for the total limit: she arrived earlier
      '1500 dave',
      '2000 direct',
    ]);
    expect(total.stats().waiting).toBe(0);
  });

  test.each([1, 2, 3, 4, 5, 6, 7, 8])(
    'acquire: serves every call when a limit opens between peek and reserve (seed %i)',
    async (seed) => {
      // Every read of this clock is slightly later than the last: a call that was refused may fit now.
      const random = seededRandom(seed);
      const base = new VirtualClock();
      let drift = 0;
      const clock = {
        now(): number {
          drift += 0.1 * random();
          return base.now() + drift;
        },
        wakeAt: (at: number, act: () => void) => base.wakeAt(Math.max(base.now(), at - drift), act),
      };
      const one = limiter({ name: 'one', limit: per(200, 5), clock });
      const other = limiter({ name: 'other', limit: per(90, 3), clock });
      const both = all([{ limiter: one, cost: (cost) => 2 * cost }, other]);
      let through = 0;
      const enter = (): unknown =>
        both.acquire('x', 1 + Math.floor(2 * random())).then(() => through++);
      for (let n = 0; n < 100; n++) enter();
      for (let n = 0; n < 4000 && through < 100; n++) await base.advanceAsync(1);
      expect(through).toBe(100);
      expect([one.stats(), other.stats()]).toMatchObject([
        { allowed: 100, waiting: 0, held: 100 },
        { allowed: 100, waiting: 0, held: 100 },
      ]);
    },
  );

  test('acquire: a large cost among many small ones is served in its turn', async () => {
    const clock = new VirtualClock();
    const a = limiter({ name: 'a', limit: { spacing: { every: 100 } }, clock });
    const b = limiter({ name: 'b', limit: per(10, 20), clock });
    const both = all([{ limiter: a, cost: 1 }, b]);
    b.check('k', 19);
    const log: string[] = [];
    const enter = async (name: string, cost: number, from = both): Promise<void> => {
      await from.acquire('k', cost);
      log.push(`${clock.now()} ${name}`);
    };
    enter('first', 1);
    enter('large', 15);
    for (let n = 0; n < 100; n++) enter('small', 1);
    enter('direct', 15, b);
    await clock.advanceAsync(30_000);
    expect(log.slice(0, 3)).toEqual(['0 first', '1500 large', '1600 small']);
    expect(log.indexOf('13000 direct')).toBe(102);
  });

  describe('acquire: both limits have a queue all the time', () => {
    /** Calls on one limit, in an endless queue; the two limits open half an interval apart. */
    async function saturated(limitA: Limit, limitB: Limit) {
      const clock = new VirtualClock();
      const a = limiter({ name: 'a', limit: limitA, clock });
      const b = limiter({ name: 'b', limit: limitB, clock });
      const both = all([a, b]);
      const grants: [name: string, at: number][] = [];
      const note = (name: string) => () => grants.push([name, clock.now()]);
      const fill = (from: typeof a, count: number): void => {
        for (let n = 0; n < count; n++) void from.acquire('k').then(note(from.name));
      };
      fill(a, 3);
      await clock.advanceAsync(500);
      fill(b, 3);
      await clock.advanceAsync(100);
      const enter = (signal?: AbortSignal) => both.acquire('k', 1, { signal }).then(note('both'));
      return { clock, a, b, grants, fill, enter };
    }

    test('a call on both is served in its turn, and so are the others', async () => {
      const { clock, a, b, grants, fill, enter } = await saturated(per(1, 1), per(1, 1));
      void enter();
      for (const each of [a, b]) fill(each, 50);
      await clock.advanceAsync(60_000);
      const [, at] = grants.find(([name]) => name === 'both') ?? [];
      expect(at).toBeLessThanOrEqual(5500);
      expect(grants.length).toBe(107);
      expect([a.stats().waiting, b.stats().waiting]).toEqual([0, 0]);
    });

    test('a fast limit does not stand still for a slow one', async () => {
      const clock = new VirtualClock();
      const fast = limiter({ name: 'fast', limit: per(10, 1), clock });
      const slow = limiter({ name: 'slow', limit: per(0.1, 1), clock });
      slow.check('k');
      let served = 0;
      const fill = (count: number): void => {
        for (let n = 0; n < count; n++) void fast.acquire('k').then(() => served++);
      };
      fill(50); // the call has its turn here after 5 s, and then at the slow limit after 10 s
      let at = Infinity;
      void all([fast, slow])
        .acquire('k')
        .then(() => {
          at = clock.now();
        });
      fill(500);
      await clock.advanceAsync(20_000);
      expect(at).toBeLessThan(10_200);
      expect(served).toBeGreaterThanOrEqual(198);
    });

    test('several calls on both that overlap, one of which leaves: all others are served, none waits for another', async () => {
      const { clock, a, b, grants, fill, enter } = await saturated(per(1, 1), per(1, 1));
      const gone = new AbortController();
      const left = enter(gone.signal).catch(() => 'left');
      for (let n = 0; n < 5; n++) void enter();
      for (const each of [a, b]) fill(each, 20);
      await clock.advanceAsync(4700);
      gone.abort();
      await clock.advanceAsync(60_000);
      await left;
      expect(grants.filter(([name]) => name === 'both').length).toBeGreaterThanOrEqual(5);
      expect([a.stats().waiting, b.stats().waiting]).toEqual([0, 0]);
    });
  });

  test('acquire: the same limiter and key twice is one call of both costs', async () => {
    const clock = new VirtualClock();
    const one = limiter({ limit: { concurrency: 3 }, clock });
    const twice = all([one, { limiter: one, cost: (cost) => cost }]);
    expect(await twice.acquire('k', 2)).toMatchObject({ verdict: 'deny', reason: 'never' });
    const permit = await twice.acquire('k', 1);
    expect(one.inspect('k').inFlight).toBe(2);
    if (permit.verdict === 'allow') permit.settle();
    expect(one.inspect('k').inFlight).toBe(0);
  });

  test('settle: an invalid cost in one component settles none', async () => {
    const clock = new VirtualClock();
    const odd = limiter({ limit: per(10, 10), clock });
    const flights = limiter({ limit: { concurrency: 5 }, clock });
    const both = all([{ limiter: odd, cost: (cost) => cost - 1 }, flights]);
    const permit = await both.acquire('k', 1);
    if (permit.verdict !== 'allow') return expect.unreachable();
    expect(() => permit.settle({ used: 0 })).toThrow('used');
    expect(permit.isSettled).toBe(false);
    permit.settle();
    expect(flights.stats().held).toBe(0);
    const other = all([flights, { limiter: odd, cost: (cost) => cost - 1 }]);
    other.check('k', 1, { willSettle: true });
    expect(() => other.settle('k', { used: 0 })).toThrow('used');
    expect(flights.inspect('k').inFlight).toBe(1);
  });

  test('settle: a partition counts in the components that have it', () => {
    const clock = new VirtualClock();
    const plain = limiter({ limit: per(10, 10), clock });
    const parted = limiter({
      limit: { concurrency: { limit: 2, partitions: { live: 0.5 } } },
      clock,
    });
    const both = all([plain, parted]);
    both.check('k', 1, { partition: 'live', willSettle: true });
    both.settle('k', { partition: 'live' });
    expect(parted.inspect('k').inFlight).toBe(0);
  });

  test('takeUpTo and giveBack: refuse components with a cost option', () => {
    const { api, total } = users();
    const mixed = all([api, { limiter: total, cost: 1 }]);
    expect(() => mixed.takeUpTo('k', 5)).toThrow('a component without a `cost` option');
    expect(() => mixed.giveBack('k', 5)).toThrow('a component without a `cost` option');
  });

  test('key and cost functions run once per call, and may use the limiter', async () => {
    const clock = new VirtualClock();
    const a = limiter({ name: 'a', limit: per(10, 1), clock });
    let mapped = 0;
    const both = all([
      {
        limiter: a,
        key: (key) => {
          mapped++;
          a.update('other', { hits: 1 });
          return key;
        },
      },
      limiter({ limit: per(5, 1), clock }),
    ]);
    let through = 0;
    for (let n = 0; n < 5; n++) both.acquire('k').then(() => through++);
    await clock.advanceAsync(3000);
    expect([through, mapped]).toEqual([5, 5]);
  });

  test('acquire: deadline, abort and never are reported by the limiter that refuses', async () => {
    const { clock, api, user, total } = users();
    api.check('a', 2);
    expect(await api.acquire('a', 1, { wait: 400 })).toMatchObject({
      limit: 'user',
      reason: 'too-long',
      retryAfterMs: 1000,
    });
    expect(await api.acquire('b', 3)).toMatchObject({ limit: 'user', reason: 'never' });
    const abort = new AbortController();
    const waiting = api.acquire('a', 1, { signal: abort.signal });
    const late = api.acquire('a', 1, { wait: 2500 });
    await clock.advanceAsync(100);
    abort.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
    await clock.advanceAsync(2000);
    expect((await late).verdict).toBe('allow');
    expect([user.stats().waiting, total.stats().waiting]).toEqual([0, 0]);
    expect(user.stats().cancelled).toBe(1);
  });

  test('has the methods of a limiter, and can be nested', () => {
    const { clock, api, user, total } = users();
    expect(api.takeUpTo('batch', Infinity)).toBe(2);
    expect(total.inspect('*').remaining).toBe(1);
    api.giveBack('batch', 1);
    expect([user.inspect('batch').remaining, total.inspect('*').remaining]).toEqual([1, 2]);
    expect(api.update('batch', { hits: 2 })).toBe(true);
    expect(api.inspect('batch')).toMatchObject({
      name: 'user+total',
      remaining: -1,
      by: 'user',
      opensInMs: 2000,
      rules: [{ name: 'user' }, { name: 'total' }],
    });
    const outer = all([
      { limiter: api, key: (key) => `x:${key}` },
      limiter({ limit: per(9, 9), clock }),
    ]);
    expect(outer.check('q').verdict).toBe('deny'); // the total limit has nothing left
    clock.advance(1000);
    expect(outer.check('q').verdict).toBe('allow');
    expect(user.inspect('x:q').remaining).toBe(1);
    expect(outer.peek('q', 2).verdict).toBe('deny');
    expect(outer.stats()).toMatchObject({ denied: 1, waiting: 0 });
  });

  test('on: every component reports its own decisions', () => {
    const { api } = users();
    const events: LimitEvent[] = [];
    const stop = api.on((event) => events.push(event));
    api.check('alice', 2);
    api.check('alice', 2);
    stop();
    api.check('alice', 2);
    expect(events.map((event) => [event.type, event.limit, event.key])).toEqual([
      ['decision', 'user', 'alice'],
      ['decision', 'total', '*'],
      ['decision', 'user', 'alice'],
    ]);
  });

  test('check: a refused call takes nothing, for any sequence of calls', () => {
    const call = fc.record({
      user: fc.nat(3),
      cost: fc.integer({ min: 0, max: 4 }),
      afterMs: fc.nat(400),
    });
    fc.assert(
      fc.property(fc.array(call, { minLength: 20, maxLength: 80 }), (calls) => {
        const { clock, api, user, total } = users();
        for (const { user: id, cost, afterMs } of calls) {
          clock.advance(afterMs);
          const key = `u${id}`;
          const before = [user.inspect(key).remaining, total.inspect('*').remaining];
          const expected = Math.min(...before) >= cost;
          expect(api.peek(key, cost).verdict === 'allow').toBe(expected);
          const { verdict } = api.check(key, cost);
          expect(verdict === 'allow').toBe(expected);
          const taken = verdict === 'allow' ? cost : 0;
          const after = [user.inspect(key).remaining, total.inspect('*').remaining];
          expect(after).toEqual(before.map((count) => count - taken));
        }
      }),
    );
  });

  test('a permit is settled once it has expired in every component', () => {
    const clock = new VirtualClock();
    const short = limiter({ limit: per(1, 2), permitTimeout: '1s', clock });
    const long = limiter({ limit: per(1, 2), permitTimeout: '5s', clock });
    const permit = all([short, long]).tryAcquire('x');
    const isSettledAt = [500, 1500, 6000].map((at) => {
      clock.advance(at - clock.now());
      return permit.verdict === 'allow' && permit.isSettled;
    });
    expect(isSettledAt).toEqual([false, false, true]);
  });

  test('close: refuses waiting and later calls with reason closed', async () => {
    const { api, user } = users();
    api.check('a', 2);
    const waiting = api.acquire('a');
    api.close();
    expect(await waiting).toMatchObject({ verdict: 'deny', reason: 'closed', limit: 'user' });
    expect(api.check('b')).toMatchObject({ verdict: 'deny', reason: 'closed' });
    expect(api.tryAcquire('b')).toMatchObject({ reason: 'closed' });
    expect(await api.acquire('b')).toMatchObject({ reason: 'closed' });
    expect(api.check('b', 0)).toMatchObject({ verdict: 'deny', reason: 'closed' });
    expect(await api.acquire('b', 0)).toMatchObject({ reason: 'closed' });
    expect(user.stats()).toMatchObject({ waiting: 0 });
  });

  test('refuses invalid components and options by name', () => {
    expect(() => all([])).toThrow('a list of at least one limiter');
    const error = 'different limiters, or one limiter with a `key` or `cost` of its own';
    const same = limiter({ name: 'same', limit: per(1, 1) });
    expect(() => all([same, same])).toThrow(error);
    expect(() => all([same, { limiter: all([same, limiter({ limit: per(1, 1) })]) }])).toThrow(
      error,
    );
    expect(() => all([same, { limiter: same, key: '*' }])).not.toThrow();
    expect(() => all([{}] as never)).toThrow('`components[0].limiter` to be a limiter');
    expect(() => all([7] as never)).toThrow('components[0]');
    const one = limiter({ limit: per(1, 1) });
    expect(() => all([{ limiter: one, key: 7 }] as never)).toThrow('components[0].key');
    expect(() => all([{ limiter: one, cost: -1 }])).toThrow('components[0].cost');
    expect(() => all([{ limiter: one, kee: '' }] as never)).toThrow('components[0].kee');
    expect(() => all([one]).check('x', 1, { partition: 'live' })).toThrow('partition');
    for (const result of [7, null]) {
      expect(() => all([one]).settle('x', result as never)).toThrow('`result` to be an object');
    }
    expect(() => all(Array.from({ length: 65 }, () => one))).toThrow('at most 64');
  });
});

test('composite limiter: closed components are named as the reason', () => {
  const { api, total } = users();
  total.close();
  const closed = { verdict: 'deny', retryAfterMs: Infinity, reason: 'closed' };
  expect([api.check('a'), api.peek('a')]).toEqual([closed, closed]);
  expect(api.tryAcquire('a')).toMatchObject({ ...closed, limit: 'total' });
  expect(api.inspect('a')).toMatchObject({ by: 'closed', opensInMs: Infinity });
});

test('composite limiter: refuses an empty name', () => {
  const one = limiter({ limit: per(1, 1) });
  expect(() => all([one], { name: '' })).toThrow('`name` to be a string of at least one character');
});
