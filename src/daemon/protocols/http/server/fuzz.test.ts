/**
 * Fuzzes the HTTP handler with random requests, and with valid ones of which a few bytes are changed.
 *
 *     RUNS=25 npx vitest run src/daemon/protocols/http/server/fuzz.test.ts     FUZZ_SEED=7: other requests
 */

import { validateHeaderName, validateHeaderValue } from 'node:http';
import { describe, expect, test } from 'vitest';
import { createHttpServer } from '../../../../../test/support/http-protocol.ts';
import { runs } from '../../../../../test/support/runs.ts';
import { SeededGenerator } from '../../../../../test/support/seeded-generator.ts';
import { VirtualClock } from '../../../../testing/index.ts';
import { readHttpSection } from '../../../config/http.ts';
import { createKeyExtractor, type RequestHead } from '../key.ts';
import { readParameters } from '../parameters.ts';
import type { HttpResponse } from '../response.ts';

const COUNT = runs(40_000);
const SEED = Number(process.env.FUZZ_SEED ?? 1);
const MINUTES_MS = 60_000;

const METHODS = ['GET', 'POST', 'HEAD', 'PUT', 'DELETE', 'OPTIONS', 'PROPFIND', ''];

const URLS = [
  '/check?limit=api&key=alice&cost=2&hold=1&status=403',
  '/check?key=caf%C3%A9+7&limit=jobs&hold=true',
  '/check',
  '/check;limit=api&status=429/path/of/a?client=1',
  '/batch',
  '/settle?permit=1&outcome=ok&used=1&rttMs=2.5&retryAfterMs=0',
  '/settle',
  '/check?check=api@2,alice&check-header=jobs,X-Key&check=*,caf%C3%A9&hold=1&status=403',
  '/take?limit=api&key=alice&max=3&hold=1',
  '/give?permit=1-0&unused=2',
  '/inspect?key=alice&limit=api',
  '/explain?key=%ff%00',
  '/limits',
  '/history?since=7',
  '/page/page.js',
  '/page/state',
  '/top?span=hour&max=5',
  '/denials?key=alice&limit=api&since=10m&max=7',
  '/metrics',
  '/feed',
  '/reload',
  '/readyz',
  '/',
  'http://localhost:80/check?key=a',
  '*',
];

const BODIES = [
  '{"limit":"api","key":"alice","cost":1.5,"hold":true,"status":403}',
  '[{"key":"a"},{"key":"café","limit":"jobs","hold":true},{"key":"eve","cost":0}]',
  '{"checks":[{"limit":"api","key":"alice"},{"key":"é","cost":2}],"hold":true,"status":403}',
  '{"permit":"1-0","outcome":"failed","used":0,"rttMs":12,"retryAfterMs":1000}',
  '{"__proto__":{"key":"a"},"constructor":1}',
  'limit=api&key=alice&cost=1&hold=0',
  'permit=3&outcome=busy&rttMs=7',
  '[[[[[[[[',
  '',
];

/** Fragments that break parsers. */
const FRAGMENTS = [
  '%',
  '%%',
  '%zz',
  '&',
  '=',
  '&&key=',
  '+',
  '#',
  '?',
  '/',
  '\\',
  '"',
  '\0',
  '\xff',
  '\xc3',
].concat([
  '1e999',
  '-1',
  'NaN',
  '9'.repeat(20),
  '__proto__',
  'null',
  '[',
  '{',
  ',',
  ' ',
  'key=',
  'limit=',
  '\u2028',
]);

const TYPES = [
  'application/json',
  'application/x-www-form-urlencoded',
  'Application/JSON; charset=utf-8',
].concat(['text/plain', '', ';', 'application/json,']);

/** Removes, doubles or replaces parts of a text. */
function mutated(random: SeededGenerator, text: string): string {
  let result = text;
  for (let times = random.below(4); times > 0; times--) {
    const [from, length] = [random.below(result.length + 1), random.below(6)];
    const middle = random.oneOf([
      '',
      random.oneOf(FRAGMENTS),
      random.binaryString(6),
      result.slice(from, from + length).repeat(2),
    ]);
    result = result.slice(0, from) + middle + result.slice(from + length);
  }
  return result;
}

function requestOf(random: SeededGenerator): {
  request: RequestHead;
  body: Buffer;
  isLoopback: boolean;
} {
  const url =
    random.below(20) === 0 ? random.binaryString(60) : mutated(random, random.oneOf(URLS));
  const headers: Record<string, string> = {
    host: 'localhost',
    'content-type': random.oneOf(TYPES),
  };
  const names = [
    'x-forwarded-for',
    'x-real-ip',
    'authorization',
    'origin',
    'host',
    'x-forwarded-uri',
  ];
  for (let n = random.below(3); n > 0; n--) {
    const values = ['192.0.2.1, ::1', 'Bearer secret', 'http://localhost', '[::1]:80', ''];
    headers[random.oneOf(names)] = mutated(random, random.oneOf(values));
  }
  const text = random.below(3) === 0 ? '' : mutated(random, random.oneOf(BODIES));
  const remoteAddress = random.oneOf([undefined, '127.0.0.1', '::ffff:10.0.0.1', 'nonsense']);
  return {
    request: { method: random.oneOf(METHODS), url, headers, socket: { remoteAddress } },
    body: Buffer.from(text, random.below(2) === 0 ? 'latin1' : 'utf8'),
    isLoopback: random.below(4) > 0,
  };
}

const STATUSES = [200, 308, 400, 401, 403, 404, 405, 415, 422, 429, 503];

/** Every response is valid HTTP, and its body agrees with its status. */
function requireValid({ status, headers, body, isEventStream }: HttpResponse, sent: string): void {
  const isRequested = sent.includes('status') && status >= 400 && status <= 599;
  if (!STATUSES.includes(status) && !isRequested) throw new Error(`status ${status}: ${body}`);
  for (let n = 0; n < headers.length; n += 2) {
    validateHeaderName(headers[n]);
    validateHeaderValue(headers[n], headers[n + 1]);
  }
  const type = headers[headers.indexOf('Content-Type') + 1];
  if (type.endsWith('json') && !isEventStream) JSON.parse(body);
  if (type === 'application/problem+json' && JSON.parse(body).status !== status) {
    throw new Error(`status ${status}, but ${body}`);
  }
}

describe('HTTP handler fuzz', () => {
  test(
    'random requests: every response is valid',
    async () => {
      const random = new SeededGenerator(SEED);
      const failed: unknown[] = [];
      const clock = new VirtualClock(1e9);
      const { handler } = createHttpServer({
        clock,
        limits: {
          api: { bucket: { rate: '1/s', burst: 3 }, deny: 'mallory' },
          jobs: { concurrency: 3, permitTimeout: '1000h', match: { regex: 'c.*' } },
          paced: { spacing: { every: '1s' }, match: 'x*', always: true },
        },
        deny: 'eve',
        extractKey: createKeyExtractor(readHttpSection({ trustProxy: 1, prefix: 'ip:' }, 'http')),
        bounds: { maxKey: 64, maxBatch: 2 },
        onError: (error) => failed.push(error),
      });
      const seen = new Set<number>();
      for (let n = 0; n < COUNT; n++) {
        const { request, body, isLoopback } = requestOf(random);
        const response = await handler.handle(request, isLoopback, body);
        try {
          requireValid(response, request.url + body.toString('latin1'));
        } catch (error) {
          throw new Error(`${JSON.stringify({ request, body: body.toString('latin1') })}`, {
            cause: error,
          });
        }
        seen.add(response.status);
        if (n % 64 === 0) clock.advance(500);
        if (failed.length > 0) throw new Error(JSON.stringify(request), { cause: failed[0] });
      }
      for (const status of [200, 400, 403, 404, 405, 415, 429]) expect(seen).toContain(status);
    },
    30 * MINUTES_MS,
  );

  test('random keys: survive percent-encoding byte by byte', () => {
    const random = new SeededGenerator(SEED + 1);
    for (let n = 0; n < COUNT / 10; n++) {
      const key = random.binaryString(20);
      const escaped = [...key].map((char) => {
        const hex = char.charCodeAt(0).toString(16).padStart(2, '0');
        const isPlain = /[\w.~\x80-\xff-]/.test(char) && random.below(2) === 0;
        return isPlain ? char : `%${random.below(2) === 0 ? hex : hex.toUpperCase()}`;
      });
      expect(readParameters(`limit=a&key=${escaped.join('')}`, 0, ['key', 'limit'])).toEqual([
        key,
        'a',
      ]);
    }
  });
});
