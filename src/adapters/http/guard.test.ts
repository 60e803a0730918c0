/** The guard without a framework: whose a request is, what it is told, and what may go wrong. */

import { describe, expect, test, vi } from 'vitest';
import { all } from '../../all-of.ts';
import type { LimitEvent } from '../../events.ts';
import { type Limiter, limiter } from '../../limiter.ts';
import { VirtualClock } from '../../testing/index.ts';
import type { Answer, Leaving } from './guard.ts';
import { guard, type HttpOptions, type PlainRequest, type Refused } from './index.ts';

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
});

describe('it goes on', () => {
  test('at once and with nothing to do, where no headers are wanted', () => {
    const own = make({ headers: false });
    const [first, second] = [own.check(alice), own.check(alice)];
    expect(first).toEqual({ go: true, headers: undefined, permit: undefined });
    expect(second).toBe(first); // not even an object is made for it
  });

  test('without a permit, where nothing has to be settled', () => {
    const own = make();
    expect(own.check(alice)).toMatchObject({ go: true, permit: undefined });
    expect(own.limiter.stats().held).toBe(0);
  });

  test('with what it costs', () => {
    const own = make({ cost: ({ url }) => (url === '/search' ? 2 : 0) });
    own.check({ ...alice, url: '/search' });
    expect(own.limiter.inspect('203.0.113.9').remaining).toBe(0);
    expect(own.check(alice)).toMatchObject({ go: true });
  });
});

describe('it is refused', () => {
  const refused = (answer: Answer | Promise<Answer>): Refused => {
    expect(answer).toMatchObject({ go: false });
    return answer as Refused;
  };
  const told = (answer: Answer | Promise<Answer>) => {
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
    const limit = { all: [{ adaptive: { fixed: 1 } }, { bucket: { rate: '1/m', burst: 1 } }] };
    const own = make({ limit });
    own.check(alice);
    expect(told(own.check(alice)).slice(0, 2)).toEqual([429, '60']);
    expect(told(own.check(alice))[3]).toEqual(['api.adaptive', 'api.bucket']);
  });

  test('with 503 while a limit that hears of it is busy', () => {
    const own = make({ limit: { busy: {} } });
    for (let n = 0; n < 3; n++) {
      const answer = own.check(alice) as Extract<Answer, { go: true }>;
      if (answer.permit) own.settle(answer.permit, 'busy');
    }
    const [status, retryAfter, , policies] = told(own.check(alice));
    expect([status, policies]).toEqual([503, ['api']]);
    expect(Number(retryAfter)).toBeGreaterThanOrEqual(1);
  });

  test('during a pause, by the limit as a whole', () => {
    const own = make();
    own.limiter.hear('203.0.113.9', { retryAfterMs: 4200 });
    expect(told(own.check(alice))).toEqual([429, '5', '"api";r=2;t=0', ['api']]);
  });
});

describe('in the shadow', () => {
  test('what would be refused goes on, and listeners hear of it', () => {
    const heard: LimitEvent[] = [];
    const own = make({ shadow: true, limit: { adaptive: { fixed: 1 } } });
    own.limiter.on((event) => heard.push(event));
    expect(own.check(alice)).toMatchObject({ go: true, headers: undefined });
    expect(own.check(alice)).toEqual({ go: true, headers: undefined, permit: undefined });
    expect(heard.map((event) => event.type === 'decision' && event.decision.verdict)).toEqual([
      'allow',
      'deny',
    ]);
  });

  test('headers are set if they are asked for, and nobody waits', () => {
    const own = make({ shadow: true, headers: 'draft', wait: true });
    for (let n = 0; n < 3; n++) expect(own.check(alice)).toMatchObject({ go: true });
    expect(own.check(alice)).toMatchObject({ headers: { RateLimit: '"api";r=0;t=1' } });
  });
});

describe('waiting', () => {
  const gone = () => {
    const controller = new AbortController();
    const stop = vi.fn();
    return { controller, stop, leaving: (): Leaving => ({ signal: controller.signal, stop }) };
  };

  test('is only for those who have to', async () => {
    const own = make({ limit: { spacing: { every: '6s' } }, wait: true });
    const { leaving, stop } = gone();
    expect(own.check(alice, leaving)).toMatchObject({ go: true });
    const second = own.check(alice, leaving);
    expect(second).toBeInstanceOf(Promise);
    await clock.pass(6000);
    expect(await second).toMatchObject({ go: true });
    expect(stop).toHaveBeenCalledTimes(1);
    expect(own.limiter.stats()).toMatchObject({ allowed: 2, denied: 0, waited: 1 });
  });

  test('nobody jumps the line: where somebody waits, who comes next stands behind', async () => {
    const api = limiter(two);
    const parts = { name: 'api', isSimple: true, clock, peek: api.peek.bind(api) };
    const acquire = vi.fn((key: string) => api.acquire(key));
    const limited = { ...parts, acquire, hasLine: () => true, inspect: api.inspect.bind(api) };
    const own = make({ limiter: limited as unknown as Limiter, wait: true });
    expect(await own.check(alice)).toMatchObject({ go: true });
    expect(acquire).toHaveBeenCalledTimes(1);
  });

  test('ends when the client leaves, without a word to anybody', async () => {
    const onError = vi.fn();
    const own = make({ limit: { spacing: { every: '6s' } }, wait: true, onError });
    const { controller, leaving, stop } = gone();
    own.check(alice);
    const second = own.check(alice, leaving);
    controller.abort();
    expect(await second).toMatchObject({ go: false });
    expect([onError.mock.calls.length, stop.mock.calls.length]).toEqual([0, 1]);
    expect(own.limiter.stats()).toMatchObject({ waiting: 0, left: 1 });
  });
});

describe('whatever goes wrong', () => {
  const fail = (): never => {
    throw new Error('out of order');
  };
  const late = (): never => Promise.reject(new Error('late')) as never;
  const broken = (parts: object): Limiter => {
    const api = limiter(two);
    const own = { name: 'api', isSimple: true, clock, inspect: (key: string) => api.inspect(key) };
    const acquire = (key: string) => api.acquire(key);
    return { ...own, acquire, ...parts } as unknown as Limiter;
  };

  test.each<[string, Options]>([
    ['a key', { key: fail }],
    ['a key that is none', { key: () => 7 as never }],
    ['a key that takes its time', { key: late }],
    ['a cost', { cost: fail }],
    ['a cost that makes no sense', { cost: () => -1 }],
    ['a cost that takes its time', { cost: late }],
    ['a skip', { skip: fail }],
    ['a skip that takes its time', { skip: late }],
    ['a partition nobody knows', { partition: () => 'batch' }],
    ['an address', { address: fail }],
    ['a limiter', { limiter: broken({ ask: fail }) }],
    ['a limiter that others wait for', { limiter: broken({ hasLine: fail }), wait: true }],
  ])('%s: the request goes on, or is told 503, and the error is heard', (_, options) => {
    const onError = vi.fn();
    expect(make({ ...options, onError }).check(alice)).toMatchObject({ go: true });
    const answer = make({ ...options, onError, onUnavailable: 'deny' }).check(alice);
    expect(answer).toMatchObject({ go: false, status: 503, headers: { 'Retry-After': '1' } });
    expect(onError).toHaveBeenCalledTimes(2);
    expect(onError.mock.calls[0][0]).toBeInstanceOf(Error);
  });

  test('a limiter that fails while somebody waits', async () => {
    const busy = { hasLine: () => true, acquire: () => Promise.reject(new Error('gone')) };
    const onError = vi.fn();
    const own = make({ limiter: broken(busy), wait: true, onError });
    expect(await own.check(alice)).toMatchObject({ go: true });
    expect(onError).toHaveBeenCalledTimes(1);
  });

  test('a limit that cannot be described is kept all the same', () => {
    const onError = vi.fn();
    const saying = (decision: object) =>
      make({ limiter: broken({ ask: () => decision, inspect: fail }), onError }).check(alice);
    expect(saying({ verdict: 'allow', remaining: 1 })).toEqual({ go: true, headers: {} });
    expect(saying({ verdict: 'deny', retryAfterMs: 2000 })).toMatchObject({
      go: false,
      status: 429,
      headers: { 'Retry-After': '2' },
    });
    expect(onError).toHaveBeenCalledTimes(2);
  });

  test('a permit that cannot be settled', () => {
    const onError = vi.fn();
    const own = make({ limit: { adaptive: { fixed: 1 } }, onError });
    own.settle({ settle: fail } as never, 'ok');
    expect(onError).toHaveBeenCalledTimes(1);
  });

  test('an onError that fails', () => {
    const warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    expect(make({ key: fail, onError: late }).check(alice)).toMatchObject({ go: true });
    expect(make({ key: fail, onError: fail }).check(alice)).toMatchObject({ go: true });
    expect(make({ key: fail }).check(alice)).toMatchObject({ go: true });
    expect(warned).toHaveBeenCalledTimes(1); // once a process
    expect(warned.mock.calls[0][0]).toContain('limit "api": Error: out of order');
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
