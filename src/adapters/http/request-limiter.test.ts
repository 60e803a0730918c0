import { describe, expect, test, vi } from 'vitest';
import { all } from '../../limiter/composite-limiter.ts';
import type { LimitEvent } from '../../limiter/events.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limiter } from '../../limiter/limiter-interface.ts';
import type { Limit } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/index.ts';
import {
  type DisconnectSignal,
  type HttpOptions,
  type PlainRequest,
  type RefusalResponse,
  type RequestDecision,
  requestLimiter,
} from './index.ts';

type Options = Partial<HttpOptions<PlainRequest>>;

const clock = new VirtualClock();
const two = { limit: { bucket: { rate: '1/s', burst: 2 } }, name: 'api', clock } as const;
const make = (options: Options = {}) =>
  requestLimiter({ ...('limiter' in options ? {} : two), ...options } as HttpOptions<PlainRequest>);
const from = (remoteAddress: string | undefined, headers = {}): PlainRequest => ({
  method: 'GET',
  url: '/',
  headers,
  remoteAddress,
});
const alice = from('203.0.113.9');

describe('requestLimiter: key', () => {
  const key = (request: PlainRequest, options: Options = {}) => make(options).keyOf(request);

  test('default: the address of the client', () => {
    expect(key(alice)).toBe('203.0.113.9');
    expect(key(from('::ffff:203.0.113.9'))).toBe('203.0.113.9');
    expect(key(from('2001:db8:1:2:3::4'))).toBe('2001:db8:1:2::/64');
    expect(key(from('2001:db8:1:2:3::4'), { ipv6Prefix: 48 })).toBe('2001:db8:1::/48');
  });

  test('one key for the whole server, where every rule of the limit protects its capacity', () => {
    const quota = { bucket: { rate: '1/s' } } as const;
    const ofLimit = (limit: Limit) => key(alice, { limit });
    expect(ofLimit({ adaptive: {} })).toBe('server');
    expect(ofLimit({ concurrency: 5 })).toBe('server');
    expect(ofLimit({ busy: {} })).toBe('server');
    expect(ofLimit({ all: [{ adaptive: {} }, quota] })).toBe('203.0.113.9');
    expect(key(alice, { limiter: all([limiter({ limit: { adaptive: {} } })]) })).toBe('server');
    expect(key(alice, { limit: { concurrency: 5 }, key: 'ip' })).toBe('203.0.113.9');
    expect(key(alice, { limit: quota, key: 'server' })).toBe('server');
  });

  test('one key for all requests without a known address', () => {
    expect(key(from(undefined))).toBe('unknown');
    expect(key(from(''))).toBe('unknown');
    expect(key(from(undefined), { trustProxy: ['10.0.0.0/8'] })).toBe('unknown');
    expect(key(from(undefined), { address: () => '203.0.113.9' })).toBe('203.0.113.9');
  });

  test.each(['::ffff:1.2.3.4:99', 'made up', '1.2.3.4.5', '::ffff:1.2.3.4, 5'])(
    'the address of the connection, where the framework returns the invalid %j',
    (ip) => {
      const accessor = { header: () => undefined, address: () => '9.9.9.9', ip: () => ip };
      expect(requestLimiter(two as HttpOptions<object>, accessor).keyOf({})).toBe('9.9.9.9');
    },
  );

  test('the same key for every spelling of an address', () => {
    expect(key(from('::ffff:203.0.113.9'))).toBe('203.0.113.9');
    expect(key(from('203.0.113.9:4711'))).toBe('203.0.113.9');
    expect(key(from('::FFFF:cb00:7109'))).toBe('203.0.113.9');
  });

  test('a header, prefixed with its name so that it cannot equal an address', () => {
    const options = { key: { header: 'X-Api-Key' } };
    expect(key(from('9.9.9.9', { 'x-api-key': '203.0.113.9' }), options)).toBe(
      'x-api-key=203.0.113.9',
    );
    expect(key(from('9.9.9.9', { 'x-api-key': ['a', 'b'] }), options)).toBe('x-api-key=a, b');
    expect(key(from('9.9.9.9', { 'x-api-key': '' }), options)).toBe('9.9.9.9');
    expect(key(from('9.9.9.9'), options)).toBe('9.9.9.9');
  });

  test('the result of a function, and the address if it returns nothing', () => {
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
  ])('an id that is no string: %s', (id, expected) => {
    const onError = vi.fn();
    expect(key(from('9.9.9.9'), { key: () => id as number, onError })).toBe(expected);
    expect(onError).not.toHaveBeenCalled();
  });
});

describe('requestLimiter: admitted', () => {
  test('returns one shared object if there are no headers and no permit', () => {
    const limited = make({ headers: false });
    const [first, second] = [limited.check(alice), limited.check(alice)];
    expect(first).toEqual({ isAllowed: true, headers: undefined, permit: undefined });
    expect(second).toBe(first); // no allocation
  });

  test('without a permit, where the limit needs no settling', () => {
    const limited = make();
    expect(limited.check(alice)).toMatchObject({ isAllowed: true, permit: undefined });
    expect(limited.limiter.stats().held).toBe(0);
  });

  test('if `skip` returns a truthy value', () => {
    for (const result of [true, 'yes', 1]) {
      expect(make({ skip: () => result }).check(alice)).toMatchObject({ headers: undefined });
    }
    for (const result of [false, undefined, null, 0, '']) {
      expect(make({ skip: () => result }).check(alice)).toMatchObject({ headers: {} });
    }
  });

  test('charges the cost that `cost` returns', () => {
    const limited = make({ cost: ({ url }) => (url === '/search' ? 2 : 0) });
    limited.check({ ...alice, url: '/search' });
    expect((limited.limiter as Limiter).inspect('203.0.113.9').remaining).toBe(0);
    expect(limited.check(alice)).toMatchObject({ isAllowed: true });
  });
});

describe('requestLimiter: refused', () => {
  const refused = (decision: RequestDecision | Promise<RequestDecision>): RefusalResponse => {
    expect(decision).toMatchObject({ isAllowed: false });
    return decision as RefusalResponse;
  };
  const summary = (decision: RequestDecision | Promise<RequestDecision>) => {
    const { status, headers, body } = refused(decision);
    const policies = JSON.parse(body)['violated-policies'];
    return [status, headers['Retry-After'], headers.RateLimit, policies];
  };

  test('a refusal is not charged', () => {
    const limited = make();
    limited.check(alice);
    limited.check(alice);
    for (let n = 0; n < 9; n++) {
      expect(summary(limited.check(alice))).toEqual([429, '1', '"api";r=0;t=1', ['api']]);
    }
    expect(limited.limiter.stats()).toMatchObject({ allowed: 2, denied: 9 });
  });

  test('Retry-After: a higher cost waits until it fits', () => {
    const limit = { bucket: { rate: '1/s', burst: 10 } } as const;
    const limited = make({ limit, cost: ({ url }) => Number(url?.slice(1)) });
    limited.check({ ...alice, url: '/8' });
    expect(summary(limited.check({ ...alice, url: '/7' }))).toEqual([
      429,
      '5',
      '"api";r=2;t=5',
      ['api'],
    ]);
  });

  test('no Retry-After for a cost above the burst', () => {
    const limited = make({ cost: () => 3 });
    const { headers, body } = refused(limited.check(alice));
    expect(headers['Retry-After']).toBeUndefined();
    expect(JSON.parse(body).detail).toBe('The request costs more than the limit ever allows.');
  });

  test('violated-policies names only the rules that refused', () => {
    const limit = {
      all: [
        { bucket: { rate: '1/h', burst: 2 } },
        { spacing: { every: '30s' } },
        { bucket: { rate: 100 } },
      ],
    } as const;
    const limited = make({ limit });
    limited.check(alice);
    expect(summary(limited.check(alice)).slice(0, 2)).toEqual([429, '30']);
    expect(summary(limited.check(alice))[3]).toEqual(['api.spacing']);
  });

  test("violated-policies names a shared limit, also on a client's first request", () => {
    const everyone = limiter({ limit: { bucket: { rate: '1/m', burst: 2 } }, name: 'all', clock });
    const limited = make({ limiter: all([limiter(two), { limiter: everyone, key: '*' }]) });
    limited.check(alice);
    limited.check(from('203.0.113.10'));
    const state = '"api";r=2;t=0, "all";r=0;t=60';
    expect(summary(limited.check(from('203.0.113.11')))).toEqual([429, '60', state, ['all']]);
  });

  test('429 if a quota is exhausted, whatever else refuses', () => {
    const limit = { all: [{ concurrency: 1 }, { bucket: { rate: '1/m', burst: 1 } }] } as const;
    const limited = make({ limit });
    limited.check(alice);
    expect(summary(limited.check(alice)).slice(0, 2)).toEqual([429, '60']);
    expect(summary(limited.check(alice))[3]).toEqual(['api.concurrency', 'api.bucket']);
  });

  test('503 if only the concurrency limit refuses', () => {
    const limit = { all: [{ concurrency: 1 }, { bucket: { rate: '1/m', burst: 9 } }] } as const;
    const limited = make({ limit });
    limited.check(alice);
    const [status, retryAfter, , policies] = summary(limited.check(alice));
    expect([status, retryAfter, policies]).toEqual([503, '1', ['api.concurrency']]);
  });

  test('never shows remaining capacity, though the clock moved since the decision', () => {
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
    expect(summary(make({ limiter: later }).check(alice))).toEqual([
      ...[429, '1', '"api";r=0;t=1', ['api']],
    ]);
  });

  test('503 while a busy limit backs off', () => {
    const limited = make({ limit: { busy: {} } });
    for (let n = 0; n < 3; n++) {
      const decision = limited.check(alice) as Extract<RequestDecision, { isAllowed: true }>;
      if (decision.permit) limited.settle(decision.permit, 'busy');
    }
    const [status, retryAfter, , policies] = summary(limited.check(alice));
    expect([status, policies]).toEqual([503, ['api']]);
    expect(Number(retryAfter)).toBeGreaterThanOrEqual(1);
  });

  test('during a cool-down, the limit itself is named', () => {
    const limited = make();
    limited.limiter.update('203.0.113.9', { retryAfterMs: 4200 });
    expect(summary(limited.check(alice))).toEqual([429, '5', '"api";r=2;t=0', ['api']]);
  });
});

describe('requestLimiter: option refuse', () => {
  const empty = (options: Options) => {
    const limited = make(options);
    limited.check(alice);
    limited.check(alice);
    return limited.check(alice) as RefusalResponse;
  };

  test('replaces only what it returns', () => {
    const { status, headers, body } = empty({
      refuse: ({ policies }) => ({ body: `${policies}` }),
    });
    expect([status, body, headers['Content-Type']]).toEqual([
      ...[429, 'api', 'application/problem+json'],
    ]);
    expect(headers).toMatchObject({ 'Retry-After': '1', RateLimit: '"api";r=0;t=1' });
  });

  test('gets the refusal and the request, and may return undefined', () => {
    const refuse = vi.fn(() => undefined);
    expect(JSON.parse(empty({ refuse }).body).status).toBe(429);
    expect(refuse).toHaveBeenCalledWith(expect.objectContaining({ retryAfterSeconds: 1 }), alice);
  });

  test('applies to refusals of a limiter that fails', () => {
    const refuse = () => ({ contentType: 'text/plain', body: 'closed' });
    const limiter = {
      name: 'api',
      isCheckOnly: true,
      acquire: gone,
      check: gone,
    } as unknown as Limiter;
    const limited = make({ limiter, refuse, onUnavailable: 'deny', onError: () => {} });
    expect(limited.check(alice)).toMatchObject({
      ...{ status: 503, body: 'closed', headers: { 'Content-Type': 'text/plain' } },
    });
  });

  test.each<[string, () => unknown]>([
    ['throws', gone],
    ['returns a promise', () => Promise.reject(new Error('late'))],
    ['returns a body that is no string', () => ({ body: { status: 429 } })],
    ['returns a header with a line break', () => ({ headers: { 'x-a': 'b\r\nset-cookie: c' } })],
    ['returns a header without a name', () => ({ headers: { '': 'b' } })],
    ['returns a header that is no string', () => ({ headers: { 'x-a': 7 } })],
  ])('%s: the default refusal is sent and the error reported', (_, refuse) => {
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

describe('requestLimiter: option maxEventLoopDelay', () => {
  /** A clock whose timers fire late, as those of an event loop that is behind. */
  function lateClock() {
    let now = 0;
    const timers: (() => void)[] = [];
    return {
      now: () => now,
      wakeAt(_at: number, callback: () => void) {
        timers.push(callback);
        return () => {};
      },
      advance(ms: number) {
        now += ms;
        for (const fire of timers.splice(0)) fire();
      },
    };
  }

  /** Requests in turns of 300 ms, and the last decision. */
  function overload(options: Options) {
    const late = lateClock();
    const limited = make({ name: 'guard', clock: late, ...options });
    let decision: RequestDecision | undefined;
    for (let turn = 0; turn < 5; turn++) {
      for (let n = 0; n < 100; n++) {
        decision = limited.check(alice) as RequestDecision;
        if (decision.isAllowed && decision.permit) limited.settle(decision.permit, 'ok');
      }
      late.advance(300);
    }
    return { decision, stats: limited.limiter.stats() };
  }

  const guard = { limit: { adaptive: { initial: 100 } } } as const;

  test('sheds with 503 and Retry-After, counted by reason, without rate limit headers', () => {
    const { decision, stats } = overload({ ...guard, headers: 'draft' });
    const { status, headers, body, policies } = decision as RefusalResponse;
    expect(status).toBe(503);
    expect(headers).toEqual({ 'Retry-After': '1', 'Content-Type': 'application/problem+json' });
    expect(policies).toEqual(['guard']);
    expect(JSON.parse(body)).toMatchObject({
      type: expect.stringMatching(/temporary-reduced-capacity$/),
      detail: 'The server is overloaded. Try again in 1 second.',
    });
    expect(stats.denied).toBeGreaterThan(100);
    expect(stats.deniedByRule).toEqual({ 'event-loop-delay': stats.denied });
    expect(stats.eventLoopDelayMs).toBeGreaterThan(100);
  });

  test('is off for quotas and for limits per client, unless it is set', () => {
    const isShed = (options: Options) => overload(options).stats.denied > 0;
    const quota = { bucket: { rate: '1000000/s' } } as const;
    expect(isShed({ limit: quota })).toBe(false);
    expect(isShed({ ...guard, key: 'ip' })).toBe(false);
    expect(isShed({ ...guard, maxEventLoopDelay: false })).toBe(false);
    expect(isShed({ ...guard, maxEventLoopDelay: '2s' })).toBe(false);
    expect(isShed({ limit: quota, maxEventLoopDelay: 50 })).toBe(true);
  });

  test('shadow: counts and admits; refuse: changes the response', () => {
    const shadowed = overload({ ...guard, shadow: true });
    expect(shadowed.decision).toMatchObject({ isAllowed: true });
    expect(shadowed.stats.denied).toBeGreaterThan(100);
    const { decision } = overload({ ...guard, refuse: () => ({ body: 'later' }) });
    expect(decision).toMatchObject({ status: 503, body: 'later' });
  });
});

describe('requestLimiter: option shadow', () => {
  test('admits what it would refuse, and emits the decision', () => {
    const events: LimitEvent[] = [];
    const limited = make({ shadow: true, limit: { concurrency: 1 } });
    limited.limiter.on((event) => events.push(event));
    expect(limited.check(alice)).toMatchObject({ isAllowed: true, headers: undefined });
    expect(limited.check(alice)).toEqual({
      isAllowed: true,
      headers: undefined,
      permit: undefined,
    });
    expect(events.map((event) => event.type === 'decision' && event.decision.verdict)).toEqual([
      'allow',
      'deny',
    ]);
  });

  test('sets headers on request, and never waits', () => {
    const limited = make({ shadow: true, headers: 'draft', wait: true });
    for (let n = 0; n < 3; n++) expect(limited.check(alice)).toMatchObject({ isAllowed: true });
    expect(limited.check(alice)).toMatchObject({ headers: { RateLimit: '"api";r=0;t=1' } });
  });
});

describe('requestLimiter: option wait', () => {
  const disconnect = () => {
    const controller = new AbortController();
    const stop = vi.fn();
    return {
      controller,
      stop,
      watch: (): DisconnectSignal => ({ signal: controller.signal, dispose: stop }),
    };
  };

  test('returns a promise only for requests that have to wait', async () => {
    const limited = make({ limit: { spacing: { every: '6s' } }, wait: true });
    const { watch, stop } = disconnect();
    expect(limited.check(alice, watch)).toMatchObject({ isAllowed: true });
    const second = limited.check(alice, watch);
    expect(second).toBeInstanceOf(Promise);
    await clock.advanceAsync(6000);
    expect(await second).toMatchObject({ isAllowed: true });
    expect(stop).toHaveBeenCalledTimes(1);
    expect(limited.limiter.stats()).toMatchObject({ allowed: 2, denied: 0, waited: 1 });
  });

  test('queues a request behind existing waiters, although it would be allowed', async () => {
    const api = limiter(two);
    const parts = { name: 'api', isCheckOnly: true, clock, peek: api.peek.bind(api) };
    const acquire = vi.fn((key: string) => api.acquire(key));
    const fake = { ...parts, acquire, hasWaiters: () => true, inspect: api.inspect.bind(api) };
    const limited = make({ limiter: fake as unknown as Limiter, wait: true });
    expect(await limited.check(alice)).toMatchObject({ isAllowed: true });
    expect(acquire).toHaveBeenCalledTimes(1);
  });

  test('cancels when the client disconnects, without an error report', async () => {
    const onError = vi.fn();
    const limited = make({ limit: { spacing: { every: '6s' } }, wait: true, onError });
    const { controller, watch, stop } = disconnect();
    limited.check(alice);
    const second = limited.check(alice, watch);
    controller.abort();
    expect(await second).toMatchObject({ isAllowed: false });
    expect([onError.mock.calls.length, stop.mock.calls.length]).toEqual([0, 1]);
    expect(limited.limiter.stats()).toMatchObject({ waiting: 0, cancelled: 1 });
  });
});

describe('requestLimiter: errors', () => {
  const fail = (): never => {
    throw new Error('out of order');
  };
  const late = (): never => Promise.reject(new Error('late')) as never;
  const thenable = Object.fromEntries([['then', fail]]); // a thenable that is no Promise
  const broken = (parts: object): Limiter => {
    const api = limiter(two);
    const members = {
      name: 'api',
      isCheckOnly: true,
      clock,
      inspect: (key: string) => api.inspect(key),
    };
    const acquire = (key: string) => api.acquire(key);
    return { ...members, acquire, ...parts } as unknown as Limiter;
  };

  test.each<[string, Options]>([
    ['a key function that throws', { key: fail }],
    ['a key that is an object', { key: () => ({}) as never }],
    ['a key that is NaN', { key: () => Number.NaN }],
    ['a key that is a promise', { key: late }],
    ['a key that is a thenable', { key: () => thenable as never }],
    ['a cost function that throws', { cost: fail }],
    ['a cost below 0', { cost: () => -1 }],
    ['a cost that is NaN', { cost: () => Number.NaN }],
    ['a cost that is a string', { cost: () => '0' as never }],
    ['a cost that is undefined', { cost: () => undefined as never }],
    ['a cost that is a promise', { cost: late }],
    ['a skip function that throws', { skip: fail }],
    ['a skip that is a promise', { skip: late }],
    ['a partition function that throws', { partition: fail }],
    ['an unknown partition', { partition: () => 'batch' }],
    ['a level function that throws', { level: fail }],
    ['a level of a limit without priorities', { level: () => 'user' }],
    ['an address function that throws', { address: fail }],
    ['an invalid address', { address: () => 'made up' }],
    ['an address that is a promise', { address: late }],
  ])('%s: the request is counted by the default, and the error reported', (_, options) => {
    for (const onUnavailable of ['allow', 'deny'] as const) {
      const onError = vi.fn();
      const limited = make({ ...options, onError, onUnavailable });
      const decisions = [limited.check(alice), limited.check(alice), limited.check(alice)];
      expect(decisions).toMatchObject([
        { isAllowed: true },
        { isAllowed: true },
        { isAllowed: false, status: 429 },
      ]);
      expect((limited.limiter as Limiter).inspect('203.0.113.9').remaining).toBe(0);
      expect(onError).toHaveBeenCalledTimes(3);
      expect(onError.mock.calls[0][0]).toBeInstanceOf(Error);
    }
  });

  test('an unknown partition is counted against what partitions leave', () => {
    const limit = { concurrency: { limit: 2, partitions: { live: 0.5 } } };
    const partition = ({ headers }: PlainRequest) => headers.class as string;
    const limited = make({ limit, partition, onError: () => {} });
    const as = (name: string) => limited.check(from('203.0.113.9', { class: name }));
    const decisions = [as('made up'), as('made up too'), as('made up'), as('live')];
    expect(decisions.map((decision) => (decision as RequestDecision).isAllowed)).toEqual([
      true,
      true,
      false,
      false,
    ]);
    expect((limited.limiter as Limiter).inspect('203.0.113.9').partitions).toEqual({ live: 0 });
  });

  test('an unknown level counts as the lowest', () => {
    const limit = { concurrency: { limit: 2, priorities: ['user', 'prefetch'] } };
    const level = ({ headers }: PlainRequest) => headers.class as string;
    const limited = make({ limit, level, onError: () => {} });
    for (const name of ['made up', 'user']) limited.check(from('203.0.113.9', { class: name }));
    const { priorities } = (limited.limiter as Limiter).inspect('server');
    expect(priorities).toEqual({ user: 1, prefetch: 1 });
  });

  test('a known partition is not checked again', () => {
    const limited = make({ limit: { concurrency: { limit: 9, partitions: { live: 1 } } } });
    const peek = vi.spyOn(limited.limiter as Limiter, 'peek');
    const same = make({ limiter: limited.limiter, partition: () => 'live' });
    for (let n = 0; n < 3; n++) same.check(alice);
    expect(peek).toHaveBeenCalledTimes(1);
  });

  test('an infinite cost is refused', () => {
    expect(make({ cost: () => Infinity }).check(alice)).toMatchObject({
      isAllowed: false,
      status: 429,
    });
  });

  test('an accessor that throws: the key is `unknown`', () => {
    const onError = vi.fn();
    const accessor = { header: () => undefined, address: fail };
    const limited = requestLimiter({ ...two, onError } as HttpOptions<object>, accessor);
    expect(limited.keyOf({})).toBe('unknown');
    expect(onError).toHaveBeenCalledTimes(1);
  });

  test.each<[string, Options]>([
    ['a limiter that throws', { limiter: broken({ check: fail }) }],
    ['a limiter whose queue throws', { limiter: broken({ hasWaiters: fail }), wait: true }],
  ])('%s: fails open or answers 503 by onUnavailable, and reports the error', (_, options) => {
    const onError = vi.fn();
    expect(make({ ...options, onError }).check(alice)).toMatchObject({ isAllowed: true });
    const decision = make({ ...options, onError, onUnavailable: 'deny' }).check(alice);
    expect(decision).toMatchObject({
      isAllowed: false,
      status: 503,
      headers: { 'Retry-After': '1' },
    });
    expect(onError).toHaveBeenCalledTimes(2);
    expect(onError.mock.calls[0][0]).toBeInstanceOf(Error);
  });

  test('arguments that the limiter rejects are no outage: 503, whatever onUnavailable says', () => {
    const onError = vi.fn();
    const cost = () => Number.NaN; // such as a header of the client that is not a number
    const combined = all([{ limiter: limiter(two), cost }]);
    const decision = make({ limiter: combined, onError }).check(alice);
    expect(decision).toMatchObject({ isAllowed: false, status: 503 });
    expect(onError).toHaveBeenCalledOnce();
  });

  test('shadow: a limiter that throws admits, also with onUnavailable deny', () => {
    const limited = make({
      ...{
        limiter: broken({ check: fail }),
        shadow: true,
        onUnavailable: 'deny',
        onError: () => {},
      },
    });
    expect(limited.check(alice)).toMatchObject({ isAllowed: true });
  });

  test.each<[string, () => unknown]>([
    ['throws', fail],
    ['returns an unknown outcome', () => 'fine'],
    ['returns a promise', late],
  ])('outcome: a function that %s gives the default outcome', (_, outcome) => {
    const onError = vi.fn();
    const limited = make({ outcome: outcome as never, onError });
    expect([200, 429, 503, 500].map((status) => limited.outcomeOf(alice, status))).toEqual([
      ...['ok', 'ok', 'busy', 'failed'],
    ]);
    expect(onError).toHaveBeenCalledTimes(4);
  });

  test('a limiter that rejects while a request waits: fails open', async () => {
    const busy = { hasWaiters: () => true, acquire: () => Promise.reject(new Error('gone')) };
    const onError = vi.fn();
    const limited = make({ limiter: broken(busy), wait: true, onError });
    expect(await limited.check(alice)).toMatchObject({ isAllowed: true });
    expect(onError).toHaveBeenCalledTimes(1);
  });

  test('a failed inspection keeps the decision', () => {
    const onError = vi.fn();
    const deciding = (decision: object) =>
      make({ limiter: broken({ check: () => decision, inspect: fail }), onError }).check(alice);
    expect(deciding({ verdict: 'allow', remaining: 1 })).toEqual({ isAllowed: true, headers: {} });
    expect(deciding({ verdict: 'deny', retryAfterMs: 2000 })).toMatchObject({
      isAllowed: false,
      status: 429,
      headers: { 'Retry-After': '2' },
    });
    expect(onError).toHaveBeenCalledTimes(2);
  });

  test('a permit whose settle throws: the error is reported', () => {
    const onError = vi.fn();
    const limited = make({ limit: { concurrency: 1 }, onError });
    limited.settle({ settle: fail } as never, 'ok');
    expect(onError).toHaveBeenCalledTimes(1);
  });

  test('a failed check, settle and inspection have a process warning each', () => {
    const warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const allowing = { check: () => ({ verdict: 'allow', remaining: 1 }), inspect: fail };
    make({ limiter: broken({ ...allowing, name: 'failing' }) }).check(alice);
    const limited = make({ limiter: broken({ check: fail, name: 'failing' }) });
    limited.settle({ settle: fail } as never, 'ok');
    limited.check(alice);
    expect(warned.mock.calls.map(([message]) => message)).toEqual([
      'limit "failing": the state of a key could not be read for the headers: Error: out of order',
      'limit "failing": a permit could not be settled: Error: out of order',
      'limit "failing": a request could not be checked: Error: out of order',
    ]);
    warned.mockRestore();
  });

  test('an onError that throws counts as none: a process warning is emitted', () => {
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

  test('emits one process warning per limit and kind of error, and at most 100 of a kind', () => {
    const warned = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
    const codeOf = (options: unknown) => (options as { code?: string }).code;
    for (const name of ['orders', 'users', 'orders']) {
      make({ ...two, name, key: fail }).check(alice);
      make({ limiter: broken({ check: fail, name }) }).check(alice);
    }
    const given = warned.mock.calls.map(([message, options]) => [
      codeOf(options),
      /limit "(\w+)"/.exec(String(message))?.[1],
    ]);
    expect(given).toEqual([
      ['SLUICE_INVALID_RESULT', 'orders'],
      ['SLUICE_UNCHECKED', 'orders'],
      ['SLUICE_INVALID_RESULT', 'users'],
      ['SLUICE_UNCHECKED', 'users'],
    ]);
    for (let n = 0; n < 500; n++) make({ ...two, name: `made up ${n}`, key: fail }).check(alice);
    expect(
      warned.mock.calls.filter(([, options]) => codeOf(options) === 'SLUICE_MISREAD').length,
    ).toBeLessThanOrEqual(100);
    warned.mockRestore();
  });
});

describe('requestLimiter: report and inspect', () => {
  const lockout = { limit: { lockout: { after: 2 } }, clock } as const;

  test.each<[string, PlainRequest, Options]>([
    ['an IPv4-mapped address', from('::ffff:203.0.113.8'), {}],
    ['an IPv6 network', from('2001:db8:1:1::1'), {}],
    ['a client behind a proxy', from('10.0.0.1', { 'x-forwarded-for': '::1' }), { trustProxy: 1 }],
    ['a header', from('10.0.0.1', { 'x-api-key': 'a' }), { key: { header: 'X-API-Key' } }],
    ['a key function', alice, { key: () => 7 }],
    ['a key function without a result', alice, { key: () => undefined }],
    ['a cost', alice, { cost: () => 2 }],
  ])('%s: a success is counted for the same key', (_case, request, options) => {
    const limit = make({ ...lockout, ...options } as Options);
    for (let n = 0; n < 4; n++) {
      expect(limit.check(request)).toMatchObject({ isAllowed: true });
      limit.report(request, 'success');
      expect(limit.inspect(request)).toMatchObject({ failures: 0 });
    }
  });

  test('a client that has disconnected: its own key', () => {
    const limit = make(lockout);
    const request = { ...alice };
    limit.check(request);
    Object.assign(request, { remoteAddress: undefined });
    limit.report(request, 'success');
    expect([limit.keyOf(request), limit.inspect(request)]).toMatchObject([
      '203.0.113.9',
      { failures: 0 },
    ]);
  });

  test('a request that was not checked: the key that it would have; a skipped one: nothing', () => {
    const limit = make({ ...lockout, skip: ({ url }) => url === '/health' });
    limit.report(alice, 'failure');
    limit.report({ ...alice, url: '/health' }, 'failure');
    expect(limit.inspect(alice)).toMatchObject({ failures: 1 });
  });

  test('a remote limiter that fails: goes to onError; a limit without a lock-out: throws', async () => {
    const failed = new Error('gone');
    const onError = vi.fn();
    const remote = {
      name: 'api',
      isRemote: true,
      takesReports: true,
      report: async () => Promise.reject(failed),
    };
    await make({ limiter: remote as never, key: 'ip', onError }).report(alice, 'success');
    expect(onError.mock.calls).toEqual([[failed]]);
    expect(() => make().report(alice, 'success')).toThrow(/`limit` to be a lockout/);
  });
});

describe('requestLimiter: refuses invalid options, naming them:', () => {
  test('an unknown option: lists those of the limiter and the adapter, and suggests the closest', () => {
    expect(() => create({ ...two, trustproxy: 1 })).toThrow(
      /^expected `trustproxy` to be one of limit, .*limiter, .*trustProxy.*; did you mean `trustProxy`\?$/,
    );
    expect(() => create({ ...two, maxkeys: 1 })).toThrow(/did you mean `maxKeys`\?$/);
  });

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
    [{ ...two, trustproxy: 1 }, 'trustproxy'],
    [{ ...two, maxEventLoopDelay: 0 }, 'maxEventLoopDelay'],
    [{ ...two, maxEventLoopDelay: true }, 'maxEventLoopDelay'],
  ])('%j', (options, field) => {
    expect(() => create(options)).toThrow(expect.objectContaining({ code: 'CONFIG', field }));
  });

  const create = (options: object) => requestLimiter(options as HttpOptions<PlainRequest>);
});

test.each([
  ['bucket', two.limit],
  ['concurrency', { concurrency: 2 }],
] as const)('requestLimiter: a closed %s refuses with 503', (_, limit) => {
  const api = limiter({ limit, clock });
  const guard = make({ limiter: api });
  api.close();
  const refused = guard.check(alice) as RefusalResponse;
  expect(refused).toMatchObject({ status: 503, retryAfterSeconds: 1 });
  expect(JSON.parse(refused.body).detail).toBe('The server is closing. Try again in 1 second.');
});
