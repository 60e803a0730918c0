import { afterAll, describe, expect, test } from 'vitest';
import { createTempDir } from '../../../test/support/daemon.ts';
import { createHasher } from '../../core/hash.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { LimiterRegistry } from '../router/limiter-registry.ts';
import { Router } from '../router/router.ts';
import { loadConfig } from './file.ts';

const place = createTempDir();
afterAll(() => place.remove());

const load = (text: string) => loadConfig(place.file('sluice.yaml', text), []);

/** How many checks of a key are allowed, by the name of a limit and a plan. */
function setUp(text: string) {
  const loaded = load(text);
  if ('problems' in loaded) throw new Error(loaded.problems.join('\n'));
  const { config } = loaded;
  const hasher = createHasher([1, 2], 'latin1');
  const clock = new VirtualClock(1_000_000);
  const registry = new LimiterRegistry({ clock, hasher, backendFor: () => undefined });
  registry.apply(config.limits);
  const router = new Router(config, registry, hasher);
  const allowed = (key: string, limit?: string): number | undefined => {
    let count = 0;
    for (let n = 0; n < 20; n++) {
      const result = router.check({ key, limit, cost: 1 });
      if (result === undefined) return undefined;
      if (!(result instanceof Promise) && result.decision.verdict === 'allow') count++;
    }
    return count;
  };
  return { allowed, registry, router };
}

const bucket = (burst: number): string => `bucket: { rate: 1/h, burst: ${burst} }`;
const PLANS = `plans: { free: { ${bucket(2)} }, pro: { ${bucket(5)} } }\n`;

describe('plans', () => {
  test('plan of the file: replaces the rule of every limit that has the plan', () => {
    place.file('plans.csv', '# key, plan\nalice,pro\nbob smith  free\ncarol\tpro # since May\n');
    const { allowed, registry } = setUp(`${PLANS}planFile: plans.csv
limits:
  api: { ${bucket(1)}, match: ['a*', 'b*', 'c*'], plans: true }
  own: { ${bucket(1)}, match: 'x*', plans: { pro: { ${bucket(7)} } } }
`);
    const keys = ['alice', 'bob smith', 'carol', 'albert'];
    expect(keys.map((key) => allowed(key))).toEqual([5, 2, 5, 1]);
    expect([allowed('x'), allowed('x', 'own[pro]'), allowed('x2', 'own[free]')]).toEqual([1, 7, 1]);
    expect(registry.all.map(({ name }) => name)).toEqual([
      ...['api', 'api[free]', 'api[pro]', 'own', 'own[pro]'],
    ]);
  });

  test('plan named with the check: comes before the file, and an override before both', () => {
    place.file('plans.csv', 'alice pro\neve pro\n');
    const { allowed, router } = setUp(`${PLANS}planFile: plans.csv
limits:
  api: { ${bucket(1)}, plans: true, overrides: [{ match: eve, ${bucket(3)} }, { match: vip, plan: pro }] }
  sum: { bucket: { rate: 1/h, burst: 99 }, per: limit, always: true }
`);
    expect(allowed('alice', '*[free]')).toBe(2);
    expect(allowed('alice')).toBe(5);
    expect(allowed('dan', 'api[pro]')).toBe(5);
    expect([allowed('eve', '*[free]'), allowed('eve')]).toEqual([3, 0]);
    expect(allowed('vip')).toBe(5);
    expect([allowed('dan', 'api[gold]'), allowed('dan', 'none[pro]')]).toEqual([
      undefined,
      undefined,
    ]);
    const routed = router.route({ key: 'dan', limit: '*[pro]', cost: 1 });
    const { limits } = router.explain(routed as NonNullable<typeof routed>, 'dan');
    expect(limits[0]).toMatchObject({
      name: 'api[pro]',
      rule: { bucket: { burst: 5 } },
      reason: 'matches *, is the most specific; has the plan pro',
    });
  });

  test('the most plain configuration: a named plan and no plan count apart', () => {
    const { allowed } = setUp(`${PLANS}limits: { api: { ${bucket(1)}, plans: true } }`);
    for (const key of ['alice', '2001:db8::1', 'ip:2001:db8:0:1::1'])
      expect([allowed(key), allowed(key, 'api[pro]'), allowed(key, 'api')]).toEqual([1, 5, 0]);
  });

  test('100,000 keys with a plan: each has it', () => {
    const lines = Array.from(
      { length: 100_000 },
      (_, n) => `customer-${n},${n % 2 ? 'pro' : 'free'}`,
    );
    place.file('plans.csv', lines.join('\n'));
    const { allowed, registry } = setUp(
      `${PLANS}planFile: plans.csv\nlimits: { api: { ${bucket(1)}, plans: true } }`,
    );
    expect([0, 1, 99_999, 100_000].map((n) => allowed(`customer-${n}`))).toEqual([2, 5, 5, 1]);
    expect(registry.all.length).toBe(3);
  });

  test.each([
    ['limits: { a: { bucket: { rate: 1 }, plans: true } }', '`limits.a.plans` to be left out, or'],
    ['limits: { a: { bucket: { rate: 1 }, plans: 7 } }', '`limits.a.plans` to be plans by name'],
    [
      'limits: { a: { bucket: { rate: 1 }, plans: { p: {} } } }',
      '`limits.a.plans.p` to be a limit',
    ],
    [
      'limits: { a: { bucket: { rate: 1 }, plans: { "p q": { bucket: { rate: 1 } } } } }',
      'a name of',
    ],
    [
      'limits: { a: { bucket: { rate: 1 }, plans: { p: { buckt: 1 } } } }',
      'did you mean `bucket`?',
    ],
    ['plans: { p: { bucket: { rate: 1 } } }', '`plans` to be left out, or used by a limit'],
    [
      'plans: { p: { bucket: { rate: x } } }\nlimits: { a: { bucket: { rate: 1 }, plans: true } }',
      'sluice.yaml:1:25: expected `plans.p.bucket.rate` to be a rate above 0',
    ],
    [
      'limits: { a: { bucket: { rate: 1 }, per: limit, plans: { p: { bucket: { rate: 1 } } } } }',
      '`limits.a.plans` to be left out when all keys have one count together',
    ],
    [
      'limits: { a: { bucket: { rate: 1 }, overrides: [{ match: b, plan: p }] } }',
      '`limits.a.overrides[0].plan` to be a plan of the limit, got "p"',
    ],
    [
      'limits: { a: { bucket: { rate: 1 }, plans: { p: { bucket: { rate: 1 } } }, overrides: [{ match: b, name: p, bucket: { rate: 2 } }] } }',
      '`limits.a.overrides[0].name` to be a name that no other rule has',
    ],
    ['planFile: plans.csv', '`planFile` to be left out, or beside plans'],
  ])('%s: is refused', (text, message) => {
    place.file('plans.csv', '');
    const loaded = load(text);
    expect('problems' in loaded && loaded.problems.join('\n')).toContain(message);
  });

  test.each([
    ['alice', 'plans.csv:1: expected a key and a plan, got "alice"'],
    ['\nalice gold', 'plans.csv:2: expected one of p, got "gold"'],
    ['alice p\nalice,q', 'plans.csv:2: expected one plan for each key, got "alice,q"'],
  ])('plan file %j: is refused', (lines, message) => {
    place.file('plans.csv', lines);
    const plans = message.includes('one plan')
      ? 'p: &p { bucket: { rate: 1 } }, q: *p'
      : 'p: { bucket: { rate: 1 } }';
    const loaded = load(
      `planFile: plans.csv\nlimits: { a: { bucket: { rate: 1 }, plans: { ${plans} } } }`,
    );
    expect('problems' in loaded && loaded.problems.join('\n')).toContain(message);
  });
});
