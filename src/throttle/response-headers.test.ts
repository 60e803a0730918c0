import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { isBackPressure, parseQuota, parseRetryAfter } from './response-headers.ts';

const NOW = Date.parse('2026-01-01T00:00:00Z');
const of = (headers: Record<string, string>): Headers => new Headers(headers);

describe('response-headers', () => {
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
    [{ 'retry-after': '1.5' }, 1500],
    [{ 'retry-after-ms': '1500' }, 1500],
    [{ 'retry-after-ms': '1500', 'retry-after': '2' }, 1500],
    [{ 'retry-after-ms': '-1', 'retry-after': '2' }, 2000],
    [{ 'retry-after-ms': '1e300' }, undefined],
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
    [
      { 'x-ratelimit-remaining-requests': '59', 'x-ratelimit-reset-requests': '1s' },
      { remaining: 59, resetMs: 1000 },
    ],
    // Tokens are no requests: they count only when they are used up.
    [{ 'x-ratelimit-remaining-tokens': '5', 'x-ratelimit-reset-tokens': '6m0s' }, undefined],
    [
      { 'x-ratelimit-remaining-tokens': '0', 'x-ratelimit-reset-tokens': '6m0s' },
      { remaining: 0, resetMs: 360_000 },
    ],
    [
      {
        'x-ratelimit-remaining-requests': '59',
        'x-ratelimit-reset-requests': '1s',
        'x-ratelimit-remaining-tokens-minute': '0',
        'x-ratelimit-reset-tokens-minute': '11.382',
      },
      { remaining: 0, resetMs: 11_382 },
    ],
    [
      { 'x-ratelimit-remaining-requests-day': '0', 'x-ratelimit-reset-requests-day': '1h2m3.5s' },
      { remaining: 0, resetMs: 3_723_500 },
    ],
    [
      { 'x-ratelimit-remaining-requests': '7', 'x-ratelimit-reset-requests': '20ms' },
      { remaining: 7, resetMs: 20 },
    ],
    [
      {
        'x-ratelimit-remaining-requests': '0',
        'x-ratelimit-reset-requests': '2026-01-01T00:00:09Z',
      },
      { remaining: 0, resetMs: 9000 },
    ],
    [
      {
        'anthropic-ratelimit-requests-remaining': '0',
        'anthropic-ratelimit-requests-reset': '2026-01-01T01:00:12.5+01:00',
      },
      { remaining: 0, resetMs: 12_500 },
    ],
    [
      {
        'anthropic-ratelimit-input-tokens-remaining': '0',
        'anthropic-ratelimit-input-tokens-reset': '2026-01-01T00:00:30Z',
        'anthropic-ratelimit-requests-remaining': '0',
        'anthropic-ratelimit-requests-reset': '2026-01-01T00:00:05Z',
      },
      { remaining: 0, resetMs: 30_000 },
    ],
    // An API that reports no limit, and values that are no times.
    [{ 'x-ratelimit-remaining-tokens': '-1', 'x-ratelimit-reset-tokens': '0' }, undefined],
    [
      { 'x-ratelimit-remaining-requests': '0', 'x-ratelimit-reset-requests': `${'9'.repeat(99)}s` },
      { remaining: 0 },
    ],
    [
      {
        'x-ratelimit-remaining-requests': '0',
        'x-ratelimit-reset-requests': '2026-99-01T00:00:00Z',
      },
      { remaining: 0 },
    ],
    [{}, undefined],
  ])('parseQuota: %j gives %j', (headers, expected) => {
    expect(parseQuota(of(headers as Record<string, string>), NOW)).toEqual(expected);
  });

  test('parseQuota: counts the unit of the limit', () => {
    const headers = of({
      'x-ratelimit-remaining-requests': '59',
      'x-ratelimit-remaining-tokens': '149984',
      'x-ratelimit-reset-tokens': '6m0s',
    });
    expect(parseQuota(headers, NOW, 'tokens')).toEqual({ remaining: 149_984, resetMs: 360_000 });
    expect(parseQuota(headers, NOW)).toEqual({ remaining: 59 });
    const unlisted = { get: (name: string) => headers.get(name) };
    expect(parseQuota(unlisted, NOW, 'tokens')).toEqual({ remaining: 149_984, resetMs: 360_000 });
  });

  test('never throws, whatever the headers contain', () => {
    const names = [
      'ratelimit',
      'retry-after',
      'x-ratelimit-remaining',
      'x-ratelimit-reset',
      'date',
      'retry-after-ms',
      'x-ratelimit-remaining-tokens',
      'x-ratelimit-reset-tokens',
      'anthropic-ratelimit-requests-remaining',
      'anthropic-ratelimit-requests-reset',
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
