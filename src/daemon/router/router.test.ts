import { describe, expect, test } from 'vitest';
import { createHasher } from '../../core/hash.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { parseConfigText } from '../config/file.ts';
import type { Config } from '../config/read.ts';
import { toBinaryKey } from '../keys/binary-key.ts';
import { LimiterRegistry } from './limiter-registry.ts';
import type { CheckResult, RoutedRequest } from './request.ts';
import { Router } from './router.ts';
import { SHEDS_NOTHING } from './shed.ts';

function configOf(text: string): Config {
  const loaded = parseConfigText('test.yaml', text);
  if ('config' in loaded) return loaded.config;
  throw new Error(loaded.problems.join('\n'));
}

/** A router for a configuration, on a virtual clock. */
function routerOf(text: string) {
  const clock = new VirtualClock(1_000_000);
  const hasher = createHasher([1, 2], 'latin1');
  const registry = new LimiterRegistry({ clock, hasher, backendFor: () => undefined });
  const config = configOf(text);
  registry.apply(config.limits);
  const router = new Router(config, registry, hasher);
  const line = (key: string): boolean => {
    const bytes = Buffer.from(`<${key}>`);
    return router.isAllowed(bytes, 1, bytes.length - 1) as boolean;
  };
  const check = (
    key: string,
    more: { limit?: string; cost?: number; wantsPermit?: boolean } = {},
  ): CheckResult => {
    const result = router.check({ key: toBinaryKey(key), cost: 1, ...more });
    if (result === undefined) throw new Error(`unknown ${more.limit}`);
    return result as CheckResult;
  };
  const allowed = (key: string, times: number): number =>
    Array.from({ length: times }, () => line(key)).filter(Boolean).length;
  const change = (other: string): void => {
    const next = configOf(other);
    registry.apply(next.limits);
    router.applyConfig(next);
  };
  return { router, clock, registry, line, check, allowed, change };
}

const TWO = `
limits:
  mine: { bucket: { rate: 1/s, burst: 3 }, match: 'ip:*' }
  rest: { bucket: { rate: 1/s, burst: 2 } }
`;

describe('router', () => {
  test('without configuration: allows each key a burst of 10, then 1/s', () => {
    const { allowed, clock } = routerOf('');
    expect(allowed('alice', 20)).toBe(10);
    expect(allowed('bob', 20)).toBe(10);
    clock.advance(2000);
    expect(allowed('alice', 20)).toBe(2);
  });

  test('many limits: 200 limits apply to one key', () => {
    const many = Array.from(
      { length: 200 },
      (_, n) => `  l${n}: { bucket: { rate: 1/h, burst: ${n + 2} }, always: true }`,
    );
    const { allowed, check } = routerOf(`deny: [mallory]\nlimits:\n${many.join('\n')}`);
    expect(allowed('alice', 9)).toBe(2);
    expect(check('alice')).toMatchObject({ decision: { verdict: 'deny' }, limit: 'l0' });
  });

  test('exact pattern *: matches only the key *', () => {
    const { allowed } = routerOf(
      "limits: { star: { bucket: { rate: 1/h, burst: 1 }, match: { exact: '*' } } }",
    );
    expect(allowed('*', 9)).toBe(1);
    expect(allowed('alice', 9)).toBe(9);
  });

  test('several patterns match: checks the most specific limit', () => {
    const { allowed } = routerOf(TWO);
    expect(allowed('ip:1', 9)).toBe(3);
    expect(allowed('alice', 9)).toBe(2);
  });

  test('binary keys: bytes and text of a key share one count', () => {
    const { line, check, allowed } = routerOf(TWO);
    expect(line('grün')).toBe(true);
    expect(check('grün').decision).toEqual({ verdict: 'allow', remaining: 0 });
    expect(line('grün')).toBe(false);
    expect(allowed('gr\u00fcn', 3)).toBe(0);
  });

  test('refusal: names the limit and the retry time', () => {
    const { check, allowed } = routerOf(TWO);
    allowed('ip:1', 3);
    expect(check('ip:1')).toEqual({
      decision: { verdict: 'deny', retryAfterMs: 1000 },
      limit: 'mine',
    });
  });

  test('named limit: is checked even if its patterns do not match', () => {
    const { router, check } = routerOf(TWO);
    expect(check('alice', { limit: 'mine' }).decision).toEqual({ verdict: 'allow', remaining: 2 });
    expect(router.check({ key: 'alice', cost: 1, limit: 'other' })).toBe(undefined);
  });

  test('override: counts apart from its limit', () => {
    const { allowed, check } = routerOf(`
limits:
  mine:
    bucket: { rate: 1/s, burst: 2 }
    overrides:
      - { match: 'vip:*', bucket: { rate: 1/s, burst: 5 } }
      - { match: 'vip:ann', bucket: { rate: 1/s, burst: 7 } }
`);
    expect([allowed('bob', 9), allowed('vip:bob', 9), allowed('vip:ann', 9)]).toEqual([2, 5, 7]);
    expect(check('vip:ann').limit).toBe('mine[bucket 1/s, burst 7]');
  });

  test('overrides with one rule: share a limiter, and each key has its own count', () => {
    const item = (n: number) =>
      `{ match: [vip-${n}, 'team-${n}:*'], bucket: { burst: ${3 + (n % 3)}, rate: 1/s } }`;
    const overrides = Array.from({ length: 600 }, (_, n) => item(n));
    const { allowed, check, registry } = routerOf(
      `limits: { mine: { bucket: { rate: 1/s, burst: 2 }, overrides: [${overrides.join(', ')}] } }`,
    );
    expect(registry.all.map(({ name }) => name)).toEqual([
      'mine',
      'mine[bucket 1/s, burst 3]',
      'mine[bucket 1/s, burst 4]',
      'mine[bucket 1/s, burst 5]',
    ]);
    expect(['vip-3', 'vip-6', 'vip-599', 'team-4:x', 'bob'].map((key) => allowed(key, 9))).toEqual([
      3, 3, 5, 4, 2,
    ]);
    expect(check('vip-3').limit).toBe('mine[bucket 1/s, burst 3]');
  });

  test('override with a name: its limiter has that name', () => {
    const { allowed, check } = routerOf(`
limits:
  mine:
    bucket: { rate: 1/s, burst: 2 }
    overrides:
      - { name: gold, match: 'vip:*', bucket: { rate: 1/s, burst: 5 } }
      - { name: gold, match: ann, bucket: { rate: 1/s, burst: 5 } }
`);
    expect([allowed('vip:bob', 9), allowed('ann', 9)]).toEqual([5, 5]);
    expect([check('vip:bob').limit, check('ann').limit]).toEqual(['mine[gold]', 'mine[gold]']);
  });

  test('several limits: take from all or from none', () => {
    const { allowed, router } = routerOf(`
limits:
  each: { bucket: { rate: 1/s, burst: 3 } }
  shared: { bucket: { rate: 1/s, burst: 4 }, per: limit, always: true }
`);
    expect(allowed('a', 9)).toBe(3);
    expect(allowed('b', 9)).toBe(1); // the fourth of the shared limit
    expect(router.inspect(router.route({ key: 'b', cost: 1 }) as RoutedRequest)).toMatchObject([
      { remaining: 2 },
      { remaining: 0 },
    ]); // the refused check took nothing
  });

  test.each(['ip:::ffff:192.0.2.7', 'ip:::FFFF:c000:207', 'ip:0:0:0:0:0:ffff:192.0.2.7'])(
    'IPv4 address as %s: lists, overrides and counts are those of the address',
    (mapped) => {
      const limits = `limits:
  api: { bucket: { rate: 1/h, burst: 3 }, overrides: [{ match: 'ip:192.0.2.9', bucket: { rate: 1/h, burst: 1 } }] }`;
      for (const ipv6 of [64, 128]) {
        const open = routerOf(`${limits}\nkeys: { ipv6: ${ipv6} }`);
        expect(
          open.allowed(
            mapped.replace(/\.7$|207$/, (end) => (end === '.7' ? '.9' : '209')),
            5,
          ),
        ).toBe(1);
        const denied = routerOf(`${limits}\ndeny: ['ip:192.0.2.7']\nkeys: { ipv6: ${ipv6} }`);
        expect([denied.allowed(mapped, 2), denied.allowed('ip:192.0.2.7', 2)]).toEqual([0, 0]);
      }
    },
  );

  test('lists: deny comes before allow, and neither is counted', () => {
    const { allowed, check, registry } = routerOf(`
deny: ['bad*']
allow: ['good*', 'bad-but-good']
limits:
  rest: { bucket: { rate: 1/s, burst: 1 }, deny: ['worse'], allow: ['fine'] }
`);
    expect([allowed('bad1', 3), allowed('good1', 3), allowed('bad-but-good', 3)]).toEqual([
      0, 3, 0,
    ]);
    expect([allowed('worse', 3), allowed('fine', 3), allowed('x', 3)]).toEqual([0, 3, 1]);
    expect(check('bad1')).toMatchObject({
      decision: { verdict: 'deny', retryAfterMs: Infinity },
      staticVerdict: { reason: 'deny-list' },
    });
    expect(registry.get('rest')?.limiter.stats()).toMatchObject({ allowed: 1, denied: 2 });
  });

  test("a limit's allow list: exempts from that limit only", () => {
    const { allowed } = routerOf(`
limits:
  each: { bucket: { rate: 1/s, burst: 1 }, allow: ['vip'] }
  shared: { bucket: { rate: 1/s, burst: 3 }, per: limit, always: true }
`);
    expect([allowed('vip', 9), allowed('bob', 9)]).toEqual([3, 0]);
  });

  test('unmatched key: is allowed by default, denied with `unmatched: deny`', () => {
    const only = "limits: { mine: { bucket: { rate: 1/s, burst: 1 }, match: 'a' } }";
    expect(routerOf(only).allowed('b', 3)).toBe(3);
    expect(routerOf(`${only}\nunmatched: deny`).allowed('b', 3)).toBe(0);
  });

  test('unmatched: deny: holds for a key that only limits with always match', () => {
    const { allowed, check, registry } = routerOf(`
unmatched: deny
limits:
  mine: { bucket: { rate: 1/s, burst: 2 }, match: 'a*', allow: [a-free] }
  total: { bucket: { rate: 1/s, burst: 9 }, per: limit, always: true }
`);
    expect([allowed('b', 3), allowed('a', 3), allowed('a-free', 3)]).toEqual([0, 2, 3]);
    expect(check('b')).toMatchObject({ staticVerdict: { isAllowed: false, reason: 'unmatched' } });
    expect(registry.get('total')?.limiter.stats()).toMatchObject({ allowed: 5, denied: 0 });
    expect(check('b', { limit: 'mine' }).decision.verdict).toBe('allow'); // a named limit matches
  });

  test('explain: an unmatched key is told of limits with always only if one matches it', () => {
    const { router } = routerOf(`
unmatched: deny
limits:
  mine: { bucket: { rate: 1/s, burst: 2 }, match: 'a*' }
  total: { bucket: { rate: 1/s, burst: 9 }, match: 'b*', always: true }
`);
    const summaryOf = (key: string): string =>
      router.explain(router.route({ key, cost: 1 }) as RoutedRequest, key).summary;
    expect(summaryOf('c')).toBe('always denied: no limit matches (unmatched)');
    expect(summaryOf('b')).toBe(
      'always denied: no limit matches but those with always (unmatched)',
    );
  });

  test('unmatched: deny: naming a limit with always admits no key that no other limit matches', () => {
    const { check, registry } = routerOf(`
unmatched: deny
limits:
  mine: { bucket: { rate: 1/h, burst: 2 }, match: 'a*' }
  total: { bucket: { rate: 1/h, burst: 9 }, per: limit, always: true }
  trial: { bucket: { rate: 1/h, burst: 9 }, always: true, shadow: true }
`);
    const verdict = (key: string, limit: string) => check(key, { limit }).decision.verdict;
    // The key with a route comes first: its route is not that of every key.
    for (const limit of ['total', 'trial'])
      expect([verdict('a', limit), verdict('b', limit)]).toEqual(['allow', 'deny']);
    expect(check('b', { limit: 'total' })).toMatchObject({
      staticVerdict: { reason: 'unmatched' },
    });
    expect(registry.get('total')?.limiter.stats()).toMatchObject({ allowed: 2, denied: 0 });
  });

  test('named limit: every matching limit with always counts, too', () => {
    const { check, registry } = routerOf(`
limits:
  login: { bucket: { rate: 1/s, burst: 4 }, match: 'login:*', allow: [free] }
  total: { bucket: { rate: 1/s, burst: 3 }, per: limit, always: true }
  other: { bucket: { rate: 1/s, burst: 1 }, match: 'other:*', always: true }
`);
    const verdicts = ['x', 'y', 'free', 'z'].map((key) => check(key, { limit: 'login' }));
    expect(verdicts.map(({ decision }) => decision.verdict)).toEqual([
      ...['allow', 'allow', 'allow', 'deny'],
    ]);
    expect(verdicts[3].limit).toBe('total');
    expect(registry.get('login')?.limiter.stats()).toMatchObject({ allowed: 2, denied: 0 });
    expect(registry.get('other')?.limiter.stats()).toMatchObject({ allowed: 0, denied: 0 });
  });

  test('named limit with always: counts once', () => {
    const { check } = routerOf(
      'limits: { total: { bucket: { rate: 1/s, burst: 2 }, always: true } }',
    );
    const take = () => check('a', { limit: 'total' }).decision.verdict;
    expect([take(), take(), take()]).toEqual(['allow', 'allow', 'deny']);
  });

  test('shadow mode: counts and never refuses', () => {
    const { allowed, registry, check } = routerOf(`
limits:
  real: { bucket: { rate: 1/s, burst: 5 } }
  trial: { bucket: { rate: 1/s, burst: 2 }, always: true, shadow: true }
`);
    expect(allowed('a', 9)).toBe(5);
    expect(registry.get('trial')?.limiter.stats()).toMatchObject({ allowed: 2, denied: 3 });
    expect(check('a').limit).toBe('real');
  });

  test('spacing: refuses a call that comes too early', () => {
    const { allowed, clock } = routerOf('limits: { s: { spacing: { every: 1s } } }');
    expect(allowed('a', 3)).toBe(1);
    clock.advance(1000);
    expect(allowed('a', 3)).toBe(1);
  });

  test('concurrency limit: counts calls with a permit, and is only peeked at without one', () => {
    const { check, router, allowed } = routerOf(
      'limits: { sink: { adaptive: { initial: 2, max: 2 } } }',
    );
    expect(allowed('db', 9)).toBe(9); // nothing is in flight
    const [first, second] = [
      check('db', { wantsPermit: true }),
      check('db', { wantsPermit: true }),
    ];
    expect(check('db', { wantsPermit: true }).decision.verdict).toBe('deny');
    expect(allowed('db', 9)).toBe(0);
    expect(router.permits.settle(first.permit ?? '', { outcome: 'ok', rttMs: 10 })).toBe(true);
    expect(router.permits.settle(first.permit ?? '', {})).toBe(false);
    expect(check('db', { wantsPermit: true }).decision.verdict).toBe('allow');
    expect(second.permit).not.toBe(first.permit);
  });

  test('permit settled as ignored: returns its cost', () => {
    const { check, router } = routerOf(TWO);
    const { permit = '' } = check('alice', { wantsPermit: true, cost: 2 });
    expect(check('alice').decision.verdict).toBe('deny');
    router.permits.settle(permit, { outcome: 'ignored' });
    expect(check('alice', { cost: 2 }).decision.verdict).toBe('allow');
  });
});

/** Holds permits, until they expire after a minute, until not one more byte fits. */
function fill({ permits }: Router, clock: VirtualClock): void {
  const until = clock.now() + 60_000;
  const held = {
    cost: 1,
    settle: () => {},
    get isSettled() {
      return clock.now() >= until;
    },
  };
  for (const bytes of [2 ** 20, 2 ** 10, 1]) {
    let added = 0;
    while (permits.add([held], bytes) !== undefined)
      if (++added > 2000) throw new Error('no bound');
  }
}

describe('router: bound on permits', () => {
  test('cost 0: is allowed without a permit, and nothing is held', () => {
    const { check, router } = routerOf('limits: { sink: { concurrency: 2 } }');
    const first = check('db', { wantsPermit: true, cost: 0 });
    expect([first.decision.verdict, first.permit]).toEqual(['allow', undefined]);
    expect(router.permits.size).toBe(0);
  });

  test('full: a call with a permit is refused as unavailable and holds nothing', () => {
    const { check, router, clock, registry } = routerOf(`
limits:
  sink: { concurrency: 5, permitTimeout: 1m }
  rate: { bucket: { rate: 1/h, burst: 5 }, match: 'rate*', permitTimeout: 1m }
`);
    const first = check('early', { wantsPermit: true });
    fill(router, clock);
    for (const key of ['db', 'rate']) {
      const results = Array.from({ length: 40 }, () => check(key, { wantsPermit: true }));
      expect(results.filter(({ decision }) => decision.verdict === 'allow')).toEqual([]);
      expect(results[0]).toMatchObject({
        decision: { retryAfterMs: 1000 },
        reason: 'unavailable',
      });
    }
    expect(registry.get('sink')?.limiter.inspect('db')).toMatchObject({ inFlight: 0 });
    expect(check('rate', { cost: 5 }).decision.verdict).toBe('allow'); // without a permit it is decided as ever
    expect(router.permits.settle(first.permit ?? '', {})).toBe(true); // permits that are held can be settled
    clock.advance(60_000);
    expect(check('db', { wantsPermit: true }).permit).toBeDefined(); // the others have expired
    expect(router.permits.size).toBe(1);
    expect(router.permits.refused).toBeGreaterThan(80);
  });

  test('full: takeUpTo with a permit takes nothing', () => {
    const { check, router, clock } = routerOf(
      'limits: { all: { bucket: { rate: 1/h, burst: 7 } } }',
    );
    fill(router, clock);
    const request = router.route({ key: 'batch', cost: 9, wantsPermit: true }) as RoutedRequest;
    expect(router.takeUpTo(request, 9)).toEqual({ taken: 0 });
    expect(check('batch', { cost: 7 }).decision.verdict).toBe('allow');
  });
});

describe('router: IPv6 addresses', () => {
  const ONE = 'limits: { all: { bucket: { rate: 1/h, burst: 4 } } }';

  test.each([
    ['one limit for all keys', ONE],
    ['several limits', `${ONE.slice(0, -2)}, any: { bucket: { rate: 1 }, match: 'x*' } }`],
    ['a list', `deny: [mallory]\n${ONE}`],
    [
      'several limits at once',
      `${ONE.slice(0, -2)}, sum: { bucket: { rate: 99 }, always: true } }`,
    ],
  ])('%s: addresses of a /64 share a count, by the line and by name', (_, text) => {
    const { line, check, allowed } = routerOf(text);
    for (let round = 0; round < 2; round++) {
      const prefix = `${round}-ip:`;
      expect(line(`${prefix}2001:db8:1:2::1`)).toBe(true);
      expect(check(`${prefix}2001:db8:1:2:ffff::9`).decision.verdict).toBe('allow');
      const named = check(`${prefix}2001:DB8:1:2:0:0:0:1`, { limit: 'all' });
      expect(named.decision).toMatchObject({ verdict: 'allow', remaining: 1 });
      expect(allowed(`${prefix}2001:db8:1:2::2`, 3)).toBe(1);
      expect(check(`${prefix}2001:db8:1:2::3`, { limit: 'all' }).decision.verdict).toBe('deny');
      expect(allowed(`${prefix}2001:db8:1:3::1`, 9)).toBe(4);
      expect(allowed(`2001:db8:1:${round}::1`, 9)).toBe(4);
      expect(allowed(`2001:db8:1:${round}::/64`, 9)).toBe(0); // the network as the key
    }
  });

  test('patterns: match the address as it was sent', () => {
    const { allowed } = routerOf(`
deny: [2001:db8:1:2::bad, 'ip:2001:db8:dead::/48']
limits:
  all:
    bucket: { rate: 1/h, burst: 2 }
    overrides: [{ match: '2001:db8:1:2::77', bucket: { rate: 1/h, burst: 5 } }]
`);
    expect(allowed('2001:db8:1:2:0:0:0:bad', 3)).toBe(0);
    expect(allowed('2001:db8:1:2::1', 3)).toBe(2);
    expect(allowed('2001:db8:1:2::77', 9)).toBe(5);
    expect(allowed('ip:2001:db8:dead::1', 3)).toBe(0);
  });

  test('keys.ipv6: another prefix length, and 128 counts every address for itself', () => {
    const wide = routerOf(`keys: { ipv6: 48 }\n${ONE}`);
    expect(wide.allowed('2001:db8:1:2::1', 9) + wide.allowed('2001:db8:1:3::1', 9)).toBe(4);
    const off = routerOf(`keys: { ipv6: 128 }\n${ONE}`);
    expect(off.allowed('2001:db8:1:2::1', 9) + off.allowed('2001:db8:1:2::2', 9)).toBe(8);
  });

  test('denied addresses of a network: one key, by a limit, in shadow, in a batch, by a list and when shed', () => {
    const { line, check, router } = routerOf(`
deny: ['bad:2001:db8::/32']
limits:
  api: { match: 'ip:*', bucket: { rate: 1/h, burst: 2 }, overload: closed }
  trial: { match: 'ip:*', always: true, shadow: true, bucket: { rate: 1/h, burst: 1 } }
`);
    const denied = () =>
      router.denials.top('now', 9, 9).map(({ limit, reason, keys }) => [reason ?? limit, ...keys]);
    const of = (key: string, count: number) => ({ key, denied: count });
    line('ip:2001:db8::1');
    line('ip:2001:db8::2');
    check('ip:2001:db8::3');
    check('ip:2001:db8::4', { limit: 'api', wantsPermit: true });
    const batch = router.route({ key: 'ip:2001:db8::5', cost: 1 });
    if (batch) void router.takeUpTo(batch, 3);
    line('bad:2001:db8::6');
    check('bad:2001:db8::7');
    for (const key of [
      'ip:::ffff:192.0.2.1',
      'ip:192.0.2.1',
      'ip:::ffff:192.0.2.1',
      'ip:192.0.2.1',
    ])
      check(key);
    router.overload = { ...SHEDS_NOTHING, isShedding: true };
    line('ip:2001:db8::8');
    check('ip:2001:db8::9');
    expect(denied()).toEqual([
      ['api', of('ip:2001:db8:0:0::/64', 3), of('ip:192.0.2.1', 2)],
      ['trial', of('ip:2001:db8:0:0::/64', 2), of('ip:192.0.2.1', 1)],
      ['deny-list', of('bad:2001:db8:0:0::/64', 2)],
      ['overload', of('ip:2001:db8:0:0::/64', 2)],
    ]);
  });

  test('permit of an address: is settled for its network', () => {
    const { check, router } = routerOf('limits: { sink: { concurrency: 1 } }');
    const { permit = '' } = check('2001:db8::1', { wantsPermit: true });
    expect(check('2001:db8::2', { wantsPermit: true }).decision.verdict).toBe('deny');
    expect(router.permits.settle(permit, {})).toBe(true);
    expect(check('2001:db8::2', { wantsPermit: true }).decision.verdict).toBe('allow');
  });
});

describe('router: reload', () => {
  test('unchanged rule: keeps its counts under other patterns', () => {
    const { allowed, change } = routerOf(TWO);
    expect(allowed('ip:1', 9)).toBe(3);
    change(`
limits:
  mine: { match: ['ip:*', 'host:*'], bucket: { burst: 3, rate: 1/s } }
`);
    expect(allowed('ip:1', 9)).toBe(0);
    expect(allowed('host:1', 9)).toBe(3);
    expect(allowed('alice', 9)).toBe(9);
  });

  test('other numbers of the rule: what was consumed stays consumed', () => {
    const { allowed, change } = routerOf(TWO);
    allowed('ip:1', 9);
    change("limits: { mine: { bucket: { rate: 1/s, burst: 4 }, match: 'ip:*' } }");
    expect(allowed('ip:1', 9)).toBe(1);
  });

  test('a rule of another kind: starts with fresh counts', () => {
    const { allowed, change } = routerOf(TWO);
    allowed('ip:1', 9);
    change("limits: { mine: { window: { limit: 4, per: 1h }, match: 'ip:*' } }");
    expect(allowed('ip:1', 9)).toBe(4);
  });
});
