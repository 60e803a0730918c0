import fc from 'fast-check';
import { expect, test } from 'vitest';
import { groupFractions } from './allotments.ts';

const groups = (...claims: [weight: number, min?: number][]) =>
  new Map(claims.map(([weight, min = 0], n) => ['abcdefghij'[n], { weight, min }]));

test.each([
  [groups([1], [1]), [0.5, 0.5]],
  [groups([2], [1], [1]), [0.5, 0.25, 0.25]],
  [groups([8], [1], [1, 0.2]), [0.8 * (8 / 9), 0.8 / 9, 0.2]],
  [groups([1], [0]), [1, 0]],
  [groups([1], [0, 0.1]), [0.9, 0.1]],
  [groups([7, 0.1], [2, 0.2], [1, 0.2]), [0.6, 0.2, 0.2]],
  [groups([1, 0.5], [1, 0.5]), [0.5, 0.5]],
])('%o', (claims, expected) => {
  expect([...groupFractions(claims).values()]).toEqual(
    expected.map((part) => expect.closeTo(part, 9)),
  );
});

test('add up to one, and nobody has less than it was guaranteed', () => {
  const claim = fc.record({
    weight: fc.double({ min: 0.01, max: 10, noNaN: true }),
    min: fc.double({ min: 0, max: 0.1, noNaN: true }),
  });
  fc.assert(
    fc.property(fc.array(claim, { minLength: 2, maxLength: 10 }), (claims) => {
      const named = new Map(claims.map((own, n) => [`${n}`, own]));
      const parts = groupFractions(named);
      const sum = [...parts.values()].reduce((all, part) => all + part, 0);
      expect(sum).toBeCloseTo(1, 9);
      for (const [name, { min }] of named)
        expect(parts.get(name)).toBeGreaterThanOrEqual(min - 1e-9);
    }),
  );
});

test('refuses to give nobody what is not guaranteed', () => {
  expect(() => groupFractions(groups([0, 0.5], [0]))).toThrow('one has a `weight` above 0');
  expect([...groupFractions(groups([0, 0.5], [0, 0.5])).values()]).toEqual([0.5, 0.5]);
});

test('refuses to guarantee more than there is', () => {
  expect(() => groupFractions(groups([1, 0.6], [1, 0.6]))).toThrow('guaranteed at most 1 in all');
});
