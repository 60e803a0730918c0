import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { RemoteBackend } from '../backends/remote-backend.ts';
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
  const everyone = limiter({ name: 'everyone', limit: per(2, 3), clock });
  const api = all([user, { limiter: everyone, key: '*' }]);
  return { clock, user, everyone, api };
}

describe('all of several limiters', () => {
  test('per user and for everybody: all or nothing', () => {
    const { api, user, everyone } = users();
    expect(api.name).toBe('user+everyone');
    expect(api.check('alice')).toEqual({ verdict: 'allow', remaining: 1 });
    expect(api.check('alice').verdict).toBe('allow');
    expect(api.check('alice')).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
    expect(everyone.inspect('*').remaining).toBe(1); // the refused call took nothing here
    expect(api.check('bob').verdict).toBe('allow');
    expect(api.check('carol')).toEqual({ verdict: 'deny', retryAfterMs: 500 });
    expect(user.inspect('carol').remaining).toBe(2);
  });

  test('requests and tokens: estimated, and settled with what was really used', () => {
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

  test('a rate over calls in flight', () => {
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

  test('one limiter twice is asked twice, and gives back what it gave first', () => {
    const clock = new VirtualClock();
    const one = limiter({ limit: per(1, 5), clock });
    const twice = all([one, { limiter: one, cost: (cost) => 2 * cost }]);
    expect(twice.check('x').verdict).toBe('allow');
    expect(one.inspect('x').remaining).toBe(2);
    expect(twice.check('x').verdict).toBe('deny');
    expect(one.inspect('x').remaining).toBe(2);
  });

  test('who waits stands in the line of the limiter that holds it back', async () => {
    const { clock, api, everyone } = users();
    const story: string[] = [];
    const enter = async (name: string, from = api, key = name): Promise<void> => {
      await from.acquire(key);
      story.push(`${clock.now()} ${name}`);
    };
    for (const name of ['alice', 'alice', 'alice', 'bob', 'carol', 'dave']) enter(name);
    enter('straight', everyone, '*');
    await clock.advanceAsync(0);
    expect(everyone.stats().waiting).toBe(3); // carol, dave and whoever came straight
    await clock.advanceAsync(4000);
    expect(story).toEqual([
      '0 alice',
      '0 alice',
      '0 bob', // alice's third waits for her own limit, and in nobody's way
      '500 carol',
      '1000 alice', // she comes before dave, who waits for everybody's: she came earlier
      '1500 dave',
      '2000 straight',
    ]);
    expect(everyone.stats().waiting).toBe(0);
  });

  test.each([1, 2, 3, 4, 5, 6, 7, 8])(
    'nobody is forgotten when a limit opens between the look and the ask (seed %i)',
    async (seed) => {
      // Every look at this clock is a little later than the last: what was refused may now fit.
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

  test('a large one among many small ones has its turn', async () => {
    const clock = new VirtualClock();
    const a = limiter({ name: 'a', limit: { spacing: { every: 100 } }, clock });
    const b = limiter({ name: 'b', limit: per(10, 20), clock });
    const both = all([{ limiter: a, cost: 1 }, b]);
    b.check('k', 19);
    const story: string[] = [];
    const enter = async (name: string, cost: number, from = both): Promise<void> => {
      await from.acquire('k', cost);
      story.push(`${clock.now()} ${name}`);
    };
    enter('first', 1);
    enter('large', 15);
    for (let n = 0; n < 100; n++) enter('small', 1);
    enter('straight', 15, b);
    await clock.advanceAsync(30_000);
    expect(story.slice(0, 3)).toEqual(['0 first', '1500 large', '1600 small']);
    expect(story.indexOf('13000 straight')).toBe(102);
  });

  test('the same limiter and key twice is one call of both costs', async () => {
    const clock = new VirtualClock();
    const one = limiter({ limit: { concurrency: 3 }, clock });
    const twice = all([one, one]);
    expect(await twice.acquire('k', 2)).toMatchObject({ verdict: 'deny', reason: 'never' });
    const permit = await twice.acquire('k', 1);
    expect(one.inspect('k').inFlight).toBe(2);
    if (permit.verdict === 'allow') permit.settle();
    expect(one.inspect('k').inFlight).toBe(0);
  });

  test('a part whose cost of what was used is nonsense leaves nothing half settled', async () => {
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
    other.check('k', 1);
    expect(() => other.settle('k', { used: 0 })).toThrow('used');
    expect(flights.inspect('k').inFlight).toBe(1);
  });

  test('a partition is settled where it is known', () => {
    const clock = new VirtualClock();
    const plain = limiter({ limit: per(10, 10), clock });
    const parted = limiter({
      limit: { concurrency: { limit: 2, partitions: { live: 0.5 } } },
      clock,
    });
    const both = all([plain, parted]);
    both.check('k', 1, { partition: 'live' });
    both.settle('k', { partition: 'live' });
    expect(parted.inspect('k').inFlight).toBe(0);
  });

  test('a batch needs parts that count alike', () => {
    const { api, everyone } = users();
    const mixed = all([api, { limiter: everyone, cost: 1 }]);
    expect(() => mixed.takeUpTo('k', 5)).toThrow('a part without a cost of its own');
    expect(() => mixed.giveBack('k', 5)).toThrow('a part without a cost of its own');
  });

  test('keys and costs are worked out once a call, and may ask the limiter themselves', async () => {
    const clock = new VirtualClock();
    const a = limiter({ name: 'a', limit: per(10, 1), clock });
    let asked = 0;
    const both = all([
      {
        limiter: a,
        key: (key) => {
          asked++;
          a.update('other', { hits: 1 });
          return key;
        },
      },
      limiter({ limit: per(5, 1), clock }),
    ]);
    let through = 0;
    for (let n = 0; n < 5; n++) both.acquire('k').then(() => through++);
    await clock.advanceAsync(3000);
    expect([through, asked]).toEqual([5, 5]);
  });

  test('patience, abort and what never fits are heard from whoever is in the way', async () => {
    const { clock, api, user, everyone } = users();
    api.check('a', 2);
    expect(await api.acquire('a', 1, { wait: 400 })).toMatchObject({
      limit: 'user',
      reason: 'too-long',
      retryAfterMs: 1000,
    });
    expect(await api.acquire('b', 3)).toMatchObject({ limit: 'user', reason: 'never' });
    const giveUp = new AbortController();
    const waiting = api.acquire('a', 1, { signal: giveUp.signal });
    const late = api.acquire('a', 1, { wait: 1500 });
    await clock.advanceAsync(100);
    giveUp.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
    await clock.advanceAsync(2000);
    expect((await late).verdict).toBe('allow');
    expect([user.stats().waiting, everyone.stats().waiting]).toEqual([0, 0]);
    expect(user.stats().cancelled).toBe(1);
  });

  test('what comes back is a limiter like any other: taken from, told, looked into, nested', () => {
    const { clock, api, user, everyone } = users();
    expect(api.takeUpTo('batch', Infinity)).toBe(2);
    expect(everyone.inspect('*').remaining).toBe(1);
    api.giveBack('batch', 1);
    expect([user.inspect('batch').remaining, everyone.inspect('*').remaining]).toEqual([1, 2]);
    expect(api.update('batch', { hits: 2 })).toBe(true);
    expect(api.inspect('batch')).toMatchObject({
      name: 'user+everyone',
      remaining: -1,
      by: 'user',
      opensInMs: 2000,
      rules: [{ name: 'user' }, { name: 'everyone' }],
    });
    const outer = all([
      { limiter: api, key: (key) => `x:${key}` },
      limiter({ limit: per(9, 9), clock }),
    ]);
    expect(outer.check('q').verdict).toBe('deny'); // everyone has nothing left
    clock.advance(1000);
    expect(outer.check('q').verdict).toBe('allow');
    expect(user.inspect('x:q').remaining).toBe(1);
    expect(outer.peek('q', 2).verdict).toBe('deny');
    expect(outer.stats()).toMatchObject({ denied: 1, waiting: 0 });
  });

  test('each part tells of what it decided', () => {
    const { api } = users();
    const heard: LimitEvent[] = [];
    const stop = api.on((event) => heard.push(event));
    api.check('alice', 2);
    api.check('alice', 2);
    stop();
    api.check('alice', 2);
    expect(heard.map((event) => [event.type, event.limit, event.key])).toEqual([
      ['decision', 'user', 'alice'],
      ['decision', 'everyone', '*'],
      ['decision', 'user', 'alice'],
    ]);
  });

  test('under any traffic nothing is taken by a call that was refused', () => {
    const ask = fc.record({
      user: fc.nat(3),
      cost: fc.integer({ min: 0, max: 4 }),
      afterMs: fc.nat(400),
    });
    fc.assert(
      fc.property(fc.array(ask, { minLength: 20, maxLength: 80 }), (asks) => {
        const { clock, api, user, everyone } = users();
        for (const { user: who, cost, afterMs } of asks) {
          clock.advance(afterMs);
          const key = `u${who}`;
          const before = [user.inspect(key).remaining, everyone.inspect('*').remaining];
          const expected = Math.min(...before) >= cost;
          expect(api.peek(key, cost).verdict === 'allow').toBe(expected);
          const { verdict } = api.check(key, cost);
          expect(verdict === 'allow').toBe(expected);
          const taken = verdict === 'allow' ? cost : 0;
          const after = [user.inspect(key).remaining, everyone.inspect('*').remaining];
          expect(after).toEqual(before.map((left) => left - taken));
        }
      }),
    );
  });

  test('what every part has given up is given up by all', () => {
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

  test('nonsense is named', () => {
    expect(() => all([])).toThrow('a list of at least one limiter');
    expect(() => all([{}] as never)).toThrow('`parts[0].limiter` to be a limiter');
    expect(() => all([7] as never)).toThrow('parts[0]');
    const make = () => ({}) as RemoteBackend; // nobody is ever asked
    const shared = limiter({
      name: 'far',
      limit: per(1, 1),
      backend: { isRemote: true, create: make },
    });
    const advice =
      'to be a limiter that decides in this process: spell shared ones as one limit, { all: [...] }, if key and cost are ' +
      "the same; else acquire one after the other, and settle those before as 'ignored' when one refuses, " +
      'got "shared limiter far"';
    expect(() => all([shared] as never)).toThrow(`expected \`parts[0]\` ${advice}`);
    const part = { limiter: shared, key: '*' };
    expect(() => all([part] as never)).toThrow(`expected \`parts[0].limiter\` ${advice}`);
    const one = limiter({ limit: per(1, 1) });
    expect(() => all([{ limiter: one, key: 7 }] as never)).toThrow('parts[0].key');
    expect(() => all([{ limiter: one, cost: -1 }])).toThrow('parts[0].cost');
    expect(() => all([{ limiter: one, kee: '' }] as never)).toThrow('parts[0].kee');
    expect(() => all([one]).check('x', 1, { partition: 'live' })).toThrow('partition');
    for (const result of [7, null]) {
      expect(() => all([one]).settle('x', result as never)).toThrow('`result` to be an object');
    }
    expect(() => all(Array.from({ length: 65 }, () => one))).toThrow('at most 64');
  });
});
