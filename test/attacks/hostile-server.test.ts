/** Attacks a program by the replies it reads: of a server behind `throttleFetch`. */

import { describe, expect, test } from 'vitest';
import { parseQuota } from '../../src/adapters/fetch-headers.ts';

/** Far above what linear work takes on a busy machine, far below what quadratic work takes. */
const MAX_MS = 3000;

function msOf(work: () => void): number {
  const startedAt = performance.now();
  work();
  return performance.now() - startedAt;
}

describe('throttleFetch', () => {
  test.each([
    ['commas', ','],
    ['semicolons', ';'],
    ['quotes', '",'],
    ['items', 'a;r=1,'],
    ['empty strings', '"",'],
  ])('reads a RateLimit header of many %s in linear time', (_, part) => {
    const ratelimit = part.repeat(150_000 / part.length);
    expect(msOf(() => parseQuota(new Headers({ ratelimit }), 0))).toBeLessThan(MAX_MS);
  });
});
