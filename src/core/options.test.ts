import { describe, expect, test } from 'vitest';
import { ConfigError, preview } from './errors.ts';
import { OptionReader } from './options.ts';

const messageOf = (read: () => unknown): string => {
  try {
    read();
  } catch (error) {
    if (error instanceof ConfigError) return error.message;
    throw error;
  }
  return 'accepted';
};

describe('OptionReader', () => {
  test('accepts an object and nothing else', () => {
    for (const value of [undefined, null, 5, 'x', true, [], [1], () => 1]) {
      expect(() => new OptionReader('limit', value)).toThrow(ConfigError);
    }
    expect(messageOf(() => new OptionReader('limit', [1]))).toBe(
      'expected `limit` to be an object, got [1]',
    );
    expect(messageOf(() => new OptionReader('limit', null, 'a thing'))).toBe(
      'expected `limit` to be a thing, got null',
    );
  });

  test('knows the path of an option', () => {
    expect(new OptionReader('limit.bucket', {}).pathOf('rate')).toBe('limit.bucket.rate');
    expect(new OptionReader('', {}).pathOf('limit')).toBe('limit');
  });

  test('a missing option: names the unknown one that was probably meant', () => {
    const rateOf = (options: object) =>
      messageOf(() => new OptionReader('limit.bucket', options).rate('rate'));
    expect(rateOf({ rte: '5/s' })).toMatch(/got undefined; did you mean `rate` by `rte`\?$/);
    expect(rateOf({ burst: 5 })).toMatch(/got undefined$/);
    expect(rateOf({ rate: 0, rte: '5/s' })).toMatch(/got 0$/);
    expect(rateOf({ 'rat\n': '5/s' })).toMatch(/by "rat\\n"\?$/);
  });

  test('collecting: throws all errors at once, without those that follow from another', () => {
    const reader = OptionReader.collecting('x', {
      rate: 0,
      over: 'soon',
      mode: 'wild',
      brust: 1,
      lo: 9,
    });
    const { count } = reader.rate('rate');
    reader.positive('burst', count); // its default depends on the rate
    reader.number('lo', { min: 0, max: reader.duration('over') });
    reader.oneOf('mode', ['calm']);
    reader.boolean('flag', true);
    reader.tryRead(() => new OptionReader('x.part', 7));
    let thrown: unknown;
    try {
      reader.finish();
    } catch (error) {
      thrown = error;
    }
    const { field, additionalErrors } = thrown as ConfigError;
    expect([field, ...additionalErrors.map((error) => error.field)]).toEqual([
      ...['x.rate', 'x.over', 'x.mode', 'x.part', 'x.brust'],
    ]);
    const outer = (thrown as ConfigError).prefixedWith('limit');
    expect(outer.additionalErrors.map((error) => error.field)).toContain('limit.x.brust');
  });

  test('throwFor: throws together with the errors collected before', () => {
    const reader = OptionReader.collecting('x', { rate: 0 });
    reader.rate('rate');
    expect(() => reader.throwFor('burst', 'there')).toThrow(
      expect.objectContaining({
        field: 'x.rate',
        additionalErrors: [expect.objectContaining({ field: 'x.burst' })],
      }),
    );
  });

  test('duration and rate as text: the error suggests no bare number, which text may not be', () => {
    const { duration, rate } = { duration: '3600', rate: '100' };
    const reader = new OptionReader('', { duration, rate });
    expect(() => reader.duration('duration')).toThrow(
      'a duration longer than 0, such as "6s" or "250ms", got "3600"; did you mean "3600s" or "3600ms"?',
    );
    expect(() => reader.rate('rate')).toThrow(
      'a rate above 0, such as "100/s", "1/6s" or "500/min", got "100"; did you mean "100/s"?',
    );
    expect(() => new OptionReader('', { duration: -1 }).duration('duration')).toThrow(
      'such as "6s" or 6000 (ms), got -1',
    );
  });

  test('finish: refuses an unknown option, lists the known ones and suggests the closest', () => {
    const reader = new OptionReader('x', { rate: 1, brust: 2 });
    reader.rate('rate');
    reader.has('burst');
    expect(messageOf(() => reader.finish())).toBe(
      'expected `x.brust` to be one of rate, burst, got "brust"; did you mean `burst`?',
    );
    reader.get('brust');
    expect(messageOf(() => reader.finish())).toBe('accepted');
    expect(messageOf(() => new OptionReader('x', { a: 1 }).finish())).toBe(
      'expected `x.a` to be left out: no options exist, got "a"',
    );
    expect(new OptionReader('x', { a: 1, b: 2 }).names()).toEqual(['a', 'b']);
  });

  test('ignores inherited properties', () => {
    const reader = new OptionReader('x', Object.create({ burst: 5 }));
    expect(reader.has('burst')).toBe(false);
    expect(reader.has('toString')).toBe(false);
    expect(reader.positive('burst', 3)).toBe(3);
  });

  test('uses the default of an option that is left out, and refuses one without a default', () => {
    const reader = new OptionReader('x', { gone: undefined });
    expect(reader.number('gone', {}, 7)).toBe(7);
    expect(reader.integer('gone', 0, 7)).toBe(7);
    expect(reader.boolean('gone', true)).toBe(true);
    expect(reader.oneOf('gone', ['a', 'b'], 'b')).toBe('b');
    expect(reader.duration('gone', Infinity)).toBe(Infinity);
    expect(messageOf(() => reader.number('gone', {}))).toBe(
      'expected `x.gone` to be a number, got undefined',
    );
    expect(messageOf(() => reader.oneOf('gone', ['a', 'b']))).toBe(
      'expected `x.gone` to be one of a, b, got undefined',
    );
    expect(messageOf(() => reader.duration('gone'))).toMatch(/got undefined$/);
    expect(messageOf(() => reader.rate('gone'))).toMatch(/got undefined$/);
  });

  // `burst:` without a value is null in YAML: it is an error and not the default.
  test('refuses null', () => {
    const reader = new OptionReader('x', { empty: null });
    expect(reader.has('empty')).toBe(true);
    const reads = [
      () => reader.number('empty', {}, 7),
      () => reader.positive('empty', 7),
      () => reader.integer('empty', 0, 7),
      () => reader.boolean('empty', true),
      () => reader.oneOf('empty', ['a'], 'a'),
      () => reader.duration('empty', 7),
      () => reader.rate('empty'),
    ];
    for (const read of reads) {
      expect(messageOf(read), String(read)).toMatch(/^expected `x.empty` to be .*, got null$/);
    }
  });

  test.each([
    [{}, 'a number'],
    [{ min: 1 }, 'a number of at least 1'],
    [{ above: 0 }, 'a number above 0'],
    [{ max: 9 }, 'a number at most 9'],
    [{ above: 0, max: 9 }, 'a number above 0 and at most 9'],
    [{ min: 1, max: 9, integer: true }, 'a whole number of at least 1 and at most 9'],
  ])('number within %j: expects %s', (range, words) => {
    const reader = new OptionReader('x', { n: 'nine' });
    expect(messageOf(() => reader.number('n', range))).toBe(
      `expected \`x.n\` to be ${words}, got "nine"`,
    );
  });

  test.each([
    [{ min: 1 }, [1, 1.5, 1e300], [0.999, -1, Number.NaN, Infinity]],
    [{ above: 0 }, [5e-324, 1], [0, -0, -1]],
    [{ max: 9 }, [9, -1e300], [9.001, Infinity, -Infinity]],
    [{ min: 0, max: 0 }, [0], [-1, 1]],
    [{ integer: true }, [0, -3, 2 ** 60], [0.5, Number.NaN, Infinity]],
  ])('number within %j: accepts %j and refuses %j', (range, inside, outside) => {
    for (const n of inside) expect(new OptionReader('x', { n }).number('n', range)).toBe(n);
    for (const n of outside) {
      expect(() => new OptionReader('x', { n }).number('n', range), String(n)).toThrow(ConfigError);
    }
  });

  test('number: checks the default like a given value', () => {
    expect(() => new OptionReader('x', {}).number('initial', { max: 5 }, 9)).toThrow(ConfigError);
  });

  test('duration: accepts finite durations above 0 only', () => {
    const read = (value: unknown) => new OptionReader('x', { t: value }).duration('t', 5);
    expect(read('6s')).toBe(6_000);
    expect(read(0.001)).toBe(0.001);
    for (const value of [0, '0s', -1, Infinity, Number.NaN, `${'9'.repeat(400)}s`]) {
      expect(() => read(value), String(value)).toThrow(ConfigError);
    }
  });

  test('rate: is finite, and so is its reciprocal', () => {
    const read = (value: unknown) => new OptionReader('x', { r: value }).rate('r');
    expect(read('1/6s')).toEqual({ count: 1, periodMs: 6_000 });
    expect(read(1e-300)).toEqual({ count: 1e-300, periodMs: 1_000 });
    for (const value of [
      0,
      -1,
      '0/s',
      '1/0s',
      '0/0s',
      5e-324,
      1e-306,
      `${'9'.repeat(400)}/s`,
      Infinity,
    ]) {
      expect(() => read(value), String(value)).toThrow(ConfigError);
    }
  });

  test('boolean and oneOf: accept true, false and the choices only', () => {
    const reader = new OptionReader('x', { yes: true, no: false, one: 1, word: 'b', other: 'c' });
    expect(reader.boolean('yes', false)).toBe(true);
    expect(reader.boolean('no', true)).toBe(false);
    expect(() => reader.boolean('one', true)).toThrow(
      'expected `x.one` to be true or false, got 1',
    );
    expect(reader.oneOf('word', ['a', 'b'])).toBe('b');
    expect(() => reader.oneOf('other', ['a', 'b'], 'a')).toThrow(
      'expected `x.other` to be one of a, b, got "c"',
    );
  });

  test.each([
    ['trustproxy', ['trustProxy', 'key'], '`trustProxy`'],
    ['trust_proxy', ['trustProxy', 'key'], '`trustProxy`'],
    ['brust', ['rate', 'burst'], '`burst`'],
    ['maxkey', ['max', 'maxKeys'], '`maxKeys`'],
    ['kye', ['key', 'cost'], '`key`'],
    ['at', ['on', 'key'], undefined],
    ['speed', ['rate', 'burst'], undefined],
    ['x'.repeat(500), ['rate'], undefined],
  ])('finish: unknown option %s, known %j: suggests %s', (name, known, close) => {
    const reader = new OptionReader('', { [name]: 1 });
    for (const each of known) reader.get(each);
    const message = messageOf(() => reader.finish());
    expect(message).toContain(`one of ${known.join(', ')}, got `);
    expect(message.split('; ')[1]).toBe(close && `did you mean ${close}?`);
  });

  test.each([
    ['oneOf', 'FIFO', 'did you mean "fifo"?', (r: OptionReader) => r.oneOf('v', ['fifo', 'lifo'])],
    ['oneOf', 'random', undefined, (r: OptionReader) => r.oneOf('v', ['fifo', 'lifo'])],
    ['duration', '6', 'did you mean "6s" or "6ms"?', (r: OptionReader) => r.duration('v')],
    ['rate', '10 per min', 'did you mean "10/min"?', (r: OptionReader) => r.rate('v')],
  ])('%s: %j gets the hint %s', (_, v, hint, read) => {
    const message = messageOf(() => read(new OptionReader('x', { v })));
    expect(message.split('; ')[1]).toBe(hint);
  });

  test('the hint survives a longer path and a merge', () => {
    const error = ConfigError.unknownName('b', 'rat', ['rate']);
    const other = new ConfigError('c', 'left out', 1);
    expect(ConfigError.merge([error, other]).prefixedWith('a').message).toBe(
      'expected `a.b` to be one of rate, got "rat"; did you mean `rate`?',
    );
  });
});

describe('preview', () => {
  const cycle: unknown[] = [];
  cycle.push(cycle);
  const unprintable = Object.assign(Object.create(null), { toJSON: () => cycle });
  test.each([
    ['undefined', undefined, 'undefined'],
    ['null', null, 'null'],
    ['a string', 'a', '"a"'],
    ['a bigint', 5n, '5'],
    ['a function', () => 1, 'a function'],
    ['an object without a string form', unprintable, 'an unprintable value'],
    ['a long string', 'x'.repeat(100), `"${'x'.repeat(59)}…`],
  ])('%s', (_, value, text) => {
    expect(preview(value)).toBe(text);
  });
});
