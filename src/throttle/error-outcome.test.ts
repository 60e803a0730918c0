import { describe, expect, test } from 'vitest';
import { outcomeOfError, retryAfterOfError } from './error-outcome.ts';

const NOW = Date.parse('2026-01-01T00:00:00Z');
const plain = { 'Retry-After': '2' };
const web = new Headers(plain);

describe('error-outcome', () => {
  test.each([
    ['openai, Anthropic', { status: 429, headers: web }, 'busy', 2000],
    ['axios, Octokit', { status: 429, response: { status: 429, headers: plain } }, 'busy', 2000],
    ['ky, fetch wrappers', { response: { status: 503, headers: web } }, 'busy', 2000],
    ['a thrown Response', new Response(null, { status: 429, headers: plain }), 'busy', 2000],
    ['got', { response: { statusCode: 429, headers: { 'retry-after': '2' } } }, 'busy', 2000],
    ['Stripe', { statusCode: 429, headers: { 'retry-after': ['2'] } }, 'busy', 2000],
    ['AWS', { $metadata: { httpStatusCode: 503 }, $response: { headers: plain } }, 'busy', 2000],
    [
      'AWS with status 400',
      { name: 'ThrottlingException', $metadata: { httpStatusCode: 400 }, retryAfterSeconds: '2' },
      'busy',
      2000,
    ],
    [
      'AWS, marked as throttling',
      { $metadata: { httpStatusCode: 400 }, $retryable: { throttling: true } },
      'busy',
      undefined,
    ],
    [
      'AWS, a mistake',
      { name: 'ValidationException', $metadata: { httpStatusCode: 400 } },
      'failed',
      undefined,
    ],
    ['a wrapper', new Error('mine', { cause: { status: 429, headers: web } }), 'busy', 2000],
    ['a status as a string', { status: '429' }, 'busy', undefined],
    ['404, which asks for no pause', { status: 404, headers: web }, 'failed', undefined],
    ['501', { status: 501 }, 'failed', undefined],
    ['a status that is none', { status: 'RESOURCE_EXHAUSTED', code: 7 }, 'failed', undefined],
    ['TimeoutError', new DOMException('late', 'TimeoutError'), 'timeout', undefined],
    ['a timeout of axios', { code: 'ECONNABORTED' }, 'timeout', undefined],
    [
      'connection refused',
      new TypeError('x', { cause: { code: 'ECONNREFUSED' } }),
      'busy',
      undefined,
    ],
    ['abort by the caller', new DOMException('enough', 'AbortError'), 'failed', undefined],
    ['a string', 'no', 'failed', undefined],
    ['nothing', undefined, 'failed', undefined],
    [
      'a Retry-After that is none',
      { status: 429, headers: { 'retry-after': '-1' } },
      'busy',
      undefined,
    ],
  ])('%s', (_, error, outcome, retryAfterMs) => {
    expect(outcomeOfError(error)).toBe(outcome);
    expect(retryAfterOfError(error, NOW)).toBe(retryAfterMs);
  });

  test('an error that throws when it is read, or causes itself, is failed', () => {
    const trap = (): never => {
      throw new Error('trap');
    };
    const thrower = new Proxy({}, { get: trap });
    const cycle = new Error('cycle');
    cycle.cause = cycle;
    for (const error of [thrower, cycle]) {
      expect(outcomeOfError(error)).toBe('failed');
      expect(retryAfterOfError(error, NOW)).toBeUndefined();
    }
  });
});
