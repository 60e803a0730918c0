import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { isBackPressure, parseQuota, parseRetryAfter } from './fetch-headers.ts';

const NOW = Date.parse('2026-01-01T00:00:00Z');
const of = (headers: Record<string, string>): Headers => new Headers(headers);

describe('fetch-headers', () => {
  test('isBackPressure: 408, 429 and 5xx but 501', () => {
    const statuses = [200, 204, 301, 400, 401, 404, 408, 418, 429, 500, 501, 502, 503, 504, 599];
    expect(statuses.filter(isBackPressure)).toEqual([408, 429, 500, 502, 503, 504, 599]);
  });

  test.each([
    [{ 'retry-after': '120' }, 120_000],
    [{ 'retry-after': ' 0 ' }, 0],
    [{ 'retry-after': 'Thu, 01 Jan 2026 00:00:05 GMT' }, 5000],
    // The server's clock is an hour behind: the difference to its own Date counts.
    [
      {
        'retry-after': 'Wed, 31 Dec 2025 23:00:05 GMT',
        date: 'Wed, 31 Dec 2025 23:00:00 GMT',
      },
      5000,
    ],
    [{ 'retry-after': 'Mon, 01 Jan 2024 00:00:00 GMT' }, 0],
    [{ 'retry-after': '9'.repeat(400) }, undefined],
    [{ 'retry-after': 'soon' }, undefined],
    [{ 'retry-after': '-5' }, undefined],
    [{}, undefined],
  ])('parseRetryAfter: %j is %s ms', (headers, expected) => {
    expect(parseRetryAfter(of(headers as Record<string, string>), NOW)).toBe(expected);
  });

  test.each([
    [{ ratelimit: '"default";r=50;t=30' }, { remaining: 50, resetMs: 30_000 }],
    [{ ratelimit: '"day";r=900;t=3600, "burst";r=5;t=2' }, { remaining: 5, resetMs: 2000 }],
    [{ ratelimit: '"a, b;r=1";r=7' }, { remaining: 7 }],
    [{ ratelimit: 'limit=10, remaining=5, reset=2' }, { remaining: 5, resetMs: 2000 }],
    [
      { 'ratelimit-remaining': '3', 'ratelimit-reset': '9' },
      { remaining: 3, resetMs: 9000 },
    ],
    [
      { 'x-ratelimit-remaining': '0', 'x-ratelimit-reset': '60' },
      { remaining: 0, resetMs: 60_000 },
    ],
    [
      { 'x-ratelimit-remaining': '0', 'x-ratelimit-reset': String(NOW / 1000 + 8) },
      { remaining: 0, resetMs: 8000 },
    ],
    [{ 'x-ratelimit-remaining': '4' }, { remaining: 4 }],
    [{ ratelimit: 'nonsense' }, undefined],
    [{ ratelimit: 'nonsense', 'x-ratelimit-remaining': '0' }, { remaining: 0 }],
    [{ 'x-ratelimit-remaining': 'many' }, undefined],
    [{}, undefined],
  ])('parseQuota: %j gives %j', (headers, expected) => {
    expect(parseQuota(of(headers as Record<string, string>), NOW)).toEqual(expected);
  });

  test('never throws, whatever the headers contain', () => {
    const names = [
      'ratelimit',
      'retry-after',
      'x-ratelimit-remaining',
      'x-ratelimit-reset',
      'date',
    ];
    const anything = fc.record({ name: fc.constantFrom(...names), value: fc.string() });
    fc.assert(
      fc.property(fc.array(anything), (given) => {
        const values = new Map(given.map(({ name, value }) => [name, value]));
        const headers = { get: (name: string) => values.get(name) ?? null };
        const later = parseRetryAfter(headers, NOW);
        const quota = parseQuota(headers, NOW);
        expect(later === undefined || later >= 0).toBe(true);
        expect(quota === undefined || quota.remaining >= 0).toBe(true);
      }),
    );
  });
});
