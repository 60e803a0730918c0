import fc from 'fast-check';
import { expect, test } from 'vitest';
import { groupFractions } from './fractions.ts';

const groups = (...weights: [weight: number, min?: number][]) =>
  new Map(weights.map(([weight, min = 0], n) => ['abcdefghij'[n], { weight, min }]));

test.each([
  [groups([1], [1]), [0.5, 0.5]],
  [groups([2], [1], [1]), [0.5, 0.25, 0.25]],
  [groups([8], [1], [1, 0.2]), [0.8 * (8 / 9), 0.8 / 9, 0.2]],
  [groups([1], [0]), [1, 0]],
  [groups([1], [0, 0.1]), [0.9, 0.1]],
  [groups([7, 0.1], [2, 0.2], [1, 0.2]), [0.6, 0.2, 0.2]],
  [groups([1, 0.5], [1, 0.5]), [0.5, 0.5]],
])('group fractions of %o', (weights, expected) => {
  expect([...groupFractions(weights).values()]).toEqual(
    expected.map((part) => expect.closeTo(part, 9)),
  );
});

test('group fractions: add up to 1, and no group has less than its min', () => {
  const groupWeight = fc.record({
    weight: fc.double({ min: 0.01, max: 10, noNaN: true }),
    min: fc.double({ min: 0, max: 0.1, noNaN: true }),
  });
  fc.assert(
    fc.property(fc.array(groupWeight, { minLength: 2, maxLength: 10 }), (weights) => {
      const named = new Map(weights.map((group, n) => [`${n}`, group]));
      const parts = groupFractions(named);
      const sum = [...parts.values()].reduce((all, part) => all + part, 0);
      expect(sum).toBeCloseTo(1, 9);
      for (const [name, { min }] of named)
        expect(parts.get(name)).toBeGreaterThanOrEqual(min - 1e-9);
    }),
  );
});

test('group fractions: refuses groups without any weight, unless min add up to 1', () => {
  expect(() => groupFractions(groups([0, 0.5], [0]))).toThrow(
    'at least one has a `weight` above 0',
  );
  expect([...groupFractions(groups([0, 0.5], [0, 0.5])).values()]).toEqual([0.5, 0.5]);
});

test('group fractions: refuses min that add up to more than 1', () => {
  expect(() => groupFractions(groups([1, 0.6], [1, 0.6]))).toThrow('`min` add up to at most 1');
});
