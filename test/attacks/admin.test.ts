import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { prometheus } from '../../src/adapters/metrics/index.ts';
import { limiter } from '../../src/limiter/limiter.ts';
import { daemonFixture, EPHEMERAL_PORTS, exchange, type RunningDaemon } from '../support/daemon.ts';
import { parseExposition } from '../support/exposition.ts';

const TOKEN = 'hunter2hunter2hunter2';
const fixture = daemonFixture();
let daemon: RunningDaemon;
let listed: readonly (readonly [method: string, path: string])[];

beforeAll(async () => {
  const config = 'limits: { calls: { adaptive: { initial: 2 } } }\n';
  const file = fixture.place().file('sluice.yaml', config);
  const env = { SLUICE_ADMIN_TOKEN: TOKEN };
  daemon = await fixture.start([...EPHEMERAL_PORTS, '--config', file], env);
  const help = await get('/', `Authorization: Bearer ${TOKEN}\r\n`);
  listed = [...help.matchAll(/^ {2}(GET|POST) +(\/[\w-]*)/gm)].map(([, method, path]) => [
    method,
    path,
  ]);
});
afterAll(() => fixture.end());

const send = (line: string, headers = ''): Promise<string> =>
  exchange(
    daemon.addresses.http[0],
    `${line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n${headers}\r\n`,
  );
const get = (path: string, headers = ''): Promise<string> => send(`GET ${path}`, headers);
const statusOf = (reply: string): number => Number(/^HTTP\/1\.1 (\d+)/.exec(reply)?.[1]);

/** Endpoints for clients. */
const PUBLIC = [
  '/check',
  '/batch',
  '/settle',
  '/take',
  '/give',
  '/take-up-to',
  '/give-back',
  '/report',
  '/healthz',
  '/page',
];

describe('admin endpoints', () => {
  test('every listed endpoint that is not for clients replies 401 without the token', async () => {
    const guarded = [['GET', '/'] as const, ...listed].filter(([, path]) => !PUBLIC.includes(path));
    expect(guarded.length).toBeGreaterThan(8);
    for (const [method, path] of guarded) {
      const reply = await send(`${method} ${path}?key=a`, 'Content-Length: 0\r\n');
      expect({ path, status: statusOf(reply) }).toEqual({ path, status: 401 });
    }
  });

  test('path of a client behind /check: is a check, and no admin page', async () => {
    for (const path of ['/check/../inspect', '/check;/../inspect', '/check;cost=0/metrics']) {
      const reply = await get(`${path}?key=a`);
      expect([path, reply]).toEqual([path, expect.stringMatching(/\r\n\r\n{"verdict":"allow"/)]);
    }
  });

  test.each([
    [
      'no spelling of the path',
      [
        '//inspect',
        '/inspect/',
        '/INSPECT',
        '/%69nspect',
        '/healthz/../inspect',
        '/./inspect',
        'http://localhost/inspect',
        '/inspect#',
        '/inspect;x',
        '/check%2f..%2finspect',
        '/inspect%00',
        '/\\inspect',
      ].map((path) => [`GET ${path}?key=a`, '']),
    ],
    [
      'no method',
      ['HEAD', 'OPTIONS', 'PUT', 'TRACE', 'PROPFIND'].map((method) => [
        `${method} /inspect?key=a`,
        '',
      ]),
    ],
    [
      'no header',
      [
        'Bearer',
        'Bearer ',
        `Bearer ${TOKEN}x`,
        `Bearer ${TOKEN.slice(1)}`,
        `Bearer x ${TOKEN}`,
        `Basic ${TOKEN}`,
        TOKEN,
        'Bearer undefined',
        'Bearer null',
      ].map((value) => ['GET /inspect?key=a', `Authorization: ${value}\r\n`]),
    ],
    [
      'no forwarded address',
      [
        'X-Forwarded-For: 127.0.0.1',
        'X-Original-URL: /inspect',
        'X-Rewrite-URL: /inspect',
        'X-HTTP-Method-Override: GET',
      ].map((header) => ['GET /inspect?key=a', `${header}\r\n`]),
    ],
  ])('%s gives access', async (_, requests) => {
    for (const [line, headers] of requests) {
      const reply = await send(line, headers);
      expect({ line, headers, isRefused: statusOf(reply) >= 400 }).toEqual({
        line,
        headers,
        isRefused: true,
      });
      expect(reply).not.toContain('"limits"');
    }
  });

  test('the token is in no log line, page or error', async () => {
    const authorization = `Authorization: Bearer ${TOKEN}\r\n`;
    const pages = await Promise.all(
      listed.map(([method, path]) =>
        path === '/feed'
          ? ''
          : send(`${method} ${path}?key=a`, `${authorization}Content-Length: 0\r\n`),
      ),
    );
    expect(pages.map(statusOf)).toContain(200);
    expect([...pages, daemon.log(), daemon.out()].join('\n')).not.toContain(TOKEN);
  });
});

/** Ends a label and adds a series, if it is not escaped. */
const FORGING = 'a"} 1\nsluice_forged{x="\\';

test('metrics of the daemon: keys of clients are no labels', async () => {
  for (let n = 0; n < 3; n++) await get(`/check?key=${encodeURIComponent(FORGING)}&hold=1`);
  // A client that half-closes its connection gets no reply that takes more than a turn: Node ends the connection.
  const headers = { authorization: `Bearer ${TOKEN}` };
  const reply = await fetch(`http://${daemon.addresses.http[0]}/metrics`, { headers });
  const text = await reply.text();
  expect(text).not.toContain('sluice_forged');
  expect(parseExposition(text).length).toBeGreaterThan(10);
});

test('metrics of a limiter: a key with quotes, backslashes and newlines is one label', async () => {
  const api = limiter({ limit: { adaptive: { initial: 2 } } });
  const metrics = prometheus(api);
  const permit = await api.acquire(FORGING);
  if (permit.verdict !== 'allow') return expect.unreachable();
  permit.settle({ outcome: 'ok', rttMs: 5 });
  const families = parseExposition(metrics.text());
  const keys = families.flatMap(({ samples }) => samples.flatMap(({ labels }) => labels.key ?? []));
  expect(new Set(keys)).toEqual(new Set([FORGING]));
  expect(families.map(({ name }) => name)).not.toContain('sluice_forged');
  metrics.stop();
  await api.close();
});
