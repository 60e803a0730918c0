import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { nodeRedis, type RedisConnection } from '../../../test/support/redis-clients.ts';
import { freePort, redisServer, type Service, startRedis } from '../../../test/support/services.ts';
import { seededRandom } from '../../core/random.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limiter } from '../../limiter/sync-limiter.ts';
import type { Limit } from '../../policies/limit.ts';
import { overshootOf } from '../../simulator/groups/figures.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import type { BackendFactory } from '../backend.ts';
import { MemoryHub } from '../peers/memory-transport.ts';
import { peers } from '../peers/options.ts';
import { redis } from '../redis/index.ts';
import { HttpGroupTransport } from './http-transport.ts';
import { type GroupsMembership, type GroupsOptions, groups } from './options.ts';
import type { BorrowRequest, GroupTransport } from './transport.ts';

const KEY = 'sixteen letters or more';
const LIMIT: Limit = { bucket: { rate: 20, burst: 20 } };
const TWO = { a: {}, b: {} };

const ends: (() => unknown)[] = [];
afterEach(async () => {
  for (const end of ends.splice(0).reverse()) await end();
});

/** Groups that reach each other in so long, there and back. */
function world(
  rttMs: number | readonly [there: number, back: number],
  more: Partial<GroupsOptions> = {},
  names: readonly string[] = ['a', 'b'],
) {
  const clock = new VirtualClock(1_000_000);
  const places = new Map<string, GroupsMembership>();
  const sleep = (ms: number): Promise<void> =>
    new Promise((wake) => {
      clock.wakeAt(clock.now() + ms, wake);
    });
  const wanted: (readonly BorrowRequest[])[] = [];
  const [there, back] = typeof rttMs === 'number' ? [rttMs / 2, rttMs / 2] : rttMs;
  const transport: GroupTransport = {
    async borrow(to, wants) {
      wanted.push(wants);
      await sleep(there);
      const given = (await places.get(to)?.lend(wants)) ?? [];
      await sleep(back);
      return given;
    },
  };
  const start = (own: string, limit = LIMIT) => {
    const claims = more.groups ?? Object.fromEntries(names.map((name) => [name, {}]));
    const place = groups({ clock, transport, ...more, self: own, groups: claims });
    places.set(own, place);
    return { place, api: limiter({ name: 'api', limit, backend: place, clock }) };
  };
  return { clock, start, wanted };
}

/** How many calls go through at once. */
const takeAll = (api: Limiter): number => {
  for (let got = 0; ; got++) if (api.check('k').verdict !== 'allow') return got;
};

/** The same, and so many more are asked for as a theft may bring. */
const takeAllAndMore = (api: Limiter, more = 10): number => {
  const got = takeAll(api);
  for (let n = 0; n < more; n++) api.check('k');
  return got;
};

describe('groups', () => {
  test('each has its part by weight, at once', () => {
    const { start } = world(100, { groups: { a: { weight: 3 }, b: { weight: 1 } } });
    const [a, b] = [start('a'), start('b')];
    expect([a.place.view().part, b.place.view().part]).toEqual([0.75, 0.25]);
    expect([takeAll(a.api), takeAll(b.api)]).toEqual([15, 5]);
  });

  test('who is empty steals what the other has above what it keeps, and it is there for who asks next', async () => {
    const { clock, start } = world(100);
    const [a, b] = [start('a'), start('b')];
    expect(takeAllAndMore(a.api)).toBe(10);
    await clock.advanceAsync(150);
    expect(b.api.inspect('k').remaining).toBe(5); // it kept half
    const { lent } = b.place.view();
    expect(lent).toBeGreaterThanOrEqual(5);
    expect(a.place.view().others).toMatchObject([{ group: 'b', borrowed: lent, failures: 0 }]);
    expect(takeAll(a.api)).toBeGreaterThanOrEqual(5);
  });

  test('who waits in line is let in when something was stolen for it', async () => {
    const { clock, start } = world(40, {}, ['a', 'b', 'c']);
    const [a] = [
      start('a', { bucket: { rate: 0.03, burst: 30 } }),
      start('b', { bucket: { rate: 0.03, burst: 30 } }),
      start('c'),
    ];
    expect(takeAll(a.api)).toBe(10);
    await clock.advanceAsync(500);
    takeAll(a.api);
    const since = clock.now();
    let waitedMs = Number.NaN;
    void a.api.acquire('k').then(() => {
      waitedMs = clock.now() - since;
    });
    await clock.advanceAsync(5000);
    expect(waitedMs).toBeLessThan(1200); // its own next token would be there in 100 seconds
  });

  test('what is on its way can be too much for a moment, by no more than the bound', async () => {
    const { clock, start } = world(400, { deadline: 500 });
    const [a, b] = [
      start('a', { bucket: { rate: 100, burst: 20 } }),
      start('b', { bucket: { rate: 100, burst: 20 } }),
    ];
    expect(takeAllAndMore(a.api)).toBe(10);
    await clock.advanceAsync(415); // both are full again, and what was stolen has yet to come
    let got = takeAll(a.api) + takeAll(b.api);
    expect(got).toBe(20);
    await clock.advanceAsync(10);
    got += takeAll(a.api);
    const excess = got - 20 - (100 * 10) / 1000;
    expect(excess).toBeGreaterThan(3);
    expect(excess).toBeLessThan((100 * 500) / 1000);
  });

  test('nothing is stolen twice, so what is on its way cannot pile up', async () => {
    const { clock, start } = world([0, 480], { deadline: 500 });
    const limit: Limit = { bucket: { rate: 100, burst: 100 } };
    const apis = [start('a', limit).api, start('b', limit).api];
    for (const api of apis) takeAll(api);
    for (let n = 0; n < 2000; n++) {
      // Too dear by a hair, again and again: both steal, nobody spends.
      for (const api of apis) if (api.inspect('k').remaining < 50) api.check('k', 50);
      await clock.advanceAsync(5);
    }
    let got = 0;
    for (let n = 0; n < 200; n++) {
      for (const api of apis) got += takeAll(api);
      await clock.advanceAsync(5);
    }
    expect(got).toBeLessThanOrEqual(100 + 100 * (1 + 0.5)); // burst + rate × (span + deadline)
  });

  test.each([
    ['can never be', 100],
    ['finds more than is kept and yet too little', 9],
  ])('nothing is stolen for a call that %s: it would not fit', async (_, cost) => {
    const { clock, start, wanted } = world(20);
    const [a] = [start('a'), start('b')];
    a.api.check('k', 2);
    a.api.check('k', cost);
    await clock.advanceAsync(100);
    expect(wanted).toEqual([]);
  });

  test('what comes after the deadline is nobody’s', async () => {
    const { clock, start } = world(600, { deadline: 500 });
    const [a] = [start('a'), start('b')];
    takeAll(a.api);
    await clock.advanceAsync(700);
    expect(a.place.view().others).toMatchObject([
      { borrowed: 0, failures: 1, reason: 'it took longer than 500 ms' },
    ]);
  });

  test('who cannot be reached is asked less and less, and at least every second', async () => {
    const { clock, start, wanted } = world(20);
    const a = start('a'); // the other one never came
    for (let n = 0; n < 600; n++) {
      takeAll(a.api);
      await clock.advanceAsync(100);
    }
    expect(wanted.length).toBeGreaterThan(55);
    expect(wanted.length).toBeLessThan(75);
  });

  test('many keys are stolen for in one request, and not more than are bounded', async () => {
    const { clock, start, wanted } = world(100);
    const [a] = [start('a'), start('b')];
    for (let n = 0; n < 1500; n++) a.api.takeUpTo(`k${n}`, Infinity);
    for (let n = 0; n < 1500; n++) a.api.takeUpTo(`k${n}`, Infinity);
    await clock.advanceAsync(30);
    expect(wanted).toHaveLength(1);
    expect(wanted[0]).toHaveLength(1000);
  });

  test.each([
    [{ self: 'c' }, '`self` to be one of the groups: a, b, got "c"'],
    [{ groups: { a: {} } }, '`groups` to be 2 to 100 groups by name'],
    [{ groups: { a: { weight: -1 }, b: {} } }, '`groups.a.weight`'],
    [{ groups: { a: { min: 0.7 }, b: { min: 0.7 } } }, 'guaranteed at most 1'],
    [
      { groups: { a: {}, b: { at: 'us:7614' } } },
      '`groups.b.at` to be an address such as https://us.internal:7614',
    ],
    [{ groups: { a: {}, b: { at: 'http://user:secret@us' } } }, '`groups.b.at`'],
    [{ groups: { a: {}, b: { wieght: 1 } } }, '`groups.b.wieght`'],
    [
      { transport: undefined, groups: { a: {}, b: { at: 'http://b' } } },
      '`key` to be a secret of at least 16 characters, in ASCII',
    ],
    [
      { transport: undefined, groups: { a: {}, b: { at: 'http://b' } }, key: `${KEY}\n` },
      'without spaces around it',
    ],
    ...['shorter than 16', 'sixteen lätters or more', 'sixteen letters or more\n'].map(
      (key): [object, string] => [
        { transport: undefined, key, groups: { a: {}, b: { at: 'http://b' } } },
        '`key` to be a secret of at least 16 characters, in ASCII and without spaces around it',
      ],
    ),
    [{ transport: undefined, key: KEY }, '`groups.b.at` to be where it can be reached'],
    [{ reserve: 2 }, '`reserve`'],
    [{ listen: { port: -1 }, key: KEY }, '`listen.port`'],
    [{ colour: 'red' }, '`colour`'],
  ])('%o makes no sense', (wrong, expected) => {
    const transport: GroupTransport = { borrow: async () => [] };
    const setting = { self: 'a', groups: TWO, transport, ...wrong } as GroupsOptions;
    expect(() => groups(setting)).toThrow(expected);
  });

  test('a secret address is not shown', () => {
    const wrong = { a: {}, b: { at: 'http://user:secret@us' } };
    let told = '';
    try {
      groups({ self: 'a', groups: wrong, key: KEY });
    } catch (error) {
      told = String(error);
    }
    expect(told).toContain('groups.b.at');
    expect(told).not.toContain('secret@');
  });

  test('only buckets can be divided, and each group needs a token', () => {
    const { start } = world(10);
    expect(() => start('a', { spacing: { every: '1s' } })).toThrow('a bucket');
    expect(() => start('a', { bucket: { rate: 5, burst: 1 } })).toThrow(
      '`limit.bucket.burst` to be at least 2',
    );
  });

  test('a group without any part has no bucket to steal into', () => {
    const { start } = world(10, { groups: { a: { weight: 0 }, b: {} } });
    expect(() => start('a')).toThrow('`groups.a.weight` to be above 0');
  });

  test('a pool keeps no bucket for a group', () => {
    const local = { isRemote: false, create: () => ({}) } as unknown as BackendFactory;
    const transport: GroupTransport = { borrow: async () => [] };
    const place = groups({ self: 'a', groups: TWO, transport, bucket: local });
    expect(() => limiter({ name: 'api', limit: LIMIT, backend: place })).toThrow(
      '`bucket` to be redis(client) or peers(...)',
    );
  });

  test('a door that never answers is given up, and tried again', async () => {
    const clock = new VirtualClock(1_000_000);
    const borrow = () => new Promise<number[]>(() => {});
    const place = groups({ self: 'a', groups: TWO, transport: { borrow }, clock, deadline: 500 });
    const api = limiter({ name: 'api', limit: LIMIT, backend: place, clock });
    for (let n = 0; n < 300; n++) {
      takeAll(api);
      await clock.advanceAsync(100);
    }
    const [{ requests, failures, reason }] = place.view().others;
    expect(requests).toBeGreaterThan(15);
    expect(failures).toBeGreaterThanOrEqual(requests - 1);
    expect(reason).toBe('it took longer than 500 ms');
  });

  test.each([
    [[1e300], 5],
    [[Number.NaN], 0],
    [[-5], 0],
    [['5'], 0],
    [[], 0],
    [undefined, 0],
  ])('a door that says %o gets %i into the bucket', async (said, expected) => {
    const clock = new VirtualClock(1_000_000);
    const borrow = async () => said as number[];
    const place = groups({ self: 'a', groups: TWO, transport: { borrow }, clock });
    const limit: Limit = { bucket: { rate: 0.001, burst: 20 } };
    const api = limiter({ name: 'api', limit, backend: place, clock });
    takeAllAndMore(api);
    await clock.advanceAsync(25);
    expect(place.view().others[0].borrowed).toBe(expected);
    expect(api.inspect('k').remaining).toBe(expected);
  });

  test('two limits of one name would be mixed up', () => {
    const { start } = world(10);
    const { place } = start('a');
    expect(() => limiter({ name: 'api', limit: LIMIT, backend: place as never })).toThrow(
      '`name` to be different',
    );
  });
});

test('peers keep a group’s bucket: what one of them gave is gone for all of them', async () => {
  const clock = new VirtualClock(1_000_000);
  const hub = new MemoryHub({ clock, delayMs: [1, 1] });
  const places = new Map<string, GroupsMembership>();
  const transport: GroupTransport = {
    borrow: async (to, wants) => (await places.get(to)?.lend(wants)) ?? [],
  };
  const limit: Limit = { bucket: { rate: 0.001, burst: 40 } };
  const start = (own: string, node: string) => {
    const bucket = own === 'a' ? {} : { bucket: peers({ transport: hub.transport(node), clock }) };
    const place = groups({ self: own, groups: TWO, transport, clock, ...bucket });
    return { place, api: limiter({ name: 'api', limit, backend: place, clock }) };
  };
  const [one, two, borrower] = [start('b', 'one'), start('b', 'two'), start('a', '')];
  places.set('b', one.place);
  await clock.advanceAsync(2000);
  one.api.check('k');
  await clock.advanceAsync(200);
  expect(takeAllAndMore(borrower.api)).toBe(20);
  await clock.advanceAsync(200);
  expect(takeAll(borrower.api)).toBe(9); // what was there above the half that is kept
  expect([one, two].map(({ api }) => api.inspect('k').remaining)).toEqual([10, 10]);
});

test('peers that keep a group’s bucket use all that was stolen for it, and no more', async () => {
  const clock = new VirtualClock(1_000_000);
  const random = seededRandom(7);
  const sleep = (ms: number): Promise<void> =>
    new Promise((wake) => {
      clock.wakeAt(clock.now() + ms, wake);
    });
  const fleets = new Map<string, GroupsMembership[]>();
  const transport: GroupTransport = {
    async borrow(to, wants) {
      await sleep(40);
      const places = fleets.get(to) ?? [];
      const given = await places[Math.floor(random() * places.length)].lend(wants);
      await sleep(40);
      return given;
    },
  };
  const known = { eu: {}, us: {}, ap: {} };
  const rate = 300;
  const limit: Limit = { bucket: { rate, burst: rate } };
  const LOADS = { eu: 400, us: 10, ap: 10 };
  const callers = Object.entries(LOADS).flatMap(([own, load]) => {
    const hub = new MemoryHub({ clock, delayMs: [1, 1] });
    const members = ['one', 'two', 'three'].map((node, n) => {
      const bucket = peers({ transport: hub.transport(node), clock, random: seededRandom(n) });
      const place = groups({ self: own, groups: known, transport, clock, bucket });
      const api = limiter({ name: 'api', limit, backend: place, clock });
      return { place, api, load: load / 3, next: 0 };
    });
    fleets.set(
      own,
      members.map(({ place }) => place),
    );
    return members;
  });
  await clock.advanceAsync(2000);
  const startAt = clock.now();
  const began: number[] = [];
  for (;;) {
    const next = callers.reduce((one, other) => (other.next < one.next ? other : one));
    if (next.next > 10_000) break;
    await clock.advanceAsync(Math.max(0, startAt + next.next - clock.now()));
    if (next.api.check('all').verdict === 'allow') began.push(next.next);
    next.next += (-Math.log(1 - random()) * 1000) / next.load;
  }
  const used = began.filter((at) => at >= 4000).length / (6 * rate);
  expect(used).toBeGreaterThan(0.96);
  expect(used).toBeLessThan(1.04);
  expect(overshootOf(began, rate, rate)).toBeLessThan(rate * 0.5);
});

describe('groups over HTTP', () => {
  const until = async (isSo: () => boolean | Promise<boolean>, within = 5000): Promise<void> => {
    const end = Date.now() + within;
    while (!(await isSo())) {
      if (Date.now() > end) throw new Error(`not so within ${within} ms: ${isSo}`);
      await new Promise((done) => setTimeout(done, 5));
    }
  };
  const freeze: Limit = { bucket: { rate: 0.001, burst: 20 } };

  /** How two groups reach each other. */
  async function groupSettings(keys: readonly [string, string] = [KEY, KEY]) {
    const ports = [await freePort(), await freePort()];
    const at = ports.map((port) => `http://127.0.0.1:${port}`);
    return ['a', 'b'].map((self, n) => ({
      deadline: '5s', // what is lost on a busy machine would be nobody's
      ...{ self, key: keys[n], listen: { port: ports[n] } },
      groups: { a: n === 0 ? {} : { at: at[0] }, b: n === 1 ? {} : { at: at[1] } },
    }));
  }

  /** Both in this process. */
  async function pair(keys?: readonly [string, string]) {
    return (await groupSettings(keys)).map((setting) => {
      const place = groups(setting);
      ends.push(() => place.close());
      const at = `http://127.0.0.1:${setting.listen.port}`;
      return { place, at, api: limiter({ name: 'api', limit: freeze, backend: place }) };
    });
  }

  test('steal from each other', async () => {
    const [a, b] = await pair();
    expect(await a.place.listening).toBe(a.at);
    await b.place.listening;
    expect(takeAllAndMore(a.api)).toBe(10);
    await until(() => a.place.view().others[0].borrowed === 5);
    expect(takeAll(a.api)).toBe(5);
    expect(takeAll(b.api)).toBe(5);
  });

  test('give nothing to who does not know the key', async () => {
    const [a, b] = await pair([KEY, `${KEY}, another`]);
    await b.place.listening;
    takeAll(a.api);
    await until(() => a.place.view().others[0].failures > 0);
    expect(a.place.view().others[0].reason).toMatch(/says 401: .*the key is another/);
    expect(b.place.view().lent).toBe(0);
    expect(b.api.inspect('k').remaining).toBe(10);
  });

  test('say what is wrong with a request, and give nothing for it', async () => {
    const [{ place, at }] = await pair();
    await place.listening;
    const ask = async (
      body: string,
      headers = { authorization: `Bearer ${KEY}` },
      path = '/borrow',
    ) => {
      const response = await fetch(`${at}${path}`, { method: 'POST', body, headers });
      return [response.status, await response.text()];
    };
    expect(await ask('{"wants":[["api","k",3]]}')).toEqual([200, '{"given":[3]}']);
    expect(await ask('{"wants":[["other","k",3]]}')).toEqual([200, '{"given":[0]}']);
    expect(await ask('{"wants":[["api","k",-3]]}')).toEqual([200, '{"given":[0]}']);
    for (const body of [
      '',
      '{',
      '[]',
      '{"wants":5}',
      '{"wants":[1]}',
      '{"wants":[["api","k",1.5]]}',
    ]) {
      expect([body, (await ask(body))[0]]).toEqual([body, 400]);
    }
    const many = JSON.stringify({ wants: Array.from({ length: 1001 }, () => ['api', 'k', 1]) });
    expect((await ask(many))[0]).toBe(400);
    expect((await ask('{}', { authorization: '' }))[0]).toBe(401);
    expect((await ask('{}', undefined, '/other'))[0]).toBe(404);
    await expect(ask('x'.repeat(1_100_000))).rejects.toThrow();
    expect(place.view().lent).toBe(3);
  });

  test('the next address is tried when one does not answer', async () => {
    const [a] = await pair();
    const nobody = `http://127.0.0.1:${await freePort()}`;
    await a.place.listening;
    const c = groups({ self: 'b', groups: { a: { at: [nobody, a.at] }, b: {} }, key: KEY });
    ends.push(() => c.close());
    takeAll(limiter({ name: 'api', limit: freeze, backend: c }));
    await until(() => c.view().others[0].failures > 0);
    const api = limiter({ name: 'other', limit: freeze, backend: c });
    await until(() => {
      takeAll(api);
      return c.view().others[0].reason === undefined;
    });
  });

  test('a key too long for a request keeps no other from being stolen for', async () => {
    const [a, b] = await pair();
    await b.place.listening;
    a.api.takeUpTo('x'.repeat(1_100_000), Infinity);
    a.api.takeUpTo('x'.repeat(1_100_000), Infinity);
    takeAllAndMore(a.api);
    await until(() => a.place.view().others[0].borrowed > 0);
    expect(a.place.view().others[0].failures).toBe(0);
  });

  test('one that hangs has taken too long', async () => {
    const server = createServer(() => {});
    await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
    ends.push(
      () => server.closeAllConnections(),
      () => server.close(),
    );
    const at = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
    const transport = new HttpGroupTransport({
      addresses: new Map([['b', [at]]]),
      key: KEY,
      deadlineMs: 50,
    });
    ends.push(() => transport.close());
    await expect(transport.borrow('b', [])).rejects.toThrow('it took longer than 50 ms');
  });

  test('a group may be under a path, and what else is there is no group', async () => {
    const asked: unknown[] = [];
    const server = createServer((request, response) => {
      asked.push(request.url);
      response.end('{"welcome": true}');
    });
    await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
    ends.push(() => server.close());
    const at = `http://127.0.0.1:${(server.address() as AddressInfo).port}/throttle/`;
    const place = groups({ self: 'a', groups: { a: {}, b: { at } }, key: KEY, deadline: '5s' });
    ends.push(() => place.close());
    takeAllAndMore(limiter({ name: 'api', limit: freeze, backend: place }));
    await until(() => place.view().others[0].failures > 0);
    expect(asked[0]).toBe('/throttle/borrow');
    expect(place.view().others[0].reason).toBe('an answer without `given`');
  });

  test('a port that is taken is told', async () => {
    const [a] = await pair();
    await a.place.listening;
    const port = Number(new URL(a.at).port);
    const late = groups({
      self: 'a',
      groups: { a: {}, b: { at: 'http://127.0.0.1:1' } },
      key: KEY,
      listen: { port },
    });
    const warned = new Promise<Error>((hear) => process.once('warning', hear));
    await expect(late.listening).rejects.toThrow('EADDRINUSE');
    expect((await warned).message).toMatch(/others cannot borrow from a here: .*EADDRINUSE/);
    await late.close();
  });

  describe.skipIf(redisServer() === undefined)('with a Redis for each group', () => {
    test('all processes of a group spend what one of them stole', async () => {
      const servers: Service[] = [await startRedis(), await startRedis()];
      const clients: RedisConnection[] = [];
      const client = async (n: number) => {
        const own = await nodeRedis(servers[n].port);
        clients.push(own);
        return redis(own.client);
      };
      ends.push(async () => {
        for (const { disconnect } of clients) disconnect();
        for (const server of servers) await server.stop();
      });
      const [a, b] = await Promise.all(
        (await groupSettings()).map(async (setting, n) => {
          const place = groups({ ...setting, bucket: await client(n) });
          ends.push(() => place.close());
          return { place, api: limiter({ name: 'api', limit: freeze, backend: place }) };
        }),
      );
      await Promise.all([a.place.listening, b.place.listening]);
      const all = async (api: RemoteLimiter): Promise<number> => {
        for (let got = 0; ; got++) if ((await api.check('k')).verdict !== 'allow') return got;
      };
      expect(await a.api.takeUpTo('k', Infinity)).toBe(10);
      expect(await a.api.takeUpTo('k', Infinity)).toBe(0); // and wants as much as fits
      await until(async () => (await a.api.inspect('k'))?.remaining === 5);
      const at = { a: {}, b: { at: 'http://127.0.0.1:1' } };
      const fellow = groups({ self: 'a', groups: at, key: KEY, bucket: await client(0) });
      ends.push(() => fellow.close());
      const api = limiter({ name: 'api', limit: freeze, backend: fellow });
      expect((await api.inspect('k'))?.remaining).toBe(5);
      expect(await all(api)).toBe(5);
      expect(await all(b.api)).toBe(5);
    });
  });
});
