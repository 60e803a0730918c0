import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import axios from 'axios';
import got from 'got';
import OpenAI from 'openai';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type FetchCallOptions, throttleFetch } from '../src/adapters/fetch.ts';
import { limiter, throttle } from '../src/index.ts';

let server: Server;
let url: string;
let requests: number;
/** The response to the first request; the others are served. */
let first: { status: number; headers?: Record<string, string> };

beforeAll(async () => {
  server = createServer((_request, response) => {
    requests++;
    const { status, headers } = requests === 1 ? first : { status: 200, headers: {} };
    response.writeHead(status, { 'content-type': 'application/json', ...headers });
    response.end('{"data":[]}');
  });
  await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/`;
});

beforeEach(() => {
  requests = 0;
  first = { status: 429, headers: { 'retry-after-ms': '30', 'retry-after': '1' } };
});

afterAll(() => {
  server.closeAllConnections();
  server.close();
});

const CLIENTS: readonly (readonly [string, () => Promise<unknown>])[] = [
  ['axios', () => axios.get(url)],
  ['got', () => got(url, { retry: { limit: 0 } }).json()],
  ['openai', () => new OpenAI({ apiKey: 'x', baseURL: url, maxRetries: 0 }).models.list()],
  [
    'a fetch wrapper',
    async () => {
      const response = await fetch(url);
      if (!response.ok) throw Object.assign(new Error('refused'), { response });
      return response.json();
    },
  ],
];

describe.each(CLIENTS)('retry: true around %s', (_name, send) => {
  const start = () => {
    const api = limiter({ limit: { bucket: { rate: '1000/s' } } });
    return { api, call: throttle(send, { limiter: api, retry: true }) };
  };

  test('retries a thrown 429 after its Retry-After', async () => {
    const { api, call } = start();
    const since = performance.now();
    await call();
    expect(performance.now() - since).toBeGreaterThan(29);
    expect([requests, api.stats().settled]).toMatchObject([2, { busy: 1, ok: 1 }]);
  });

  test('does not retry a thrown 404', async () => {
    first = { status: 404 };
    const { api, call } = start();
    await expect(call()).rejects.toThrow();
    expect([requests, api.stats().settled]).toMatchObject([1, { failed: 1 }]);
  });
});

describe('throttleFetch with headers of providers', () => {
  type Options = Omit<FetchCallOptions<typeof fetch>, 'key'>;

  const stateAfter = async (headers: Record<string, string>, options: Options = {}) => {
    requests = 0;
    first = { status: 200, headers };
    const api = limiter({ limit: { bucket: { rate: '1/h', burst: 100 } }, maxCooldown: '1h' });
    await throttleFetch({ limiter: api, ...options })(url);
    const { origin } = new URL(url);
    const decision = api.peek(origin);
    const cooldownMs = decision.verdict === 'deny' ? decision.retryAfterMs : 0;
    return { remaining: Math.floor(api.inspect(origin).remaining), cooldownMs };
  };

  test('tokens of OpenAI that are used up: a cool-down until their reset', async () => {
    const { cooldownMs } = await stateAfter({
      'x-ratelimit-remaining-requests': '59',
      'x-ratelimit-reset-requests': '1s',
      'x-ratelimit-remaining-tokens': '0',
      'x-ratelimit-reset-tokens': '6m0s',
    });
    expect(cooldownMs).toBeGreaterThan(300_000);
    expect(cooldownMs).toBeLessThanOrEqual(360_000);
  });

  test('requests of Anthropic that are used up: a cool-down until their reset', async () => {
    const date = new Date();
    const { cooldownMs } = await stateAfter({
      date: date.toUTCString(),
      'anthropic-ratelimit-requests-remaining': '0',
      'anthropic-ratelimit-requests-reset': new Date(date.getTime() + 60_000).toISOString(),
    });
    expect(cooldownMs).toBeGreaterThan(30_000);
    expect(cooldownMs).toBeLessThanOrEqual(61_000);
  });

  test('rateLimitHeaders: tokens of a limit that counts tokens lower its bucket', async () => {
    const headers = { 'x-ratelimit-remaining-tokens': '7', 'x-ratelimit-reset-tokens': '6m0s' };
    const { remaining } = await stateAfter(headers, { rateLimitHeaders: 'tokens' });
    expect(remaining).toBe(7);
    expect((await stateAfter(headers)).remaining).toBe(99); // of a limit that counts requests
  });

  test('a hostile reset is bounded by maxCooldown', async () => {
    const { cooldownMs } = await stateAfter({
      'x-ratelimit-remaining-requests': '0',
      'x-ratelimit-reset-requests': '99999d',
    });
    expect(cooldownMs).toBeGreaterThan(3_500_000);
    expect(cooldownMs).toBeLessThanOrEqual(3_600_000);
  });

  test('retryAfter reads the pause from a response', async () => {
    const { cooldownMs } = await stateAfter(
      { 'x-pause': '90' },
      { retryAfter: (response) => Number(response.headers.get('x-pause')) * 1000 },
    );
    expect(cooldownMs).toBeGreaterThan(60_000);
    expect(cooldownMs).toBeLessThanOrEqual(90_000);
  });

  test('Retry-After-Ms of a 429 is waited for, and not the reset', async () => {
    first = {
      status: 429,
      headers: {
        'retry-after-ms': '30',
        'x-ratelimit-remaining-tokens': '0',
        'x-ratelimit-reset-tokens': '6m0s',
      },
    };
    const api = limiter({ limit: { bucket: { rate: '1000/s' } } });
    const response = await throttleFetch({ limiter: api, retry: true })(url);
    expect([response.status, requests]).toEqual([200, 2]);
  });
});
