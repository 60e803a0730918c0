/**
 * Holds the fast path to Node's HTTP server. Two servers, one with `fastPath: false`, get the same random
 * pipelines: valid requests, requests that parsers disagree on, and either with a few bytes changed. Both
 * must respond the same, however the bytes are cut.
 *
 *     RUNS=25 npx vitest run src/daemon/protocols/http/server/fast-path/equivalence.test.ts     FUZZ_SEED=7: others
 */

import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, describe, expect, test } from 'vitest';
import {
  createHttpServer,
  type HttpServerOptions,
  serveHttp,
} from '../../../../../../test/support/http-protocol.ts';
import { runs } from '../../../../../../test/support/runs.ts';
import { SeededGenerator } from '../../../../../../test/support/seeded-generator.ts';
import { VirtualClock } from '../../../../../testing/index.ts';
import { readHttpSection } from '../../../../config/http.ts';
import { MAX_HEADER_BYTES, MAX_HEADERS } from '../../bounds.ts';
import { createKeyExtractor } from '../../key.ts';
import type { HttpServer } from '../server.ts';
import { tryParseCheck } from './parse.ts';

const COUNT = runs(40_000);
const SEED = Number(process.env.FUZZ_SEED ?? 1);
const MINUTES_MS = 60_000;

const open: { stop(): unknown }[] = [];

afterEach(async () => {
  await Promise.all(open.splice(0).map((each) => each.stop()));
});

interface RunningServer {
  readonly httpServer: HttpServer;
  readonly port: number;
}

async function start(options: HttpServerOptions): Promise<RunningServer> {
  const httpServer = createHttpServer({ clock: new VirtualClock(1e9), ...options });
  const running = await serveHttp(httpServer);
  open.push(running);
  return { httpServer, port: running.port };
}

/** Sends chunks and returns everything received until the server closes. */
async function exchange(port: number, chunks: readonly string[]): Promise<string> {
  let text = '';
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true, noDelay: true });
  socket.setEncoding('latin1').on('data', (chunk) => {
    text += chunk;
  });
  socket.on('error', () => {}); // what was received by then counts
  const closed = new Promise((close) => socket.on('close', close));
  socket.on('end', () => socket.end());
  await once(socket, 'connect');
  for (const chunk of chunks) {
    socket.write(chunk, 'latin1');
    await turn();
    await turn();
  }
  socket.end();
  await closed;
  return text;
}

const DATE = /^Date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r$/gm;

/** Node's response to invalid HTTP. */
const REFUSAL = /HTTP\/1\.1 4(?:00|31) [\w ]+\r\n(?:[^\r]+\r\n)*Connection: close\r\n[\s\S]*$/;

/** The last response of a connection, and bytes after it that clients ignore. */
const LAST = /(Connection: close\r\n[\s\S]*?)HTTP\/1\.1 [\s\S]*$/;

interface Received {
  readonly responses: string;
  /** The server closed the connection, not the client. */
  readonly isClosed: boolean;
}

function parseReceived(text: string): Received {
  const undated = text.replace(DATE, 'Date: then\r');
  const responses = undated.replace(REFUSAL, '').replace(LAST, '$1');
  return { responses, isClosed: undated.includes('Connection: close\r\n') };
}

/**
 * Equal to the last byte, except for the date. Where Node refuses a request it closes the connection, and
 * drops responses to earlier requests of the same chunk: how many depends on how the bytes arrived.
 */
function requireSame(fast: Received, node: Received): void {
  expect(fast.isClosed).toBe(node.isClosed);
  const length = fast.isClosed ? Math.min(fast.responses.length, node.responses.length) : undefined;
  expect(fast.responses.slice(0, length)).toBe(node.responses.slice(0, length));
}

const URLS = [
  '/check?limit=api&key=alice',
  '/check?key=bob&cost=2',
  '/check?key=caf%C3%A9+7&status=403',
  "/check?key=a!$'()*,;:@/?~b._-",
  '/check?key=eve',
  '/check?key=c-1&hold=1',
  '/check?key=d%C3%A9j%C3%A0', // on a deny list
  '/check?limit=nope&key=a',
  '/check?key=a&status=499&cost=99',
  '/check',
  '/check?',
];
const ODD_URLS = ['/checks', '/healthz', '/', '*', 'http://localhost/check?key=a', '/check#x']
  .concat(['/check?key=a#b', '/check?key=a b', '/check?key=\xe9', '/check?key="<>^`{|}\\', ''])
  .concat([`/check?key=${'a'.repeat(2000)}`, '/check\t?key=a', '/CHECK?key=a', '//check']);

const HEADERS = ['Accept: */*', 'User-Agent: curl/8.5.0', 'X-Real-IP: 192.0.2.7', 'x-a:b'].concat([
  'X-Forwarded-For: 192.0.2.1, 10.0.0.1',
  'Connection: keep-alive',
  'connection: Keep-Alive',
  'Accept-Encoding: gzip, deflate',
  'Authorization: Basic dTpw',
  'X-Original-URI: /a?b=c',
]);

/** Headers that proxies and servers are known to read differently. */
const ODD_HEADERS = ['Content-Length: 0', 'Content-Length: 5', 'Content-Length: +5', 'TE: trailers']
  .concat(['Content-Length: 5, 5', 'Content-Length : 5', 'Content-Length:5', 'content-length: 05'])
  .concat([
    'Transfer-Encoding: chunked',
    'Transfer-Encoding: identity',
    'transfer-encoding:\tchunked',
  ])
  .concat(['Transfer-Encoding: xchunked', 'Transfer-Encoding : chunked', 'Transfer-Encoding:'])
  .concat(['Connection: close', 'Connection: Upgrade', 'Connection: keep-alive, close', 'Host: b'])
  .concat(['Upgrade: websocket', 'Expect: 100-continue', 'Expect: tea', 'Keep-Alive: timeout=1'])
  .concat(['X-Forwarded-For: 203.0.113.9', 'x-forwarded-for:', 'X-Forwarded-For:  192.0.2.3 '])
  .concat(['X-Forwarded-For:\t192.0.2.3', ' folded', '\tfolded', 'X-A: b\r\n c', 'X-A: b\nX-B: c'])
  .concat([
    'X-A: b\rX-B: c',
    'X-A: \xe9',
    'X-A: \0',
    'X-A: \x7f',
    'X_A: b',
    'X.A: b',
    'X A: b',
    ': b',
  ])
  .concat([
    'no colon',
    'Proxy-Connection: close',
    '__proto__: a',
    'constructor: b',
    'X-\xe9: b',
    'X-A:',
  ])
  .concat([
    `X-Long: ${'a'.repeat(MAX_HEADER_BYTES)}`,
    Array(MAX_HEADERS).fill('X-N: 1').join('\r\n'),
  ]);

const BODIES = ['', '', 'hello', '5\r\nhello\r\n0\r\n\r\n', '0\r\n\r\n'].concat([
  'GET /check?key=smuggled HTTP/1.1\r\nHost: a\r\n\r\n',
]);

const FRAGMENTS = [
  '\r\n',
  '\r',
  '\n',
  ' ',
  '\t',
  ':',
  '\0',
  '\xff',
  '\r\n\r\n',
  'HTTP/1.1',
  '%',
  '#',
  ',',
];

/** A request; a valid one unless `isOdd`. */
function requestOf(random: SeededGenerator, isOdd: boolean): string {
  const odd = (): boolean => isOdd && random.below(3) === 0;
  const method = odd() ? random.oneOf(['POST', 'HEAD', 'get', 'PUT', '', '\r\nGET', 'GE']) : 'GET';
  const url = odd() ? random.oneOf(ODD_URLS) : random.oneOf(URLS);
  const version = odd()
    ? random.oneOf(['HTTP/1.0', 'HTTP/1.2', 'http/1.1', 'HTTP/1.1 ', ''])
    : 'HTTP/1.1';
  const host = odd() ? random.oneOf([[], ['host:'], ['Host: a', 'Host: a']]) : ['Host: localhost'];
  const extra = new Set(random.sampleOf(HEADERS, 4));
  const headers = [...host, ...extra, ...(odd() ? random.sampleOf(ODD_HEADERS, 2) : [])];
  if (odd()) headers.reverse();
  const space = odd() ? random.oneOf(['  ', '\t']) : ' ';
  const lines = [`${method}${space}${url} ${version}`, ...headers, '', ''];
  const end = odd() ? random.oneOf(['\n', '\r', '\r\r\n']) : '\r\n';
  return lines.join(end) + (odd() ? random.oneOf(BODIES) : '');
}

function mutated(random: SeededGenerator, text: string): string {
  const at = random.below(text.length + 1);
  const middle = random.oneOf([
    '',
    random.oneOf(FRAGMENTS),
    String.fromCharCode(random.below(256)),
  ]);
  return text.slice(0, at) + middle + text.slice(at + random.below(3));
}

function pipelineOf(random: SeededGenerator): string {
  const oddFrom = random.below(4); // valid ones first, or Node would handle everything
  const requests = Array.from({ length: 1 + random.below(4) }, (_, n) =>
    requestOf(random, n >= oddFrom),
  );
  const text = requests.join('');
  return random.below(3) === 0 ? mutated(random, text) : text;
}

/** Cuts nowhere, after each request, or anywhere. */
function cut(random: SeededGenerator, text: string): string[] {
  const mode = random.below(3);
  if (mode === 0) return [text];
  if (mode === 1) return text.split(/(?<=\r\n\r\n)/);
  const cuts = Array.from({ length: random.below(4) }, () => random.below(text.length)).sort(
    (a, b) => a - b,
  );
  return [0, ...cuts].map((from, n) => text.slice(from, cuts[n] ?? text.length));
}

const LIMITS = {
  api: { bucket: { rate: '1/s', burst: 3 } },
  few: { bucket: { rate: '1/s', burst: 1 }, match: 'd*' },
  jobs: { concurrency: 3, match: 'c-*' },
};

const CONFIGURATIONS: readonly HttpServerOptions[] = [
  { limits: LIMITS, deny: ['eve', 'déj*'], bounds: { idleMs: 5000.5 } },
  { extractKey: createKeyExtractor(readHttpSection({ trustProxy: 1 }, 'http')) },
  {
    extractKey: createKeyExtractor(readHttpSection({ key: { header: 'X-Forwarded-For' } }, 'http')),
  },
];

describe('HTTP fast path', () => {
  for (const [n, options] of CONFIGURATIONS.entries()) {
    test(
      `random pipelines: responds like Node's server (configuration ${n})`,
      async () => {
        const fast = await start(options);
        const node = await start({ ...options, fastPath: false });
        const random = new SeededGenerator(SEED + n);
        const seen = { fast: 0, both: 0, node: 0 };
        for (let round = 0; round < COUNT / 100; round++) {
          const text = pipelineOf(random);
          const chunks = cut(random, text);
          const received = await Promise.all(
            [fast, node].map(({ port }) => exchange(port, chunks)),
          );
          try {
            requireSame(parseReceived(received[0]), parseReceived(received[1]));
            expect(fast.httpServer.counts.responsesByStatus).toEqual(
              node.httpServer.counts.responsesByStatus,
            );
          } catch (error) {
            throw new Error(JSON.stringify({ chunks, received }), { cause: error });
          }
          const plain = plainEnd(chunks[0]);
          seen[plain === 0 ? 'node' : chunks[0].length === plain ? 'fast' : 'both']++;
        }
        for (const count of Object.values(seen)) expect(count).toBeGreaterThan(COUNT / 2000);
      },
      30 * MINUTES_MS,
    );
  }
});

/** How many bytes of a chunk the fast path handles. */
function plainEnd(chunk: string): number {
  const bytes = Buffer.from(chunk, 'latin1');
  let end = 0;
  for (;;) {
    const check = tryParseCheck(bytes, end, {});
    if (typeof check === 'string') return end;
    ({ end } = check);
  }
}

describe('HTTP fast-path parser', () => {
  test(
    'random requests: reads URL and headers like Node',
    async () => {
      const parsedByNode: { url: string | undefined; headers: IncomingHttpHeaders }[] = [];
      const node = createServer(({ url, headers }, response) => {
        parsedByNode.push({ url, headers: { ...headers } });
        response.end();
      });
      await new Promise<void>((ready) => node.listen(0, '127.0.0.1', ready));
      open.push({ stop: () => node.close() });
      const random = new SeededGenerator(SEED + 10);
      const read: object[] = [];
      let text = '';
      for (let n = 0; n < COUNT / 5; n++) {
        const request = mutated(random, requestOf(random, random.below(2) === 0));
        const plain = tryParseCheck(Buffer.from(request, 'latin1'), 0, {});
        if (typeof plain === 'string') continue;
        read.push({ url: plain.url, headers: { ...plain.headers } });
        text += request.slice(0, plain.end);
      }
      expect(read.length).toBeGreaterThan(COUNT / 100);
      await exchange((node.address() as AddressInfo).port, [text]);
      expect(parsedByNode).toEqual(read);
    },
    30 * MINUTES_MS,
  );
});
