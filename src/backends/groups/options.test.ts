import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { nodeRedis, type RedisConnection } from '../../../test/support/redis-clients.ts';
import {
  freePort,
  freePorts,
  redisServer,
  type Service,
  startRedis,
} from '../../../test/support/services.ts';
import { seededRandom } from '../../core/random.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limiter } from '../../limiter/limiter-interface.ts';
import type { Limit } from '../../policies/limit.ts';
import { overshootOf } from '../../simulator/overshoot.ts';
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

/** Groups with a given round-trip time between them. */
function world(
  rttMs: number | readonly [there: number, back: number],
  options: Partial<GroupsOptions> = {},
  names: readonly string[] = ['a', 'b'],
) {
  const clock = new VirtualClock(1_000_000);
  const members = new Map<string, GroupsMembership>();
  const sleep = (ms: number): Promise<void> =>
    new Promise((wake) => {
      clock.wakeAt(clock.now() + ms, wake);
    });
  const sent: (readonly BorrowRequest[])[] = [];
  const [there, back] = typeof rttMs === 'number' ? [rttMs / 2, rttMs / 2] : rttMs;
  const transport: GroupTransport = {
    async borrow(to, requests) {
      sent.push(requests);
      await sleep(there);
      const grants = (await members.get(to)?.lend(requests)) ?? [];
      await sleep(back);
      return grants;
    },
  };
  const start = (self: string, limit = LIMIT) => {
    const weights = options.groups ?? Object.fromEntries(names.map((name) => [name, {}]));
    const group = groups({ clock, transport, ...options, self, groups: weights });
    members.set(self, group);
    return { group, api: limiter({ name: 'api', limit, backend: group, clock }) };
  };
  return { clock, start, sent };
}

/** Checks until the first refusal; returns the allowed calls. */
const takeAll = (api: Limiter): number => {
  for (let got = 0; ; got++) if (api.check('k').verdict !== 'allow') return got;
};

/** `takeAll` with more refused calls, which are demand for a loan. */
const takeAllAndMore = (api: Limiter, more = 10): number => {
  const got = takeAll(api);
  for (let n = 0; n < more; n++) api.check('k');
  return got;
};

describe('groups', () => {
  test('each group has its fraction by weight from the start', () => {
    const { start } = world(100, { groups: { a: { weight: 3 }, b: { weight: 1 } } });
    const [a, b] = [start('a'), start('b')];
    expect([a.group.view().fraction, b.group.view().fraction]).toEqual([0.75, 0.25]);
    expect([takeAll(a.api), takeAll(b.api)]).toEqual([15, 5]);
  });

  test('an empty group borrows the surplus above the reserve level, for its next calls', async () => {
    const { clock, start } = world(100);
    const [a, b] = [start('a'), start('b')];
    expect(takeAllAndMore(a.api)).toBe(10);
    await clock.advanceAsync(150);
    expect(b.api.inspect('k').remaining).toBe(5); // half is reserved
    const { lent } = b.group.view();
    expect(lent).toBeGreaterThanOrEqual(5);
    expect(a.group.view().others).toMatchObject([{ group: 'b', borrowed: lent, failures: 0 }]);
    expect(takeAll(a.api)).toBeGreaterThanOrEqual(5);
  });

  test('a waiting call gets its permit when tokens were borrowed for its key', async () => {
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
    expect(waitedMs).toBeLessThan(1200); // the next own token would come after 100 s
  });

  test('tokens in flight cause overshoot within the bound', async () => {
    const { clock, start } = world(400, { deadline: 500 });
    const [a, b] = [
      start('a', { bucket: { rate: 100, burst: 20 } }),
      start('b', { bucket: { rate: 100, burst: 20 } }),
    ];
    expect(takeAllAndMore(a.api)).toBe(10);
    await clock.advanceAsync(415); // both are full again, and the loan is still in flight
    let got = takeAll(a.api) + takeAll(b.api);
    expect(got).toBe(20);
    await clock.advanceAsync(10);
    got += takeAll(a.api);
    const overshoot = got - 20 - (100 * 10) / 1000;
    expect(overshoot).toBeGreaterThan(3);
    expect(overshoot).toBeLessThan((100 * 500) / 1000);
  });

  test('nothing is borrowed twice, so tokens in flight do not accumulate', async () => {
    const { clock, start } = world([0, 480], { deadline: 500 });
    const limit: Limit = { bucket: { rate: 100, burst: 100 } };
    const apis = [start('a', limit).api, start('b', limit).api];
    for (const api of apis) takeAll(api);
    for (let n = 0; n < 2000; n++) {
      // A cost just above the level, repeatedly: both borrow, none spends.
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
    ['has a cost above the burst', 100],
    ['finds more than the reserve, but too little', 9],
  ])('nothing is borrowed for a call that %s', async (_, cost) => {
    const { clock, start, sent } = world(20);
    const [a] = [start('a'), start('b')];
    a.api.check('k', 2);
    a.api.check('k', cost);
    await clock.advanceAsync(100);
    expect(sent).toEqual([]);
  });

  test('a loan that arrives after the deadline is lost', async () => {
    const { clock, start } = world(600, { deadline: 500 });
    const [a] = [start('a'), start('b')];
    takeAll(a.api);
    await clock.advanceAsync(700);
    expect(a.group.view().others).toMatchObject([
      { borrowed: 0, failures: 1, reason: 'no reply within 500 ms' },
    ]);
  });

  test('requests to an unavailable lender back off, down to one per second', async () => {
    const { clock, start, sent } = world(20);
    const a = start('a'); // the other group never starts
    for (let n = 0; n < 600; n++) {
      takeAll(a.api);
      await clock.advanceAsync(100);
    }
    expect(sent.length).toBeGreaterThan(55);
    expect(sent.length).toBeLessThan(75);
  });

  test('demand of many keys is sent in one request, with at most 1000 keys', async () => {
    const { clock, start, sent } = world(100);
    const [a] = [start('a'), start('b')];
    for (let n = 0; n < 1500; n++) a.api.takeUpTo(`k${n}`, Infinity);
    for (let n = 0; n < 1500; n++) a.api.takeUpTo(`k${n}`, Infinity);
    await clock.advanceAsync(30);
    expect(sent).toHaveLength(1);
    expect(sent[0]).toHaveLength(1000);
  });

  test.each([
    [{ self: 'c' }, '`self` to be one of the groups: a, b, got "c"'],
    [{ groups: { a: {} } }, '`groups` to be 2 to 100 groups by name'],
    [{ groups: { a: { weight: -1 }, b: {} } }, '`groups.a.weight`'],
    [{ groups: { a: { min: 0.7 }, b: { min: 0.7 } } }, '`min` add up to at most 1'],
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
    [{ transport: undefined, key: KEY }, '`groups.b.at` to be the base URL of the group'],
    [{ reserve: 2 }, '`reserve`'],
    [{ listen: { port: -1 }, key: KEY }, '`listen.port`'],
    [{ listen: 7614, key: KEY }, '`listen` to be { port, host }, got 7614'],
    [{ colour: 'red' }, '`colour`'],
  ])('%o is refused', (wrong, expected) => {
    const transport: GroupTransport = { borrow: async () => [] };
    const options = { self: 'a', groups: TWO, transport, ...wrong } as GroupsOptions;
    expect(() => groups(options)).toThrow(expected);
  });

  test('an error about an address does not show its password', () => {
    const wrong = { a: {}, b: { at: 'http://user:secret@us' } };
    let message = '';
    try {
      groups({ self: 'a', groups: wrong, key: KEY });
    } catch (error) {
      message = String(error);
    }
    expect(message).toContain('groups.b.at');
    expect(message).not.toContain('secret@');
  });

  test('only token buckets can be divided, and each group needs one token', () => {
    const { start } = world(10);
    expect(() => start('a', { spacing: { every: '1s' } })).toThrow('a bucket');
    expect(() => start('a', { bucket: { rate: 5, burst: 1 } })).toThrow(
      '`limit.bucket.burst` to be at least 2',
    );
  });

  test('a group with a fraction of 0 is refused: it has no bucket to borrow into', () => {
    const { start } = world(10, { groups: { a: { weight: 0 }, b: {} } });
    expect(() => start('a')).toThrow('`groups.a.weight` to be above 0');
  });

  test('a backend without credit() cannot hold the bucket of a group', () => {
    const local = { isRemote: false, create: () => ({}) } as unknown as BackendFactory;
    const transport: GroupTransport = { borrow: async () => [] };
    const group = groups({ self: 'a', groups: TWO, transport, bucket: local });
    expect(() => limiter({ name: 'api', limit: LIMIT, backend: group })).toThrow(
      '`bucket` to be redis(client), etcd(...) or peers(...), got "a backend that cannot add tokens"',
    );
  });

  test('a transport that never replies times out, and is tried again', async () => {
    const clock = new VirtualClock(1_000_000);
    const borrow = () => new Promise<number[]>(() => {});
    const group = groups({ self: 'a', groups: TWO, transport: { borrow }, clock, deadline: 500 });
    const api = limiter({ name: 'api', limit: LIMIT, backend: group, clock });
    for (let n = 0; n < 300; n++) {
      takeAll(api);
      await clock.advanceAsync(100);
    }
    const [{ requests, failures, reason }] = group.view().others;
    expect(requests).toBeGreaterThan(15);
    expect(failures).toBeGreaterThanOrEqual(requests - 1);
    expect(reason).toBe('no reply within 500 ms');
  });

  test.each([
    [[1e300], 5],
    [[Number.NaN], 0],
    [[-5], 0],
    [['5'], 0],
    [[], 0],
    [undefined, 0],
  ])('a transport that replies %o credits %i tokens', async (reply, expected) => {
    const clock = new VirtualClock(1_000_000);
    const borrow = async () => reply as number[];
    const group = groups({ self: 'a', groups: TWO, transport: { borrow }, clock });
    const limit: Limit = { bucket: { rate: 0.001, burst: 20 } };
    const api = limiter({ name: 'api', limit, backend: group, clock });
    takeAllAndMore(api);
    await clock.advanceAsync(25);
    expect(group.view().others[0].borrowed).toBe(expected);
    expect(api.inspect('k').remaining).toBe(expected);
  });

  test('lend() takes nothing once the membership is closed', async () => {
    const { start } = world(10);
    const { group, api } = start('a');
    await group.close();
    expect(await group.lend([{ limit: 'api', key: 'k', tokens: 1 }])).toEqual([0]);
    expect(api.inspect('k').remaining).toBe(10);
  });

  test.each([
    [undefined],
    [[undefined]],
    [[{ limit: 'api', key: 'k', tokens: 1.5 }]],
    [[{ limit: 'api', key: 'k', tokens: '1' }]],
    [[{ limit: 'api', tokens: 1 }]],
  ])('lend(%o) is refused', async (requests) => {
    const { start } = world(10);
    const { group, api } = start('a');
    await expect(group.lend(requests as never)).rejects.toThrow(
      'expected `requests` to be a list of { limit, key, tokens } with whole tokens',
    );
    expect(api.inspect('k').remaining).toBe(10);
  });

  test('a limit without a name is refused: other groups could not name it', () => {
    const { group } = world(10).start('a');
    expect(() => limiter({ limit: LIMIT, backend: group as never })).toThrow(
      'expected `name` to be a name that all groups use for the limit, got undefined',
    );
  });

  test('two limits of the same name are refused', () => {
    const { start } = world(10);
    const { group } = start('a');
    expect(() => limiter({ name: 'api', limit: LIMIT, backend: group as never })).toThrow(
      '`name` to be different',
    );
  });
});

test('groups over peers: a loan by one node is gone for all nodes of the group', async () => {
  const clock = new VirtualClock(1_000_000);
  const hub = new MemoryHub({ clock, delayMs: [1, 1] });
  const members = new Map<string, GroupsMembership>();
  const transport: GroupTransport = {
    borrow: async (to, requests) => (await members.get(to)?.lend(requests)) ?? [],
  };
  const limit: Limit = { bucket: { rate: 0.001, burst: 40 } };
  const start = (self: string, node: string) => {
    const bucket = self === 'a' ? {} : { bucket: peers({ transport: hub.transport(node), clock }) };
    const group = groups({ self, groups: TWO, transport, clock, ...bucket });
    return { group, api: limiter({ name: 'api', limit, backend: group, clock }) };
  };
  const [one, two, borrower] = [start('b', 'one'), start('b', 'two'), start('a', '')];
  members.set('b', one.group);
  await clock.advanceAsync(2000);
  one.api.check('k');
  await clock.advanceAsync(200);
  expect(takeAllAndMore(borrower.api)).toBe(20);
  await clock.advanceAsync(200);
  expect(takeAll(borrower.api)).toBe(9); // the surplus above the reserved half
  expect([one, two].map(({ api }) => api.inspect('k').remaining)).toEqual([10, 10]);
});

test('groups over peers: the fleet uses all borrowed tokens, and no more', async () => {
  const clock = new VirtualClock(1_000_000);
  const random = seededRandom(7);
  const sleep = (ms: number): Promise<void> =>
    new Promise((wake) => {
      clock.wakeAt(clock.now() + ms, wake);
    });
  const fleets = new Map<string, GroupsMembership[]>();
  const transport: GroupTransport = {
    async borrow(to, requests) {
      await sleep(40);
      const members = fleets.get(to) ?? [];
      const grants = await members[Math.floor(random() * members.length)].lend(requests);
      await sleep(40);
      return grants;
    },
  };
  const regions = { eu: {}, us: {}, ap: {} };
  const rate = 300;
  const limit: Limit = { bucket: { rate, burst: rate } };
  const LOADS = { eu: 400, us: 10, ap: 10 };
  const callers = Object.entries(LOADS).flatMap(([self, load]) => {
    const hub = new MemoryHub({ clock, delayMs: [1, 1] });
    const members = ['one', 'two', 'three'].map((node, n) => {
      const bucket = peers({ transport: hub.transport(node), clock, random: seededRandom(n) });
      const group = groups({ self, groups: regions, transport, clock, bucket });
      const api = limiter({ name: 'api', limit, backend: group, clock });
      return { group, api, load: load / 3, next: 0 };
    });
    fleets.set(
      self,
      members.map(({ group }) => group),
    );
    return members;
  });
  await clock.advanceAsync(2000);
  const startAt = clock.now();
  const admitted: number[] = [];
  for (;;) {
    const next = callers.reduce((one, other) => (other.next < one.next ? other : one));
    if (next.next > 10_000) break;
    await clock.advanceAsync(Math.max(0, startAt + next.next - clock.now()));
    if (next.api.check('all').verdict === 'allow') admitted.push(next.next);
    next.next += (-Math.log(1 - random()) * 1000) / next.load;
  }
  const utilisation = admitted.filter((at) => at >= 4000).length / (6 * rate);
  expect(utilisation).toBeGreaterThan(0.96);
  expect(utilisation).toBeLessThan(1.04);
  expect(overshootOf(admitted, rate, rate)).toBeLessThan(rate * 0.5);
});

describe('groups over HTTP', () => {
  const until = async (
    condition: () => boolean | Promise<boolean>,
    timeoutMs = 5000,
  ): Promise<void> => {
    const end = Date.now() + timeoutMs;
    while (!(await condition())) {
      if (Date.now() > end) throw new Error(`not true within ${timeoutMs} ms: ${condition}`);
      await new Promise((done) => setTimeout(done, 5));
    }
  };
  const noRefill: Limit = { bucket: { rate: 0.001, burst: 20 } };

  /** Options of two groups that reach each other. */
  async function groupOptions(keys: readonly [string, string] = [KEY, KEY]) {
    const ports = await freePorts(2);
    const at = ports.map((port) => `http://127.0.0.1:${port}`);
    return ['a', 'b'].map((self, n) => ({
      deadline: '5s' as const, // on a busy machine a shorter one would lose loans
      ...{ self, key: keys[n], listen: { port: ports[n] } },
      groups: { a: n === 0 ? {} : { at: at[0] }, b: n === 1 ? {} : { at: at[1] } },
    }));
  }

  /** Both groups in this process. */
  async function pair(keys?: readonly [string, string]) {
    return (await groupOptions(keys)).map((options) => {
      const group = groups(options);
      ends.push(() => group.close());
      const at = `http://127.0.0.1:${options.listen.port}`;
      return { group, at, api: limiter({ name: 'api', limit: noRefill, backend: group }) };
    });
  }

  test('borrow from each other', async () => {
    const [a, b] = await pair();
    expect(await a.group.listening).toBe(a.at);
    await b.group.listening;
    expect(takeAllAndMore(a.api)).toBe(10);
    await until(() => a.group.view().others[0].borrowed === 5);
    expect(takeAll(a.api)).toBe(5);
    expect(takeAll(b.api)).toBe(5);
  });

  test('lend nothing to a group with another key', async () => {
    const [a, b] = await pair([KEY, `${KEY}, another`]);
    await b.group.listening;
    takeAll(a.api);
    await until(() => a.group.view().others[0].failures > 0);
    expect(a.group.view().others[0].reason).toMatch(/replied 401: .*wrong key/);
    expect(b.group.view().lent).toBe(0);
    expect(b.api.inspect('k').remaining).toBe(10);
  });

  test('reply with the reason to an invalid request, and lend nothing', async () => {
    const [{ group, at }] = await pair();
    await group.listening;
    const post = async (
      body: string,
      headers = { authorization: `Bearer ${KEY}` },
      path = '/borrow',
    ) => {
      const response = await fetch(`${at}${path}`, { method: 'POST', body, headers });
      return [response.status, await response.text()];
    };
    expect(await post('{"requests":[["api","k",3]]}')).toEqual([200, '{"grants":[3]}']);
    expect(await post('{"requests":[["other","k",3]]}')).toEqual([200, '{"grants":[0]}']);
    expect(await post('{"requests":[["api","k",-3]]}')).toEqual([200, '{"grants":[0]}']);
    for (const body of [
      '',
      '{',
      '[]',
      '{"requests":5}',
      '{"requests":[1]}',
      '{"requests":[["api","k",1.5]]}',
    ]) {
      expect([body, (await post(body))[0]]).toEqual([body, 400]);
    }
    const many = JSON.stringify({ requests: Array.from({ length: 1001 }, () => ['api', 'k', 1]) });
    expect((await post(many))[0]).toBe(400);
    expect((await post('{}', { authorization: '' }))[0]).toBe(401);
    expect((await post('{}', undefined, '/other'))[0]).toBe(404);
    await expect(post('x'.repeat(1_100_000))).rejects.toThrow();
    expect(group.view().lent).toBe(3);
  });

  test('try the next address after a failure', async () => {
    const [a] = await pair();
    const unused = `http://127.0.0.1:${await freePort()}`;
    await a.group.listening;
    const c = groups({ self: 'b', groups: { a: { at: [unused, a.at] }, b: {} }, key: KEY });
    ends.push(() => c.close());
    takeAll(limiter({ name: 'api', limit: noRefill, backend: c }));
    await until(() => c.view().others[0].failures > 0);
    const api = limiter({ name: 'other', limit: noRefill, backend: c });
    await until(() => {
      takeAll(api);
      return c.view().others[0].reason === undefined;
    });
  });

  test('leave out a key that is too long, and borrow for the rest', async () => {
    const [a, b] = await pair();
    await b.group.listening;
    a.api.takeUpTo('x'.repeat(1_100_000), Infinity);
    a.api.takeUpTo('x'.repeat(1_100_000), Infinity);
    takeAllAndMore(a.api);
    await until(() => a.group.view().others[0].borrowed > 0);
    expect(a.group.view().others[0].failures).toBe(0);
  });

  test('a server that never replies times out', async () => {
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
    await expect(transport.borrow('b', [])).rejects.toThrow('no reply within 50 ms');
  });

  test('keep the path of an address, and refuse a reply without grants', async () => {
    const paths: unknown[] = [];
    const server = createServer((request, response) => {
      paths.push(request.url);
      response.end('{"ok": true}');
    });
    await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
    ends.push(() => server.close());
    const at = `http://127.0.0.1:${(server.address() as AddressInfo).port}/throttle/`;
    const group = groups({ self: 'a', groups: { a: {}, b: { at } }, key: KEY, deadline: '5s' });
    ends.push(() => group.close());
    takeAllAndMore(limiter({ name: 'api', limit: noRefill, backend: group }));
    await until(() => group.view().others[0].failures > 0);
    expect(paths[0]).toBe('/throttle/borrow');
    expect(group.view().others[0].reason).toBe('expected a reply with `grants`');
  });

  test('a port in use rejects `listening` and causes a warning', async () => {
    const [a] = await pair();
    await a.group.listening;
    const port = Number(new URL(a.at).port);
    const late = groups({
      self: 'a',
      groups: { a: {}, b: { at: 'http://127.0.0.1:1' } },
      key: KEY,
      listen: { port },
    });
    const warned = new Promise<Error>((resolve) => process.once('warning', resolve));
    await expect(late.listening).rejects.toThrow('EADDRINUSE');
    expect((await warned).message).toMatch(/groups: a cannot lend here: .*EADDRINUSE/);
    await late.close();
  });

  describe.skipIf(redisServer() === undefined)('with a Redis per group', () => {
    test('all processes of a group spend what one of them borrowed', async () => {
      const servers: Service[] = [await startRedis(), await startRedis()];
      const clients: RedisConnection[] = [];
      const client = async (n: number) => {
        const connection = await nodeRedis(servers[n].port);
        clients.push(connection);
        return redis(connection.client, { deadline: '10s' });
      };
      ends.push(async () => {
        for (const { disconnect } of clients) disconnect();
        for (const server of servers) await server.stop();
      });
      const [a, b] = await Promise.all(
        (await groupOptions()).map(async (options, n) => {
          const group = groups({ ...options, bucket: await client(n) });
          ends.push(() => group.close());
          return { group, api: limiter({ name: 'api', limit: noRefill, backend: group }) };
        }),
      );
      await Promise.all([a.group.listening, b.group.listening]);
      const all = async (api: RemoteLimiter): Promise<number> => {
        for (let got = 0; ; got++) if ((await api.check('k')).verdict !== 'allow') return got;
      };
      expect(await a.api.takeUpTo('k', Infinity)).toBe(10);
      expect(await a.api.takeUpTo('k', Infinity)).toBe(0); // demand for the whole reserve
      await until(async () => (await a.api.inspect('k'))?.remaining === 5);
      const at = { a: {}, b: { at: 'http://127.0.0.1:1' } };
      const second = groups({ self: 'a', groups: at, key: KEY, bucket: await client(0) });
      ends.push(() => second.close());
      const api = limiter({ name: 'api', limit: noRefill, backend: second });
      expect((await api.inspect('k'))?.remaining).toBe(5);
      expect(await all(api)).toBe(5);
      expect(await all(b.api)).toBe(5);
    });
  });
});

test('groups: `change` keeps what was spent, and lends by the new burst', async () => {
  const clock = new VirtualClock(1_000_000);
  const transport = { borrow: async () => [] };
  const member = groups({ self: 'a', groups: TWO, transport, clock });
  const api = limiter({ name: 'api', limit: LIMIT, backend: member, clock });
  api.check('k', 6);
  expect(api.inspect('k').remaining).toBe(4); // its half is 10
  api.change({ bucket: { rate: 20, burst: 40 } });
  expect(api.inspect('k').remaining).toBe(14);
  expect(await member.lend([{ limit: 'api', key: 'new', tokens: 100 }])).toEqual([10]);
  expect(() => api.change({ spacing: { every: 10 } })).toThrow('a bucket');
  expect(() => api.change({ bucket: { rate: 20, burst: 1 } })).toThrow('limit.bucket.burst');
  expect(api.inspect('k').remaining).toBe(14);
});

describe.skipIf(!redisServer())('groups with a bucket in Redis', () => {
  test('groups: `change` keeps what was spent in Redis, and the fraction of the group', async () => {
    const service = await startRedis();
    const connection = await nodeRedis(service.port);
    const member = groups({
      ...{ self: 'a', groups: TWO, transport: { borrow: async () => [] } },
      bucket: redis(connection.client, { deadline: '10s' }),
    });
    const api = limiter({
      name: 'api',
      limit: { bucket: { rate: 0.01, burst: 20 } },
      backend: member,
    });
    ends.push(
      () => service.stop(),
      () => connection.disconnect(),
      () => api.close(),
    );
    await api.check('k', 6);
    await api.change({ bucket: { rate: 0.01, burst: 40 } });
    expect((await api.inspect('k'))?.remaining).toBe(14);
  });
});
