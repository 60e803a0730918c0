import { describe, expect, test } from 'vitest';
import { ConfigError, preview } from '../core/errors.ts';
import { seededRandom } from '../core/random.ts';
import { createPolicy } from './limit.ts';

const make = (limit: unknown, path?: string) => createPolicy(limit, seededRandom(1), path);

/** The error that a limit is refused with. */
function refusal(limit: unknown, path?: string): ConfigError {
  try {
    make(limit, path);
  } catch (error) {
    if (error instanceof ConfigError) return error;
    throw error;
  }
  throw new Error(`not refused: ${JSON.stringify(limit)}`);
}

const valid: Readonly<Record<string, readonly unknown[]>> = {
  bucket: [
    { rate: 5 },
    { rate: '100/s', burst: 20 },
    { rate: '1/6s', maxDebt: 0 },
    { rate: '.5/s', burst: 1.5, maxDebt: 1e9 },
    { rate: 5, burst: undefined, maxDebt: undefined }, // undefined counts as left out
  ],
  spacing: [
    { every: 6_000 },
    { every: '6s', reserve: 0 },
    { every: '100us', reserve: 9, expire: 1 },
  ],
  ramp: [
    { min: 10, max: 110, over: '10s' },
    { min: 10, max: 10, over: 1 },
    { min: 0.5, max: 2, over: '1h', mode: 'go-back-n', threshold: 0, coolDown: '5s', rampDown: 0 },
    {
      min: 1,
      max: 2,
      over: '1s',
      mode: 'scheduled',
      threshold: 100,
      rampDown: 100,
      resumeFor: '3m',
    },
  ],
  concurrency: [
    1,
    10,
    { limit: 10 },
    { limit: 10, partitions: { live: 0.9 } },
    { limit: 10, priorities: ['a', 'b'] },
  ],
  adaptive: [
    {},
    { rule: 'delay', initial: 1000, jitter: 0.5 },
    { rule: 'aimd', initial: 200 },
    {
      rule: 'aimd',
      initial: 5,
      max: 5,
      alpha: 1,
      decreaseRatio: 0.5,
      deviationScale: 0,
      jitter: 1,
    },
    { rule: 'aimd', slowStart: true, jitter: 0 },
  ],
  busy: [{}, { recoverRate: 0.1 }, { recoverValue: 200, max: 1 }],
  lockout: [{ after: 5 }, { after: 1, lock: '1m', within: '1h', onSuccess: 'return' }],
  all: [[{ bucket: { rate: 1 } }], [{ all: [{ busy: {} }] }, { adaptive: {} }]],
};

/** Invalid where a number of at least 1 (or above 0) is required. */
const NOT_POSITIVE = [0, -1, Number.NaN, Infinity, -Infinity, '5', true, null, [], [5], {}];
/** Invalid where a number of at least 0 is required. */
const NOT_COUNT = [-1, Number.NaN, Infinity, -Infinity, '5', true, null, [], {}];
const NOT_DURATION = [...NOT_POSITIVE.filter((value) => value !== '5'), '', '6', '6x', '-6s', 's'];
const NOT_RATE = [...NOT_DURATION, '0/s', '-1/s', '1/0s', '/s', '5/', '1/y', '1e400/s'];

/** For options where Infinity is valid: no bound. */
const finite = (values: readonly unknown[]) => values.filter((value) => value !== Infinity);

/** What the error suggests for an invalid value that is close to a valid one. */
const SUGGESTIONS = new Map<unknown, string>([
  ['rate 6', '"6/s"'],
  ['6', '"6s" or "6ms"'],
  ['goBackN', '"go-back-n"'],
  ['RELAXED', '"relaxed"'],
  ['Delay', '"delay"'],
]);
const didYouMean = (meant: string | undefined): string =>
  meant === undefined ? '' : `; did you mean ${meant}?`;

/** Invalid values of a field, in a limit that is otherwise valid. */
type InvalidField = readonly [
  kind: string,
  field: string,
  rest: object,
  values: readonly unknown[],
  expected: RegExp,
];

const AIMD = { rule: 'aimd' };
const RAMP = { min: 10, max: 110, over: '10s' };

const invalid: readonly InvalidField[] = [
  [
    'bucket',
    'rate',
    {},
    NOT_RATE,
    /^a rate above 0, such as "100\/s", "1\/6s" or ("500\/min"|100 )/,
  ],
  ['bucket', 'burst', { rate: 1 }, NOT_POSITIVE, /^a number above 0$/],
  ['bucket', 'maxDebt', { rate: 1 }, finite(NOT_COUNT), /^a number of at least 0$/],

  ['spacing', 'every', {}, NOT_DURATION, /^a duration longer than 0, such as "6s"/],
  ['spacing', 'reserve', { every: 1 }, [...NOT_COUNT, 0.5], /^a whole number of at least 0$/],
  ['spacing', 'expire', { every: 1 }, finite(NOT_DURATION), /^a duration longer than 0/],

  ['ramp', 'min', RAMP, NOT_POSITIVE, /^a number above 0$/],
  ['ramp', 'min', RAMP, [111], /^at most `max` \(min 111 exceeds max 110\)$/],
  ['ramp', 'max', RAMP, NOT_POSITIVE, /^a number above 0$/],
  ['ramp', 'over', RAMP, NOT_DURATION, /^a duration longer than 0/],
  [
    'ramp',
    'mode',
    RAMP,
    ['', 'goBackN', 'RELAXED', 'toString', 0, null, true, ['relaxed'], {}],
    /^one of scheduled, relaxed, only-if-used, go-back-n$/,
  ],
  ['ramp', 'threshold', RAMP, [...NOT_COUNT, 101], /^a number of at least 0 and at most 100$/],
  ['ramp', 'coolDown', RAMP, NOT_DURATION.filter((value) => value !== 0), /^a duration/],
  ['ramp', 'rampDown', RAMP, [...NOT_COUNT, 101], /^a number of at least 0 and at most 100$/],
  ['ramp', 'resumeFor', RAMP, NOT_DURATION, /^a duration longer than 0/],

  ['concurrency', 'limit', {}, [...NOT_POSITIVE, 1.5], /^a whole number of at least 1$/],

  ['adaptive', 'initial', {}, [...NOT_POSITIVE, 1.5], /^a whole number of at least 1$/],
  ['adaptive', 'rule', {}, ['', 'Delay', 'vector', 0, null, {}], /^one of delay, aimd$/],
  ['adaptive', 'initial', {}, [1001], /^at most `max` \(initial 1001 exceeds max 1000\)$/],
  ['adaptive', 'initial', AIMD, [201], /^at most `max` \(initial 201 exceeds max 200\)$/],
  ['adaptive', 'initial', { max: 5 }, [6], /^at most `max` \(initial 6 exceeds max 5\)$/],
  ['adaptive', 'max', {}, [...NOT_POSITIVE, 1.5], /^a whole number of at least 1$/],
  [
    'adaptive',
    'decreaseRatio',
    AIMD,
    [...NOT_POSITIVE, 1, 2],
    /^a number above 0 and at most 0.999999$/,
  ],
  ['adaptive', 'alpha', AIMD, [...NOT_POSITIVE, 1.01], /^a number above 0 and at most 1$/],
  ['adaptive', 'deviationScale', AIMD, NOT_COUNT, /^a number of at least 0$/],
  ['adaptive', 'fixed', {}, [1, 10], /^left out: a fixed limit is written `concurrency: n`$/],
  ['adaptive', 'slowStart', AIMD, [0, 1, 'yes', 'true', null, [], {}], /^true or false$/],
  ['adaptive', 'jitter', AIMD, [...NOT_COUNT, 1.5], /^a number of at least 0 and at most 1$/],
  ['adaptive', 'jitter', {}, [...NOT_COUNT, 1.5], /^a number of at least 0 and at most 1$/],

  ['busy', 'recoverRate', {}, NOT_POSITIVE, /^a number above 0$/],
  ['busy', 'recoverValue', {}, NOT_POSITIVE, /^a number above 0$/],
  ['busy', 'max', {}, [...NOT_POSITIVE, 0.5], /^a number of at least 1$/],
  ['busy', 'recoverRate', { recoverValue: 2 }, [3], /^left out when `recoverValue` is given$/],
];

describe('createPolicy', () => {
  for (const [kind, variants] of Object.entries(valid)) {
    test.for(variants)(`createPolicy: { ${kind}: %j } is valid`, (options) => {
      const policy = make({ [kind]: options });
      expect(policy.kind).toBe(kind);
      expect(policy.width).toBeGreaterThan(0);
      const state = new Float64Array(policy.width);
      policy.init(state, 0, 0);
      expect(policy.check(state, 0, 0, 0).verdict).toBe('allow');
    });
  }

  for (const [kind, field, rest, values, expected] of invalid) {
    for (const value of values) {
      test(`createPolicy: refuses ${kind}.${field}: ${preview(value)}`, () => {
        const error = refusal({ [kind]: { ...rest, [field]: value } });
        expect(error.field).toBe(`limit.${kind}.${field}`);
        expect(error.code).toBe('CONFIG');
        const [, named, required, got] =
          /^expected `(.+)` to be (.+), got (.+)$/.exec(error.message) ?? [];
        expect(named).toBe(`limit.${kind}.${field}`);
        expect(required).toMatch(expected);
        const meant = SUGGESTIONS.get(field === 'rate' ? `rate ${value}` : value);
        expect(got).toBe(preview(value) + didYouMean(meant));
      });
    }
  }

  test.each([
    ['bucket', { rate: 1 }, 'brust', 'rate, burst, maxDebt', '`burst`'],
    ['spacing', { every: 1 }, 'reserved', 'every, reserve, expire', '`reserve`'],
    [
      'ramp',
      RAMP,
      'cooldown',
      'max, min, over, mode, threshold, coolDown, rampDown, resumeFor',
      '`coolDown`',
    ],
    [
      'adaptive',
      {},
      'initialLimit',
      'rule, max, initial, jitter, decreaseRatio, alpha, deviationScale, slowStart, decreaseOnSilence, variant, partitions, priorities',
      '`initial`',
    ],
    [
      'adaptive',
      AIMD,
      'initialLimit',
      'rule, max, initial, decreaseRatio, alpha, deviationScale, slowStart, jitter, decreaseOnSilence, variant, partitions, priorities',
      '`initial`',
    ],
    ['busy', {}, 'recover', 'recoverValue, recoverRate, max'],
    ['concurrency', { limit: 1 }, 'max', 'limit, partitions, priorities'],
  ])('createPolicy: %s refuses an unknown option', (kind, rest, unknown, known, meant?: string) => {
    const { message, field } = refusal({ [kind]: { ...rest, [unknown]: 3 } });
    expect(field).toBe(`limit.${kind}.${unknown}`);
    const expected = `\`limit.${kind}.${unknown}\` to be one of ${known}`;
    expect(message).toBe(`expected ${expected}, got "${unknown}"${didYouMean(meant)}`);
  });

  test.each([
    ['decreaseRatio', 0.5],
    ['alpha', 0.5],
    ['deviationScale', 2],
    ['slowStart', true],
    ['decreaseOnSilence', false],
    ['variant', 'vector'],
  ])('createPolicy: adaptive refuses %s unless its rule is aimd', (option, value) => {
    for (const rule of [{}, { rule: 'delay' }]) {
      const { message } = refusal({ adaptive: { ...rule, [option]: value } });
      const expected = `expected \`limit.adaptive.${option}\` to be beside \`rule: 'aimd'\``;
      expect(message).toBe(`${expected}, got ${JSON.stringify(value)}`);
    }
    expect(createPolicy({ adaptive: { ...AIMD, [option]: value } }, seededRandom(1)).kind).toBe(
      'adaptive',
    );
  });

  test('createPolicy: adaptive suggests an option of another rule by its name', () => {
    const { message } = refusal({ adaptive: { decreaseratio: 0.5 } });
    expect(message).toMatch(/did you mean `decreaseRatio`\?$/);
  });

  test.each([
    ['bucket', 'rate', {}],
    ['spacing', 'every', {}],
    ['ramp', 'max', { min: 1, over: 1 }],
    ['ramp', 'min', { max: 1, over: 1 }],
    ['ramp', 'over', { min: 1, max: 1 }],
    ['concurrency', 'limit', {}],
  ])('createPolicy: %s requires %s', (kind, field, options) => {
    const { message } = refusal({ [kind]: options });
    expect(message).toMatch(`expected \`limit.${kind}.${field}\` to be a`);
    expect(message.endsWith(`, got ${preview(undefined)}`)).toBe(true);
  });

  test.each(['bucket', 'spacing', 'ramp', 'adaptive', 'busy'])(
    'createPolicy: options of %s must be an object',
    (kind) => {
      for (const value of [null, undefined, [], 5, '100/s', true, Number.NaN]) {
        const { message, field } = refusal({ [kind]: value });
        expect(field).toBe(`limit.${kind}`);
        expect(message).toBe(`expected \`limit.${kind}\` to be an object, got ${preview(value)}`);
      }
    },
  );

  test.for([0, -1, 1.5, Number.NaN, '5', null, undefined, []])(
    'createPolicy: refuses concurrency: %j',
    (value) => {
      const { message, field } = refusal({ concurrency: value });
      expect(field).toBe('limit.concurrency');
      expect(message).toBe(
        `expected \`limit.concurrency\` to be a whole number of at least 1, or an object with \`limit\`, got ${preview(value)}`,
      );
    },
  );

  const ONE_KEY =
    'an object with one key out of bucket, spacing, window, quota, ramp, concurrency, adaptive, busy, lockout, all';
  test.for([
    [undefined, preview(undefined)],
    [null, 'null'],
    [5, '5'],
    ['bucket', '"bucket"'],
    [[], '[]'],
    [[{ bucket: { rate: 1 } }], '[{"bucket":{"rate":1}}]'],
    [{}, '{}'],
    [{ buckte: { rate: 1 } }, '{"buckte":{"rate":1}}; did you mean `bucket`?'],
    [{ Bucket: { rate: 1 } }, '{"Bucket":{"rate":1}}; did you mean `bucket`?'],
    [{ rate: '10/s' }, '{"rate":"10/s"}; did you mean `bucket: { rate: … }`?'],
    [{ every: '6s' }, '{"every":"6s"}; did you mean `spacing: { every: … }`?'],
    [{ 'token-bucket': {} }, '{"token-bucket":{}}; did you mean `bucket`?'],
    [{ 'leaky-bucket': {} }, '{"leaky-bucket":{}}; did you mean `bucket`?'],
    [{ tokenBucket: {} }, '{"tokenBucket":{}}; did you mean `bucket`?'],
    [{ 'sliding-window': {} }, '{"sliding-window":{}}; did you mean `window`?'],
    [{ fixed_window: {} }, '{"fixed_window":{}}; did you mean `window`?'],
    [{ 'adaptive-concurrency': {} }, '{"adaptive-concurrency":{}}; did you mean `adaptive`?'],
    [{ overall: {} }, '{"overall":{}}'],
    [{ toString: {} }, '{"toString":{}}'],
    [{ constructor: {} }, '{"constructor":{}}'],
    [{ bucket: { rate: 1 }, busy: {} }, '{"bucket":{"rate":1},"busy":{}}'],
    [{ rate: 1, burst: 2 }, '{"rate":1,"burst":2}; did you mean `bucket: { rate: … }`?'],
  ])('createPolicy: refuses %j', ([limit, got]) => {
    const error = refusal(limit);
    expect(error.field).toBe('limit');
    expect(error.message).toBe(`expected \`limit\` to be ${ONE_KEY}, got ${got}`);
  });

  test('createPolicy: all requires a list of limits and names the invalid one', () => {
    expect(refusal({ all: {} }).message).toBe(
      'expected `limit.all` to be a list of limits, got {}',
    );
    expect(refusal({ all: null }).field).toBe('limit.all');
    expect(refusal({ all: [] }).message).toBe(
      'expected `limit.all` to be a list of at least one limit, got []',
    );
    expect(refusal({ all: [{ busy: {} }, null] }).field).toBe('limit.all[1]');
    expect(refusal({ all: [{ all: [{ busy: {} }, { ramp: { ...RAMP, min: 0 } }] }] }).field).toBe(
      'limit.all[0].all[1].ramp.min',
    );
  });

  test('createPolicy: refuses `all` nested deeper than 8', () => {
    const within = (depth: number): object =>
      depth > 0 ? { all: [within(depth - 1)] } : { busy: {} };
    expect(() => make(within(8))).not.toThrow();
    const { field, message } = refusal(within(9));
    expect(field).toBe(`limit${'.all[0]'.repeat(8)}.all`);
    expect(message).toContain('to be at most 8 deep');
  });

  test('createPolicy: errors carry the path of the caller', () => {
    expect(refusal({ bucket: {} }, 'limits.api').field).toBe('limits.api.bucket.rate');
    expect(refusal(7, 'limits.api').field).toBe('limits.api');
  });

  test('createPolicy: errors show any value in one short line', () => {
    const circle: Record<string, unknown> = {};
    circle.self = circle;
    expect(refusal({ bucket: { rate: circle } }).message).toMatch(/got \[object Object\]$/);
    expect(refusal({ bucket: { rate: 'x'.repeat(1_000) } }).message.length).toBeLessThan(200);
    expect(refusal({ bucket: { rate: () => 1 } }).message).toMatch(/got a function$/);
    expect(refusal({ bucket: { rate: 5n } }).message).toMatch(/got 5$/);
    expect(refusal({ bucket: { rate: Symbol('five') } }).message).toMatch(/got Symbol\(five\)$/);
  });

  test('createPolicy: passes randomness to the policy that needs it', () => {
    let calls = 0;
    const random = () => {
      calls++;
      return 0;
    };
    const policy = createPolicy(
      { all: [{ busy: {} }, { adaptive: { ...AIMD, jitter: 1 } }] },
      random,
    );
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    policy.check(state, 0, 1, 0);
    policy.settle(state, 0, { outcome: 'ok', cost: 1, dueAt: 0, rttMs: 5 }, 5);
    expect(calls).toBe(1);
  });
});

test('createPolicy: accepts the unbounded defaults when they are written', () => {
  make({ bucket: { rate: 1, maxDebt: Infinity } });
  make({ spacing: { every: '1s', expire: Infinity } });
  expect(refusal({ spacing: { every: '1s', expire: -Infinity } }).field).toBe(
    'limit.spacing.expire',
  );
});

test.each([
  [{ window: { limit: 1e300, per: '1s' } }, 'limit.window.limit'],
  [{ concurrency: 1e300 }, 'limit.concurrency'],
  [{ concurrency: { limit: 1e300 } }, 'limit.concurrency.limit'],
])('createPolicy: refuses the amount in %j', (limit, field) => {
  expect(refusal(limit)).toMatchObject({ field, message: expect.stringContaining('at most 1') });
});
