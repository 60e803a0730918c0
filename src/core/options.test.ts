import { describe, expect, test } from 'vitest';
import { ConfigError } from './errors.ts';
import { OptionReader } from './options.ts';

const messageOf = (read: () => unknown): string => {
  try {
    read();
  } catch (error) {
    if (error instanceof ConfigError) return error.message;
    throw error;
  }
  return 'nobody minded';
};

describe('fields', () => {
  test('are read from an object, and from nothing else', () => {
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

  test('know where they stand', () => {
    expect(new OptionReader('limit.bucket', {}).pathOf('rate')).toBe('limit.bucket.rate');
    expect(new OptionReader('', {}).pathOf('limit')).toBe('limit');
  });

  test('are told all at once by a patient reader, and nothing that only follows from a mistake', () => {
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
    expect([field, ...additionalErrors.map((own) => own.field)]).toEqual([
      ...['x.rate', 'x.over', 'x.mode', 'x.part', 'x.brust'],
    ]);
    const outer = (thrown as ConfigError).prefixedWith('limit');
    expect(outer.additionalErrors.map((own) => own.field)).toContain('limit.x.brust');
  });

  test('that leave no way on are told with those before', () => {
    const reader = OptionReader.collecting('x', { rate: 0 });
    reader.rate('rate');
    expect(() => reader.throwFor('burst', 'there')).toThrow(
      expect.objectContaining({
        field: 'x.rate',
        additionalErrors: [expect.objectContaining({ field: 'x.burst' })],
      }),
    );
  });

  test('that nobody asked for are a mistake, and the message knows the right ones', () => {
    const reader = new OptionReader('x', { rate: 1, brust: 2 });
    reader.rate('rate');
    reader.has('burst');
    expect(messageOf(() => reader.finish())).toBe(
      'expected `x.brust` to be one of rate, burst, got "brust"',
    );
    reader.get('brust');
    expect(messageOf(() => reader.finish())).toBe('nobody minded');
    expect(messageOf(() => new OptionReader('x', { a: 1 }).finish())).toBe(
      'expected `x.a` to be one of nothing, got "a"',
    );
    expect(new OptionReader('x', { a: 1, b: 2 }).names()).toEqual(['a', 'b']);
  });

  test('inherited from elsewhere are not there', () => {
    const reader = new OptionReader('x', Object.create({ burst: 5 }));
    expect(reader.has('burst')).toBe(false);
    expect(reader.has('toString')).toBe(false);
    expect(reader.positive('burst', 3)).toBe(3);
  });

  test('left out, they are what they are by default; without a default they are missed', () => {
    const reader = new OptionReader('x', { gone: undefined });
    expect(reader.number('gone', {}, 7)).toBe(7);
    expect(reader.integer('gone', 0, 7)).toBe(7);
    expect(reader.boolean('gone', true)).toBe(true);
    expect(reader.oneOf('gone', ['a', 'b'], 'b')).toBe('b');
    expect(reader.duration('gone', Infinity)).toBe(Infinity);
    expect(messageOf(() => reader.number('gone', {}))).toBe(
      'expected `x.gone` to be a number, got nothing',
    );
    expect(messageOf(() => reader.oneOf('gone', ['a', 'b']))).toBe(
      'expected `x.gone` to be one of a, b, got nothing',
    );
    expect(messageOf(() => reader.duration('gone'))).toMatch(/got nothing$/);
    expect(messageOf(() => reader.rate('gone'))).toMatch(/got nothing$/);
  });

  // `burst:` with nothing behind it, in a file, is null: somebody meant to write something.
  test('that are null are not left out', () => {
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
  ])('a number within %j is called %s', (range, words) => {
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
  ])('numbers within %j are %j and not %j', (range, inside, outside) => {
    for (const n of inside) expect(new OptionReader('x', { n }).number('n', range)).toBe(n);
    for (const n of outside) {
      expect(() => new OptionReader('x', { n }).number('n', range), String(n)).toThrow(ConfigError);
    }
  });

  test('a fallback is checked like anything else', () => {
    expect(() => new OptionReader('x', {}).number('initial', { max: 5 }, 9)).toThrow(ConfigError);
  });

  test('a duration is longer than nothing and shorter than for ever', () => {
    const read = (value: unknown) => new OptionReader('x', { t: value }).duration('t', 5);
    expect(read('6s')).toBe(6_000);
    expect(read(0.001)).toBe(0.001);
    for (const value of [0, '0s', -1, Infinity, Number.NaN, `${'9'.repeat(400)}s`]) {
      expect(() => read(value), String(value)).toThrow(ConfigError);
    }
  });

  test('a rate is finite both ways', () => {
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

  test('a flag is true or false, a choice one of the choices', () => {
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
});
