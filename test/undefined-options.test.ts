/** An option that is undefined is the same as one that is left out, in limits, limiters and calls. */

import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { endpointOf } from '../src/client/address.ts';
import { seededRandom } from '../src/core/random.ts';
import {
  all,
  type Limit,
  type LimiterOptions,
  limiter,
  type RemoteBackendFactory,
  throttle,
} from '../src/index.ts';
import { LIMIT_KINDS } from '../src/policies/limit.ts';
import { VirtualClock } from '../src/testing/index.ts';
import { optionalNames } from './support/optional-names.ts';

/** Each kind: its options types, and options with as few members as possible. */
const KINDS: Readonly<Record<string, readonly [types: readonly string[], options: object]>> = {
  bucket: [['BucketOptions'], { rate: '5/s' }],
  spacing: [['SpacingOptions'], { every: '200ms' }],
  window: [['WindowOptions'], { limit: 3, per: '1s' }],
  quota: [['QuotaOptions'], { limit: 3, per: 'minute' }],
  ramp: [['RampOptions'], { min: 2, max: 9, over: '5s' }],
  concurrency: [['ConcurrencyOptions'], { limit: 3 }],
  adaptive: [['AdaptiveOptions', 'AimdOptions'], {}],
  busy: [['BusyOptions'], { max: 5 }],
  lockout: [['LockoutOptions'], { after: 3 }],
  all: [[], [{ bucket: { rate: '5/s' } }, { concurrency: 3 }]],
};

const step = fc.record({
  act: fc.constantFrom('check' as const, 'settle' as const, 'wait' as const),
  outcome: fc.constantFrom('ok' as const, 'busy' as const, 'ignored' as const),
  ms: fc.integer({ min: 1, max: 700 }),
});
const steps = fc.array(step, { minLength: 1, maxLength: 40 });

type Step = typeof step extends fc.Arbitrary<infer S> ? S : never;

/** What a limiter of these options decides, step by step. */
function decisionsOf(options: LimiterOptions, sequence: readonly Step[]): unknown[] {
  const clock = new VirtualClock(1_700_000_000_000);
  const api = limiter({ clock, random: seededRandom(1), ...options });
  return sequence.map(({ act, outcome, ms }) => {
    if (act === 'wait') return clock.advance(ms);
    if (act === 'settle') return api.settle('k', { outcome, rttMs: ms });
    return api.check('k', 1, { willSettle: true });
  });
}

function expectSame(options: LimiterOptions, other: object): void {
  fc.assert(
    fc.property(steps, (sequence) => {
      expect(decisionsOf(other as LimiterOptions, sequence)).toEqual(
        decisionsOf(options, sequence),
      );
    }),
    { numRuns: 20, seed: 7 },
  );
}

const undefinedMembers = (names: readonly string[]): Record<string, undefined> =>
  Object.fromEntries(names.map((name) => [name, undefined]));

describe('an undefined option', () => {
  test('limits: the list of kinds is complete', () => {
    expect(Object.keys(KINDS).sort()).toEqual([...LIMIT_KINDS].sort());
  });

  const ofKinds = Object.entries(KINDS).flatMap(([kind, [types, options]]) =>
    types.flatMap((type) => optionalNames(type).map((name) => ({ kind, name, options }))),
  );

  test('limits: the optional members of every kind are found', () => {
    expect(ofKinds.length).toBeGreaterThan(25);
  });

  test.each(ofKinds)('$kind: `$name: undefined` is as if left out', ({ kind, name, options }) => {
    const { [name]: _, ...without } = options as Record<string, unknown>;
    const other = { limit: { [kind]: { ...without, [name]: undefined } } };
    expectSame({ limit: { [kind]: without } as unknown as Limit }, other);
  });

  test.each(LIMIT_KINDS)('%s: any other kind beside it that is undefined is ignored', (kind) => {
    const limit = { [kind]: KINDS[kind][1] };
    const others = undefinedMembers(LIMIT_KINDS.filter((other) => other !== kind));
    expectSame({ limit: limit as unknown as Limit }, { limit: { ...others, ...limit } });
    const nested = { all: [{ ...others, ...limit }] };
    expectSame({ limit: { all: [limit] } as unknown as Limit }, { limit: nested });
  });

  test.each(['LimiterOptions', 'QueueOptions'])('%s: every member is as if left out', (type) => {
    const names = optionalNames(type);
    expect(names.length).toBeGreaterThan(2);
    const limit: Limit = { bucket: { rate: '5/s' } };
    for (const name of names.filter((one) => one !== 'clock' && one !== 'random')) {
      const member = { [name]: undefined };
      expectSame(
        { limit },
        type === 'QueueOptions' ? { limit, queue: member } : { limit, ...member },
      );
    }
  });

  test('a kind that is undefined is no limit, and the error names it if it is alone', () => {
    const make = (limit: object) => () => limiter({ limit: limit as never });
    expect(make({ bucket: undefined })).toThrow('expected `limit.bucket` to be an object');
    expect(make({ bucket: undefined, ramp: undefined })).toThrow(
      'expected `limit` to be an object with one key out of',
    );
  });
});

describe('an undefined member of a call', () => {
  const allowed = async () => ({ decision: { verdict: 'allow', remaining: 1 }, decidedAt: 0 });
  const remote: RemoteBackendFactory = {
    isRemote: true,
    create: () => ({ check: allowed, checkNow: allowed }) as never,
  };
  const limit: Limit = { bucket: { rate: '1/s', burst: 3 } };

  test('check, peek, acquire and settle: unknown members that are undefined are ignored', async () => {
    const api = limiter({ limit, clock: new VirtualClock() });
    const options = { partition: undefined, level: undefined, id: undefined, signal: undefined };
    expect(api.check('k', 1, options).verdict).toBe('allow');
    expect(api.peek('k', 1, options).verdict).toBe('allow');
    expect((await api.acquire('k', 1, { ...options, wait: undefined })).verdict).toBe('allow');
    expect(() => api.settle('k', { used: undefined, extra: undefined } as never)).not.toThrow();
    const shared = limiter({ limit, backend: remote });
    expect((await shared.check('k', 1, options)).verdict).toBe('allow');
    expect((await all([shared, api]).check('k', 0, options)).verdict).toBe('allow');
  });

  test('update: members of another kind of feedback that are undefined are ignored', () => {
    const api = limiter({ limit, clock: new VirtualClock() });
    const hits = { remaining: undefined, poolSize: undefined, hits: 2, retryAfterMs: undefined };
    expect(api.update('k', hits as never)).toBe(true);
    expect(api.inspect('k').remaining).toBe(1);
    expect(() => api.update('k', { hits: undefined } as never)).toThrow('one of hits, poolSize');
  });

  test('change of all: a part that is undefined stays as it is', () => {
    const named = (name: string) => limiter({ name, limit, clock: new VirtualClock() });
    const both = all([named('a'), named('b')]);
    both.change({ a: { bucket: { rate: '1/s', burst: 9 } }, b: undefined } as never);
    expect(both.inspect('k').remaining).toBe(3);
  });

  test('throttle: `limiter` or the options of one may be undefined; so may members of an address', () => {
    const api = limiter({ limit, clock: new VirtualClock() });
    const call = () => 1;
    expect(throttle(call, { limiter: api, limit: undefined, name: undefined } as never)()).toBe(1);
    expect(throttle(call, { limit, limiter: undefined, wait: undefined })()).toBe(1);
    expect(endpointOf({ host: undefined, port: 7, extra: undefined })).toEqual({
      host: '127.0.0.1',
      port: 7,
    });
  });
});
