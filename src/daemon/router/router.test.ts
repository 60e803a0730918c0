import { describe, expect, test } from 'vitest';
import { createHasher } from '../../core/hash.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { parseConfigText } from '../config/file.ts';
import type { Config } from '../config/read.ts';
import { toBinaryKey } from '../keys/binary-key.ts';
import { LimiterRegistry } from './limiter-registry.ts';
import { type CheckResult, isUnknownLimit, type RoutedRequest, Router } from './router.ts';

function configOf(text: string): Config {
  const loaded = parseConfigText('test.yaml', text);
  if ('config' in loaded) return loaded.config;
  throw new Error(loaded.problems.join('\n'));
}

/** A gate by this configuration, on a clock that stands still unless it is told otherwise. */
function gateOf(text: string) {
  const clock = new VirtualClock(1_000_000);
  const hasher = createHasher([1, 2]);
  const registry = new LimiterRegistry({ clock, hasher, backendFor: () => undefined });
  const config = configOf(text);
  registry.apply(config.limits);
  const router = new Router(config, registry, hasher);
  const line = (key: string): boolean => {
    const bytes = Buffer.from(`<${key}>`);
    return router.isAllowed(bytes, 1, bytes.length - 1) as boolean;
  };
  const ask = (
    key: string,
    more: { limit?: string; cost?: number; wantsPermit?: boolean } = {},
  ): CheckResult => {
    const answer = router.check({ key: toBinaryKey(key), cost: 1, ...more }) as CheckResult;
    if (isUnknownLimit(answer)) throw new Error(`unknown ${answer.unknown}`);
    return answer;
  };
  const served = (key: string, times: number): number =>
    Array.from({ length: times }, () => line(key)).filter(Boolean).length;
  const change = (other: string): void => {
    const next = configOf(other);
    registry.apply(next.limits);
    router.applyConfig(next);
  };
  return { gate: router, clock, shelf: registry, line, ask, served, change };
}

const TWO = `
limits:
  mine: { bucket: { rate: 1/s, burst: 3 }, match: 'ip:*' }
  rest: { bucket: { rate: 1/s, burst: 2 } }
`;

describe('the gate', () => {
  test('without a configuration allows every key ten at once and one a second', () => {
    const { served, clock } = gateOf('');
    expect(served('alice', 20)).toBe(10);
    expect(served('bob', 20)).toBe(10);
    clock.advance(2000);
    expect(served('alice', 20)).toBe(2);
  });

  test('a key may meet as many limits as a configuration may hold', () => {
    const many = Array.from(
      { length: 200 },
      (_, n) => `  l${n}: { bucket: { rate: 1/h, burst: ${n + 2} }, always: true }`,
    );
    const { served, ask } = gateOf(`deny: [mallory]\nlimits:\n${many.join('\n')}`);
    expect(served('alice', 9)).toBe(2);
    expect(ask('alice')).toMatchObject({ decision: { verdict: 'deny' }, limit: 'l0' });
  });

  test('a limit for the key * alone is for no other', () => {
    const { served } = gateOf(
      "limits: { star: { bucket: { rate: 1/h, burst: 1 }, match: { exact: '*' } } }",
    );
    expect(served('*', 9)).toBe(1);
    expect(served('alice', 9)).toBe(9);
  });

  test('asks the most specific limit', () => {
    const { served } = gateOf(TWO);
    expect(served('ip:1', 9)).toBe(3);
    expect(served('alice', 9)).toBe(2);
  });

  test('a key is the same on every surface, UTF-8 or not', () => {
    const { line, ask, served } = gateOf(TWO);
    expect(line('grün')).toBe(true);
    expect(ask('grün').decision).toEqual({ verdict: 'allow', remaining: 0 });
    expect(line('grün')).toBe(false);
    expect(served('gr\u00fcn', 3)).toBe(0);
  });

  test('says who refuses, and until when', () => {
    const { ask, served } = gateOf(TWO);
    served('ip:1', 3);
    expect(ask('ip:1')).toEqual({
      decision: { verdict: 'deny', retryAfterMs: 1000 },
      limit: 'mine',
    });
  });

  test('a limit can be asked by its name, whatever it is for', () => {
    const { gate, ask } = gateOf(TWO);
    expect(ask('alice', { limit: 'mine' }).decision).toEqual({ verdict: 'allow', remaining: 2 });
    expect(gate.check({ key: 'alice', cost: 1, limit: 'other' })).toEqual({ unknown: 'other' });
  });

  test('an override has a count of its own', () => {
    const { served, ask } = gateOf(`
limits:
  mine:
    bucket: { rate: 1/s, burst: 2 }
    overrides:
      - { match: 'vip:*', bucket: { rate: 1/s, burst: 5 } }
      - { match: 'vip:ann', bucket: { rate: 1/s, burst: 7 } }
`);
    expect([served('bob', 9), served('vip:bob', 9), served('vip:ann', 9)]).toEqual([2, 5, 7]);
    expect(ask('vip:ann').limit).toBe('mine[vip:ann]');
  });

  test('several limits take all or nothing', () => {
    const { served, gate } = gateOf(`
limits:
  each: { bucket: { rate: 1/s, burst: 3 } }
  everybody: { bucket: { rate: 1/s, burst: 4 }, per: limit, always: true }
`);
    expect(served('a', 9)).toBe(3);
    expect(served('b', 9)).toBe(1); // the fourth for everybody
    return expect(
      gate.inspect(gate.route({ key: 'b', cost: 1 }) as RoutedRequest),
    ).resolves.toMatchObject([{ remaining: 2 }, { remaining: 0 }]); // nothing was taken where it was refused
  });

  test('lists are asked first: deny before allow, and neither is counted', () => {
    const { served, ask, shelf } = gateOf(`
deny: ['bad*']
allow: ['good*', 'bad-but-good']
limits:
  rest: { bucket: { rate: 1/s, burst: 1 }, deny: ['worse'], allow: ['fine'] }
`);
    expect([served('bad1', 3), served('good1', 3), served('bad-but-good', 3)]).toEqual([0, 3, 0]);
    expect([served('worse', 3), served('fine', 3), served('x', 3)]).toEqual([0, 3, 1]);
    expect(ask('bad1')).toMatchObject({
      decision: { verdict: 'deny', retryAfterMs: Infinity },
      staticVerdict: { reason: 'deny-list' },
    });
    expect(shelf.get('rest')?.limiter.stats()).toMatchObject({ allowed: 1, denied: 2 });
  });

  test("a limit's allow list excuses from that limit only", () => {
    const { served } = gateOf(`
limits:
  each: { bucket: { rate: 1/s, burst: 1 }, allow: ['vip'] }
  everybody: { bucket: { rate: 1/s, burst: 3 }, per: limit, always: true }
`);
    expect([served('vip', 9), served('bob', 9)]).toEqual([3, 0]);
  });

  test('a key that no limit is for is allowed, or denied if so told', () => {
    const only = "limits: { mine: { bucket: { rate: 1/s, burst: 1 }, match: 'a' } }";
    expect(gateOf(only).served('b', 3)).toBe(3);
    expect(gateOf(`${only}\nunmatched: deny`).served('b', 3)).toBe(0);
  });

  test('a shadow counts and never refuses', () => {
    const { served, shelf, ask } = gateOf(`
limits:
  real: { bucket: { rate: 1/s, burst: 5 } }
  trial: { bucket: { rate: 1/s, burst: 2 }, always: true, shadow: true }
`);
    expect(served('a', 9)).toBe(5);
    expect(shelf.get('trial')?.limiter.stats()).toMatchObject({ allowed: 2, denied: 3 });
    expect(ask('a').limit).toBe('real');
  });

  test('a spacing reserves nothing: who cannot use a place later is refused', () => {
    const { served, clock } = gateOf('limits: { s: { spacing: { every: 1s, reserve: 5 } } }');
    expect(served('a', 3)).toBe(1);
    clock.advance(1000);
    expect(served('a', 3)).toBe(1);
  });

  test('who holds settles; who does not can only look at calls in flight', () => {
    const { ask, gate, served } = gateOf('limits: { sink: { adaptive: { initial: 2, max: 2 } } }');
    expect(served('db', 9)).toBe(9); // nothing is in flight
    const [first, second] = [ask('db', { wantsPermit: true }), ask('db', { wantsPermit: true })];
    expect(ask('db', { wantsPermit: true }).decision.verdict).toBe('deny');
    expect(served('db', 9)).toBe(0);
    expect(gate.settle(first.permit ?? '', { outcome: 'ok', rttMs: 10 })).toBe(true);
    expect(gate.settle(first.permit ?? '', {})).toBe(false);
    expect(ask('db', { wantsPermit: true }).decision.verdict).toBe('allow');
    expect(second.permit).not.toBe(first.permit);
  });

  test('what was held and not used is given back', () => {
    const { ask, gate } = gateOf(TWO);
    const { permit = '' } = ask('alice', { wantsPermit: true, cost: 2 });
    expect(ask('alice').decision.verdict).toBe('deny');
    gate.settle(permit, { outcome: 'ignored' });
    expect(ask('alice', { cost: 2 }).decision.verdict).toBe('allow');
  });
});

describe('a changed configuration', () => {
  test('keeps the counts of rules that read the same, whatever they are for by now', () => {
    const { served, change } = gateOf(TWO);
    expect(served('ip:1', 9)).toBe(3);
    change(`
limits:
  mine: { match: ['ip:*', 'host:*'], bucket: { burst: 3, rate: 1/s } }
`);
    expect(served('ip:1', 9)).toBe(0);
    expect(served('host:1', 9)).toBe(3);
    expect(served('alice', 9)).toBe(9);
  });

  test('begins anew where the rule has changed', () => {
    const { served, change } = gateOf(TWO);
    served('ip:1', 9);
    change("limits: { mine: { bucket: { rate: 1/s, burst: 4 }, match: 'ip:*' } }");
    expect(served('ip:1', 9)).toBe(4);
  });
});
