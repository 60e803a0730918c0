/** The guard without a framework: whose a request is, what it is told, and what may go wrong. */

import { describe, expect, test, vi } from 'vitest';
import { all } from '../../limiter/composite-limiter.ts';
import type { LimitEvent } from '../../limiter/events.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limiter } from '../../limiter/sync-limiter.ts';
import { VirtualClock } from '../../testing/index.ts';
import { guard, type HttpOptions, type PlainRequest, type RefusalResponse } from '../http.ts';
import type { DisconnectSignal, GuardResult } from './guard.ts';

type Options = Partial<HttpOptions<PlainRequest>>;

const clock = new VirtualClock();
const two = { limit: { bucket: { rate: '1/s', burst: 2 } }, name: 'api', clock };
const make = (options: Options = {}) =>
  guard({ ...('limiter' in options ? {} : two), ...options } as HttpOptions<PlainRequest>);
const from = (remoteAddress: string | undefined, headers = {}): PlainRequest => ({
  method: 'GET',
  url: '/',
  headers,
  remoteAddress,
});
const alice = from('203.0.113.9');

describe('a request counts against', () => {
  const key = (request: PlainRequest, options: Options = {}) => make(options).keyOf(request);

  test('the address of its client', () => {
    expect(key(alice)).toBe('203.0.113.9');
    expect(key(from('::ffff:203.0.113.9'))).toBe('203.0.113.9');
    expect(key(from('2001:db8:1:2:3::4'))).toBe('2001:db8:1:2::/64');
    expect(key(from('2001:db8:1:2:3::4'), { ipv6Prefix: 48 })).toBe('2001:db8:1::/48');
  });

  test('one key for all whose address nobody knows', () => {
    expect(key(from(undefined))).toBe('unknown');
    expect(key(from(''))).toBe('unknown');
    expect(key(from(undefined), { trustProxy: ['10.0.0.0/8'] })).toBe('unknown');
    expect(key(from(undefined), { address: () => '203.0.113.9' })).toBe('203.0.113.9');
  });

  test.each(['::ffff:1.2.3.4:99', 'made up', '1.2.3.4.5', '::ffff:1.2.3.4, 5'])(
    'the address of the connection, where a framework was told that it is %j',
    (ip) => {
      const reader = { header: () => undefined, address: () => '9.9.9.9', ip: () => ip };
      expect(guard(two as HttpOptions<object>, reader).keyOf({})).toBe('9.9.9.9');
    },
  );

  test('the same if it is spelled in another way', () => {
    expect(key(from('::ffff:203.0.113.9'))).toBe('203.0.113.9');
    expect(key(from('203.0.113.9:4711'))).toBe('203.0.113.9');
    expect(key(from('::FFFF:cb00:7109'))).toBe('203.0.113.9');
  });

  test('a header, under its name: nobody can look like an address', () => {
    const options = { key: { header: 'X-Api-Key' } };
    expect(key(from('9.9.9.9', { 'x-api-key': '203.0.113.9' }), options)).toBe(
      'x-api-key=203.0.113.9',
    );
    expect(key(from('9.9.9.9', { 'x-api-key': ['a', 'b'] }), options)).toBe('x-api-key=a, b');
    expect(key(from('9.9.9.9', { 'x-api-key': '' }), options)).toBe('9.9.9.9');
    expect(key(from('9.9.9.9'), options)).toBe('9.9.9.9');
  });

  test('what a function says, and the address if it has nothing to say', () => {
    const user = ({ headers }: PlainRequest) => headers.user as string | undefined;
    expect(key(from('9.9.9.9', { user: 'alice' }), { key: user })).toBe('alice');
    expect(key(from('9.9.9.9'), { key: user })).toBe('9.9.9.9');
  });

  test.each<[unknown, string]>([
    [42, '42'],
    [0, '0'],
    [2n ** 64n, '18446744073709551616'],
    [null, '9.9.9.9'],
    ['', '9.9.9.9'],
  ])('an id that is no text: %s', (id, expected) => {
    const onError = vi.fn();
    expect(key(from('9.9.9.9'), { key: () => id as number, onError })).toBe(expected);
    expect(onError).not.toHaveBeenCalled();
  });
});

describe('it goes on', () => {
  test('at once and with nothing to do, where no headers are wanted', () => {
    const own = make({ headers: false });
    const [first, second] = [own.check(alice), own.check(alice)];
    expect(first).toEqual({ isAllowed: true, headers: undefined, permit: undefined });
    expect(second).toBe(first); // not even an object is made for it
  });

  test('without a permit, where nothing has to be settled', () => {
    const own = make();
    expect(own.check(alice)).toMatchObject({ isAllowed: true, permit: undefined });
    expect(own.limiter.stats().held).toBe(0);
  });

  test('if it is skipped, by whatever is as good as true', () => {
    for (const said of [true, 'yes', 1]) {
      expect(make({ skip: () => said }).check(alice)).toMatchObject({ headers: undefined });
    }
    for (const said of [false, undefined, null, 0, '']) {
      expect(make({ skip: () => said }).check(alice)).toMatchObject({ headers: {} });
    }
  });

  test('with what it costs', () => {
    const own = make({ cost: ({ url }) => (url === '/search' ? 2 : 0) });
    own.check({ ...alice, url: '/search' });
    expect((own.limiter as Limiter).inspect('203.0.113.9').remaining).toBe(0);
    expect(own.check(alice)).toMatchObject({ isAllowed: true });
  });
});

describe('it is refused', () => {
  const refused = (answer: GuardResult | Promise<GuardResult>): RefusalResponse => {
    expect(answer).toMatchObject({ isAllowed: false });
    return answer as RefusalResponse;
  };
  const told = (answer: GuardResult | Promise<GuardResult>) => {
    const { status, headers, body } = refused(answer);
    const policies = JSON.parse(body)['violated-policies'];
    return [status, headers['Retry-After'], headers.RateLimit, policies];
  };

  test('and a refusal costs nothing', () => {
    const own = make();
    own.check(alice);
    own.check(alice);
    for (let n = 0; n < 9; n++) {
      expect(told(own.check(alice))).toEqual([429, '1', '"api";r=0;t=1', ['api']]);
    }
    expect(own.limiter.stats()).toMatchObject({ allowed: 2, denied: 9 });
  });

  test('for longer, if it costs more: never before what is left has grown enough', () => {
    const limit = { bucket: { rate: '1/s', burst: 10 } };
    const own = make({ limit, cost: ({ url }) => Number(url?.slice(1)) });
    own.check({ ...alice, url: '/8' });
    expect(told(own.check({ ...alice, url: '/7' }))).toEqual([429, '5', '"api";r=2;t=5', ['api']]);
  });

  test('for good, if it can never fit: then nothing says when', () => {
    const own = make({ cost: () => 3 });
    const { headers, body } = refused(own.check(alice));
    expect(headers['Retry-After']).toBeUndefined();
    expect(JSON.parse(body).detail).toBe('It costs more than the limit ever allows.');
  });

  test('by those who said no, and only those', () => {
    const limit = {
      all: [
        { bucket: { rate: '1/h', burst: 2 } },
        { spacing: { every: '30s' } },
        { bucket: { rate: 100 } },
      ],
    };
    const own = make({ limit });
    own.check(alice);
    expect(told(own.check(alice)).slice(0, 2)).toEqual([429, '30']);
    expect(told(own.check(alice))[3]).toEqual(['api.spacing']);
  });

  test('by what everybody shares, though the client itself has not asked before', () => {
    const everyone = limiter({ limit: { bucket: { rate: '1/m', burst: 2 } }, name: 'all', clock });
    const own = make({ limiter: all([limiter(two), { limiter: everyone, key: '*' }]) });
    own.check(alice);
    own.check(from('203.0.113.10'));
    const state = '"api";r=2;t=0, "all";r=0;t=60';
    expect(told(own.check(from('203.0.113.11')))).toEqual([429, '60', state, ['all']]);
  });

  test('with 429 if a quota is used up, whatever else is full', () => {
    const limit = { all: [{ concurrency: 1 }, { bucket: { rate: '1/m', burst: 1 } }] };
    const own = make({ limit });
    own.check(alice);
    expect(told(own.check(alice)).slice(0, 2)).toEqual([429, '60']);
    expect(told(own.check(alice))[3]).toEqual(['api.concurrency', 'api.bucket']);
  });

  test('with 503 if only calls in flight are too many, whatever quota is left', () => {
    const limit = { all: [{ concurrency: 1 }, { bucket: { rate: '1/m', burst: 9 } }] };
    const own = make({ limit });
    own.check(alice);
    const [status, retryAfter, , policies] = told(own.check(alice));
    expect([status, retryAfter, policies]).toEqual([503, '1', ['api.concurrency']]);
  });

  test('and never with something left, though the clock has moved since it was decided', () => {
    const api = limiter(two);
    const later = {
      ...{
        name: 'api',
        isCheckOnly: true,
        acquire: api.acquire,
        inspect: () => api.inspect('other'),
      },
      check: () => ({ verdict: 'deny', retryAfterMs: 1 }),
    } as unknown as Limiter;
    expect(told(make({ limiter: later }).check(alice))).toEqual([
      ...[429, '1', '"api";r=0;t=1', ['api']],
    ]);
  });

  test('with 503 while a limit that hears of it is busy', () => {
    const own = make({ limit: { busy: {} } });
    for (let n = 0; n < 3; n++) {
      const answer = own.check(alice) as Extract<GuardResult, { isAllowed: true }>;
      if (answer.permit) own.settle(answer.permit, 'busy');
    }
    const [status, retryAfter, , policies] = told(own.check(alice));
    expect([status, policies]).toEqual([503, ['api']]);
    expect(Number(retryAfter)).toBeGreaterThanOrEqual(1);
  });

  test('during a pause, by the limit as a whole', () => {
    const own = make();
    own.limiter.update('203.0.113.9', { retryAfterMs: 4200 });
    expect(told(own.check(alice))).toEqual([429, '5', '"api";r=2;t=0', ['api']]);
  });
});

describe('in other words', () => {
  const empty = (options: Options) => {
    const own = make(options);
    own.check(alice);
    own.check(alice);
    return own.check(alice) as RefusalResponse;
  };

  test('only what is said changes', () => {
    const { status, headers, body } = empty({
      refuse: ({ policies }) => ({ body: `${policies}` }),
    });
    expect([status, body, headers['Content-Type']]).toEqual([
      ...[429, 'api', 'application/problem+json'],
    ]);
    expect(headers).toMatchObject({ 'Retry-After': '1', RateLimit: '"api";r=0;t=1' });
  });

  test('which may depend on the request, and need not be any', () => {
    const refuse = vi.fn(() => undefined);
    expect(JSON.parse(empty({ refuse }).body).status).toBe(429);
    expect(refuse).toHaveBeenCalledWith(expect.objectContaining({ retryAfterSeconds: 1 }), alice);
  });

  test('also when the limiter fails', () => {
    const refuse = () => ({ contentType: 'text/plain', body: 'closed' });
    const limiter = {
      name: 'api',
      isCheckOnly: true,
      acquire: gone,
      check: gone,
    } as unknown as Limiter;
    const own = make({ limiter, refuse, onUnavailable: 'deny', onError: () => {} });
    expect(own.check(alice)).toMatchObject({
      ...{ status: 503, body: 'closed', headers: { 'Content-Type': 'text/plain' } },
    });
  });

  test.each<[string, () => unknown]>([
    ['that fail', gone],
    ['that take their time', () => Promise.reject(new Error('late'))],
    ['that are no text', () => ({ body: { status: 429 } })],
    ['with a header of two lines', () => ({ headers: { 'x-a': 'b\r\nset-cookie: c' } })],
    ['with a header that has no name', () => ({ headers: { '': 'b' } })],
    ['with a header that is no text', () => ({ headers: { 'x-a': 7 } })],
  ])('%s: then in ours, and somebody hears of it', (_, refuse) => {
    const onError = vi.fn();
    const { headers, body } = empty({ refuse: refuse as never, onError });
    expect(JSON.parse(body).status).toBe(429);
    expect(Object.keys(headers)).not.toContain('x-a');
    expect(onError).toHaveBeenCalledTimes(1);
  });

  function gone(): never {
    throw new Error('gone');
  }
});

describe('in the shadow', () => {
  test('what would be refused goes on, and listeners hear of it', () => {
    const heard: LimitEvent[] = [];
    const own = make({ shadow: true, limit: { concurrency: 1 } });
    own.limiter.on((event) => heard.push(event));
    expect(own.check(alice)).toMatchObject({ isAllowed: true, headers: undefined });
    expect(own.check(alice)).toEqual({ isAllowed: true, headers: undefined, permit: undefined });
    expect(heard.map((event) => event.type === 'decision' && event.decision.verdict)).toEqual([
      'allow',
      'deny',
    ]);
  });

  test('headers are set if they are asked for, and nobody waits', () => {
    const own = make({ shadow: true, headers: 'draft', wait: true });
    for (let n = 0; n < 3; n++) expect(own.check(alice)).toMatchObject({ isAllowed: true });
    expect(own.check(alice)).toMatchObject({ headers: { RateLimit: '"api";r=0;t=1' } });
  });
});

describe('waiting', () => {
  const gone = () => {
    const controller = new AbortController();
    const stop = vi.fn();
    return {
      controller,
      stop,
      leaving: (): DisconnectSignal => ({ signal: controller.signal, dispose: stop }),
    };
  };

  test('is only for those who have to', async () => {
    const own = make({ limit: { spacing: { every: '6s' } }, wait: true });
    const { leaving, stop } = gone();
    expect(own.check(alice, leaving)).toMatchObject({ isAllowed: true });
    const second = own.check(alice, leaving);
    expect(second).toBeInstanceOf(Promise);
    await clock.advanceAsync(6000);
    expect(await second).toMatchObject({ isAllowed: true });
    expect(stop).toHaveBeenCalledTimes(1);
    expect(own.limiter.stats()).toMatchObject({ allowed: 2, denied: 0, waited: 1 });
  });

  test('nobody jumps the line: where somebody waits, who comes next stands behind', async () => {
    const api = limiter(two);
    const parts = { name: 'api', isCheckOnly: true, clock, peek: api.peek.bind(api) };
    const acquire = vi.fn((key: string) => api.acquire(key));
    const limited = { ...parts, acquire, hasWaiters: () => true, inspect: api.inspect.bind(api) };
    const own = make({ limiter: limited as unknown as Limiter, wait: true });
    expect(await own.check(alice)).toMatchObject({ isAllowed: true });
    expect(acquire).toHaveBeenCalledTimes(1);
  });

  test('ends when the client leaves, without a word to anybody', async () => {
    const onError = vi.fn();
    const own = make({ limit: { spacing: { every: '6s' } }, wait: true, onError });
    const { controller, leaving, stop } = gone();
    own.check(alice);
    const second = own.check(alice, leaving);
    controller.abort();
    expect(await second).toMatchObject({ isAllowed: false });
    expect([onError.mock.calls.length, stop.mock.calls.length]).toEqual([0, 1]);
    expect(own.limiter.stats()).toMatchObject({ waiting: 0, cancelled: 1 });
  });
});

describe('whatever goes wrong', () => {
  const fail = (): never => {
    throw new Error('out of order');
  };
  const late = (): never => Promise.reject(new Error('late')) as never;
  const thenable = Object.fromEntries([['then', fail]]); // a promise of some other make
  const broken = (parts: object): Limiter => {
    const api = limiter(two);
    const own = {
      name: 'api',
      isCheckOnly: true,
      clock,
      inspect: (key: string) => api.inspect(key),
    };
    const acquire = (key: string) => api.acquire(key);
    return { ...own, acquire, ...parts } as unknown as Limiter;
  };

  test.each<[string, Options]>([
    ['a key', { key: fail }],
    ['a key that is none', { key: () => ({}) as never }],
    ['a key that is no number', { key: () => Number.NaN }],
    ['a key that takes its time', { key: late }],
    ['a key that takes its time in its own way', { key: () => thenable as never }],
    ['a cost', { cost: fail }],
    ['a cost below 0', { cost: () => -1 }],
    ['a cost that is no number', { cost: () => Number.NaN }],
    ['a cost that is a text', { cost: () => '0' as never }],
    ['a cost that is nothing', { cost: () => undefined as never }],
    ['a cost that takes its time', { cost: late }],
    ['a skip', { skip: fail }],
    ['a skip that takes its time', { skip: late }],
    ['a partition', { partition: fail }],
    ['a partition nobody knows', { partition: () => 'batch' }],
    ['an address', { address: fail }],
    ['an address that is none', { address: () => 'made up' }],
    ['an address that takes its time', { address: late }],
  ])('%s lets nobody off: it counts in a plainer way, and the error is heard', (_, options) => {
    for (const onUnavailable of ['allow', 'deny'] as const) {
      const onError = vi.fn();
      const own = make({ ...options, onError, onUnavailable });
      const answers = [own.check(alice), own.check(alice), own.check(alice)];
      expect(answers).toMatchObject([
        { isAllowed: true },
        { isAllowed: true },
        { isAllowed: false, status: 429 },
      ]);
      expect((own.limiter as Limiter).inspect('203.0.113.9').remaining).toBe(0);
      expect(onError).toHaveBeenCalledTimes(3);
      expect(onError.mock.calls[0][0]).toBeInstanceOf(Error);
    }
  });

  test('a partition nobody knows counts against what partitions leave', () => {
    const limit = { concurrency: { limit: 2, partitions: { live: 0.5 } } };
    const partition = ({ headers }: PlainRequest) => headers.class as string;
    const own = make({ limit, partition, onError: () => {} });
    const as = (name: string) => own.check(from('203.0.113.9', { class: name }));
    const answers = [as('made up'), as('made up too'), as('made up'), as('live')];
    expect(answers.map((answer) => (answer as GuardResult).isAllowed)).toEqual([
      true,
      true,
      false,
      false,
    ]);
    expect((own.limiter as Limiter).inspect('203.0.113.9').partitions).toEqual({ live: 0 });
  });

  test('a partition it has proved to have is not looked for again', () => {
    const own = make({ limit: { concurrency: { limit: 9, partitions: { live: 1 } } } });
    const peek = vi.spyOn(own.limiter as Limiter, 'peek');
    const same = make({ limiter: own.limiter, partition: () => 'live' });
    for (let n = 0; n < 3; n++) same.check(alice);
    expect(peek).toHaveBeenCalledTimes(1);
  });

  test('a cost beyond all bounds never fits', () => {
    expect(make({ cost: () => Infinity }).check(alice)).toMatchObject({
      isAllowed: false,
      status: 429,
    });
  });

  test('a reader that fails', () => {
    const onError = vi.fn();
    const reader = { header: () => undefined, address: fail };
    const own = guard({ ...two, onError } as HttpOptions<object>, reader);
    expect(own.keyOf({})).toBe('unknown');
    expect(onError).toHaveBeenCalledTimes(1);
  });

  test.each<[string, Options]>([
    ['a limiter', { limiter: broken({ check: fail }) }],
    ['a limiter that others wait for', { limiter: broken({ hasWaiters: fail }), wait: true }],
  ])('%s: the request goes on, or is told 503, and the error is heard', (_, options) => {
    const onError = vi.fn();
    expect(make({ ...options, onError }).check(alice)).toMatchObject({ isAllowed: true });
    const answer = make({ ...options, onError, onUnavailable: 'deny' }).check(alice);
    expect(answer).toMatchObject({
      isAllowed: false,
      status: 503,
      headers: { 'Retry-After': '1' },
    });
    expect(onError).toHaveBeenCalledTimes(2);
    expect(onError.mock.calls[0][0]).toBeInstanceOf(Error);
  });

  test('a limiter in the shadow, whatever else was asked for: nobody notices', () => {
    const own = make({
      ...{
        limiter: broken({ check: fail }),
        shadow: true,
        onUnavailable: 'deny',
        onError: () => {},
      },
    });
    expect(own.check(alice)).toMatchObject({ isAllowed: true });
  });

  test.each<[string, () => unknown]>([
    ['fails', fail],
    ['is none', () => 'fine'],
    ['takes its time', late],
  ])('an outcome that %s is the usual one', (_, outcome) => {
    const onError = vi.fn();
    const own = make({ outcome: outcome as never, onError });
    expect([200, 429, 503, 500].map((status) => own.outcomeOf(alice, status))).toEqual([
      ...['ok', 'ok', 'busy', 'failed'],
    ]);
    expect(onError).toHaveBeenCalledTimes(4);
  });

  test('a limiter that fails while somebody waits', async () => {
    const busy = { hasWaiters: () => true, acquire: () => Promise.reject(new Error('gone')) };
    const onError = vi.fn();
    const own = make({ limiter: broken(busy), wait: true, onError });
    expect(await own.check(alice)).toMatchObject({ isAllowed: true });
    expect(onError).toHaveBeenCalledTimes(1);
  });

  test('a limit that cannot be described is kept all the same', () => {
    const onError = vi.fn();
    const saying = (decision: object) =>
      make({ limiter: broken({ check: () => decision, inspect: fail }), onError }).check(alice);
    expect(saying({ verdict: 'allow', remaining: 1 })).toEqual({ isAllowed: true, headers: {} });
    expect(saying({ verdict: 'deny', retryAfterMs: 2000 })).toMatchObject({
      isAllowed: false,
      status: 429,
      headers: { 'Retry-After': '2' },
    });
    expect(onError).toHaveBeenCalledTimes(2);
  });

  test('a permit that cannot be settled', () => {
    const onError = vi.fn();
    const own = make({ limit: { concurrency: 1 }, onError });
    own.settle({ settle: fail } as never, 'ok');
    expect(onError).toHaveBeenCalledTimes(1);
  });

  test('an onError that fails', () => {
    const warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    expect(make({ key: fail, onError: late }).check(alice)).toMatchObject({ isAllowed: true });
    expect(warned).not.toHaveBeenCalled();
    expect(make({ key: fail, onError: fail }).check(alice)).toMatchObject({ isAllowed: true });
    expect(make({ key: fail }).check(alice)).toMatchObject({ isAllowed: true });
    expect(warned).toHaveBeenCalledTimes(1);
    expect(warned.mock.calls[0][0]).toContain('limit "api"');
    expect(warned.mock.calls[0][0]).toContain('Error: out of order');
    warned.mockRestore();
  });

  test('every limit and every kind of mistake has a warning of its own, and only one', () => {
    const warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    for (const name of ['orders', 'users', 'orders']) {
      make({ ...two, name, key: fail }).check(alice);
      make({ limiter: broken({ check: fail, name }) }).check(alice);
    }
    const given = warned.mock.calls.map(([message, options]) => [
      (options as { code?: string }).code,
      /limit "(\w+)"/.exec(String(message))?.[1],
    ]);
    expect(given).toEqual([
      ['SLUICE_MISREAD', 'orders'],
      ['SLUICE_UNCHECKED', 'orders'],
      ['SLUICE_MISREAD', 'users'],
      ['SLUICE_UNCHECKED', 'users'],
    ]);
    for (let n = 0; n < 500; n++) make({ ...two, name: `made up ${n}`, key: fail }).check(alice);
    expect(warned.mock.calls.length).toBeLessThanOrEqual(100);
    warned.mockRestore();
  });
});

describe('options that make no sense are named', () => {
  test.each<[object, string]>([
    [{ ...two, key: 'address' }, 'key'],
    [{ ...two, key: { header: 'a b' } }, 'key.header'],
    [{ ...two, key: {} }, 'key.header'],
    [{ ...two, key: { header: 'a', or: 'b' } }, 'key.or'],
    [{ ...two, cost: 2 }, 'cost'],
    [{ ...two, skip: true }, 'skip'],
    [{ ...two, outcome: 'ok' }, 'outcome'],
    [{ ...two, refuse: 'no' }, 'refuse'],
    [{ ...two, headers: 'rfc' }, 'headers'],
    [{ ...two, headers: true }, 'headers'],
    [{ ...two, shadow: 'yes' }, 'shadow'],
    [{ ...two, wait: 'long' }, 'wait'],
    [{ ...two, ipv6Prefix: 129 }, 'ipv6Prefix'],
    [{ ...two, onUnavailable: 'panic' }, 'onUnavailable'],
    [{ ...two, trustProxy: ['nowhere'] }, 'trustProxy[0]'],
    [{ limit: { bucket: { rate: 'fast' } } }, 'limit.bucket.rate'],
    [{ ...two, windowMs: 1000 }, 'windowMs'],
    [{ ...two, limiter: limiter(two) }, 'limit'],
    [{ limiter: {} }, 'limiter'],
    [{}, 'limit'],
  ])('%j', (options, field) => {
    expect(() => reading(options)).toThrow(expect.objectContaining({ code: 'CONFIG', field }));
  });

  const reading = (options: object) => guard(options as HttpOptions<PlainRequest>);
});
