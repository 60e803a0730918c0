import { describe, expect, test } from 'vitest';
import { addPart, splitPlain } from './plain-parts.ts';

const join = (parts: ReturnType<typeof splitPlain>): object => {
  const root = {};
  for (const part of parts) addPart(root, structuredClone(part));
  return root;
};

const valuesIn = (value: unknown): number =>
  typeof value === 'object' && value !== null
    ? 1 + Object.values(value).reduce((sum: number, each) => sum + valuesIn(each), 0)
    : 1;

describe('plain parts', () => {
  const overrides = Array.from({ length: 5000 }, (_, n) => ({
    match: n === 1234 ? Array.from({ length: 9000 }, (_, m) => `k${m}`) : `key-${n}`,
    bucket: { rate: '1/s', burst: n },
  }));
  const value = {
    folder: 'x',
    value: {
      limits: Object.fromEntries(
        Array.from({ length: 1000 }, (_, n) => [`limit-${n}`, { bucket: { rate: n, burst: 1 } }]),
      ),
      large: { overrides, match: [], none: null, text: 'y', deep: [[[1, [2]], {}]] },
      ...JSON.parse('{"__proto__": {"a": 1}}'),
    },
  };

  test('plain parts: joined, they are the value again', () => {
    const joined = join(splitPlain(value));
    expect(joined).toEqual(value);
    expect(JSON.stringify(joined)).toBe(JSON.stringify(value));
  });

  test('plain parts: none of them has many values', () => {
    const parts = splitPlain(value);
    expect(parts.length).toBeGreaterThan(10);
    for (const { entries } of parts) expect(valuesIn(entries)).toBeLessThan(10_000);
  });

  test('plain parts: a small value is one part', () => {
    expect(splitPlain({ value: { a: [1, 2] } })).toHaveLength(1);
    expect(join(splitPlain({ value: undefined }))).toEqual({ value: undefined });
  });
});
