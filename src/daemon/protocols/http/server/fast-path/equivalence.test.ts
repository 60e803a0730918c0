/**
 * The short way beside the long one: whatever is sent, and however it is cut, both say the same. Random
 * pipelines of sensible requests, of requests that parsers disagree about, and of either with a few bytes
 * changed go to two surfaces, of which one has no short way.
 *
 *     FUZZ=1000000 npx vitest run src/daemon/http/ways.test.ts     so many; FUZZ_SEED=7 others
 */

import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders } from 'node:http';
import { type AddressInfo, connect, Socket } from 'node:net';
import { setImmediate as turn } from 'node:timers/promises';
import { afterEach, describe, expect, test } from 'vitest';
import { SeededGenerator } from '../../../../../../test/support/chance.ts';
import {
  createSurface,
  type SurfaceOptions,
  serveSurface,
} from '../../../../../../test/support/http-surface.ts';
import { VirtualClock } from '../../../../../testing/index.ts';
import { readHttpSection } from '../../../../config/http.ts';
import { MAX_HEADER_BYTES, MAX_HEADERS } from '../../bounds.ts';
import { createKeyExtractor } from '../../key.ts';
import type { HttpServer } from '../server.ts';
import { tryParseCheck } from './parse.ts';

const COUNT = Number(process.env.FUZZ ?? 100_000);
const SEED = Number(process.env.FUZZ_SEED ?? 1);
const MINUTES_MS = 60_000;

const open: { stop(): unknown }[] = [];

afterEach(async () => {
  await Promise.all(open.splice(0).map((own) => own.stop()));
});

interface Side {
  readonly surface: HttpServer;
  readonly port: number;
}

async function side(given: SurfaceOptions, take?: (socket: Socket) => Socket): Promise<Side> {
  const surface = createSurface({ clock: new VirtualClock(1e9), ...given });
  const own = await serveSurface(surface, true, take);
  open.push(own);
  return { surface, port: own.port };
}

/** Only sockets of Node's own class are read the short way. */
class OtherSocket extends Socket {}

const asOther = (socket: Socket): Socket =>
  Object.defineProperty(socket, 'constructor', { value: OtherSocket });

/** All that comes back for these pieces, until the other side hangs up. */
async function toldBy(port: number, pieces: readonly string[]): Promise<string> {
  let text = '';
  const socket = connect({ port, host: '127.0.0.1', allowHalfOpen: true, noDelay: true });
  socket.setEncoding('latin1').on('data', (chunk) => {
    text += chunk;
  });
  socket.on('error', () => {}); // what came until then counts
  const closed = new Promise((close) => socket.on('close', close));
  socket.on('end', () => socket.end());
  await once(socket, 'connect');
  for (const piece of pieces) {
    socket.write(piece, 'latin1');
    await turn();
    await turn();
  }
  socket.end();
  await closed;
  return text;
}

const DATE = /^Date: \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT\r$/gm;

/** Node's refusal of what is no HTTP. */
const REFUSAL = /HTTP\/1\.1 4(?:00|31) [\w ]+\r\n(?:[^\r]+\r\n)*Connection: close\r\n[\s\S]*$/;

/** The last answer of a connection, and what comes behind it: for no client's ears. */
const LAST = /(Connection: close\r\n[\s\S]*?)HTTP\/1\.1 [\s\S]*$/;

interface Heard {
  readonly answers: string;
  /** Node hung up, and not because the client had. */
  readonly isOver: boolean;
}

function heardIn(text: string): Heard {
  const undated = text.replace(DATE, 'Date: then\r');
  const answers = undated.replace(REFUSAL, '').replace(LAST, '$1');
  return { answers, isOver: undated.includes('Connection: close\r\n') };
}

/**
 * To the last byte, but for the date. Where Node refuses something it hangs up, and owes answers to
 * requests before that came in the same piece: how many depends on how the bytes came to it.
 */
function requireSame(own: Heard, other: Heard): void {
  expect(own.isOver).toBe(other.isOver);
  const length = own.isOver ? Math.min(own.answers.length, other.answers.length) : undefined;
  expect(own.answers.slice(0, length)).toBe(other.answers.slice(0, length));
}

const URLS = [
  '/check?limit=api&key=alice',
  '/check?key=bob&cost=2',
  '/check?key=caf%C3%A9+7&status=403',
  "/check?key=a!$'()*,;:@/?~b._-",
  '/check?key=eve',
  '/check?key=c-1&hold=1',
  '/check?key=d%C3%A9j%C3%A0', // on a list whose pattern is told in the answer
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

/** What proxies and servers have read in two ways before. */
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

const SPICE = [
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

/** Bytes of a request: a sensible one if nothing odd is wanted. */
function requestOf(chance: SeededGenerator, isOdd: boolean): string {
  const odd = (): boolean => isOdd && chance.below(3) === 0;
  const method = odd() ? chance.oneOf(['POST', 'HEAD', 'get', 'PUT', '', '\r\nGET', 'GE']) : 'GET';
  const url = odd() ? chance.oneOf(ODD_URLS) : chance.oneOf(URLS);
  const version = odd()
    ? chance.oneOf(['HTTP/1.0', 'HTTP/1.2', 'http/1.1', 'HTTP/1.1 ', ''])
    : 'HTTP/1.1';
  const host = odd() ? chance.oneOf([[], ['host:'], ['Host: a', 'Host: a']]) : ['Host: localhost'];
  const extra = new Set(chance.sampleOf(HEADERS, 4));
  const headers = [...host, ...extra, ...(odd() ? chance.sampleOf(ODD_HEADERS, 2) : [])];
  if (odd()) headers.reverse();
  const space = odd() ? chance.oneOf(['  ', '\t']) : ' ';
  const lines = [`${method}${space}${url} ${version}`, ...headers, '', ''];
  const end = odd() ? chance.oneOf(['\n', '\r', '\r\r\n']) : '\r\n';
  return lines.join(end) + (odd() ? chance.oneOf(BODIES) : '');
}

function mutated(chance: SeededGenerator, text: string): string {
  const at = chance.below(text.length + 1);
  const middle = chance.oneOf(['', chance.oneOf(SPICE), String.fromCharCode(chance.below(256))]);
  return text.slice(0, at) + middle + text.slice(at + chance.below(3));
}

function pipelineOf(chance: SeededGenerator): string {
  const oddFrom = chance.below(4); // sensible ones first, as otherwise all goes the long way
  const requests = Array.from({ length: 1 + chance.below(4) }, (_, n) =>
    requestOf(chance, n >= oddFrom),
  );
  const text = requests.join('');
  return chance.below(3) === 0 ? mutated(chance, text) : text;
}

/** In one piece, at each request's end, or anywhere. */
function cut(chance: SeededGenerator, text: string): string[] {
  const way = chance.below(3);
  if (way === 0) return [text];
  if (way === 1) return text.split(/(?<=\r\n\r\n)/);
  const cuts = Array.from({ length: chance.below(4) }, () => chance.below(text.length)).sort(
    (a, b) => a - b,
  );
  return [0, ...cuts].map((from, n) => text.slice(from, cuts[n] ?? text.length));
}

const LIMITS = {
  api: { bucket: { rate: '1/s', burst: 3 } },
  few: { bucket: { rate: '1/s', burst: 1 }, match: 'd*' },
  jobs: { concurrency: 3, match: 'c-*' },
};

const GIVEN: readonly SurfaceOptions[] = [
  { limits: LIMITS, deny: ['eve', 'déj*'], bounds: { idleMs: 5000.5 } },
  { extractKey: createKeyExtractor(readHttpSection({ trustProxy: 1 }, 'http')) },
  {
    extractKey: createKeyExtractor(readHttpSection({ key: { header: 'X-Forwarded-For' } }, 'http')),
  },
];

describe('the short way', () => {
  for (const [n, given] of GIVEN.entries()) {
    test(
      `says what the long one says, whatever is asked (${n})`,
      async () => {
        const [short, long] = [await side(given), await side(given, asOther)];
        const chance = new SeededGenerator(SEED + n);
        const seen = { short: 0, both: 0, long: 0 };
        for (let round = 0; round < COUNT / 100; round++) {
          const text = pipelineOf(chance);
          const pieces = cut(chance, text);
          const told = await Promise.all([short, long].map(({ port }) => toldBy(port, pieces)));
          try {
            requireSame(heardIn(told[0]), heardIn(told[1]));
            expect(short.surface.counts.responsesByStatus).toEqual(
              long.surface.counts.responsesByStatus,
            );
          } catch (error) {
            throw new Error(JSON.stringify({ pieces, told }), { cause: error });
          }
          const plain = plainEnd(pieces[0]);
          seen[plain === 0 ? 'long' : pieces[0].length === plain ? 'short' : 'both']++;
        }
        for (const count of Object.values(seen)) expect(count).toBeGreaterThan(COUNT / 2000);
      },
      30 * MINUTES_MS,
    );
  }
});

/** How much of a piece goes the short way. */
function plainEnd(piece: string): number {
  const bytes = Buffer.from(piece, 'latin1');
  let end = 0;
  for (let check = tryParseCheck(bytes, 0, {}); check; check = tryParseCheck(bytes, end, {})) {
    ({ end } = check);
  }
  return end;
}

describe('a plain check', () => {
  test(
    'is what Node takes it for',
    async () => {
      const heard: { url: string | undefined; headers: IncomingHttpHeaders }[] = [];
      const node = createServer(({ url, headers }, response) => {
        heard.push({ url, headers: { ...headers } });
        response.end();
      });
      await new Promise<void>((ready) => node.listen(0, '127.0.0.1', ready));
      open.push({ stop: () => node.close() });
      const chance = new SeededGenerator(SEED + 10);
      const read: object[] = [];
      let text = '';
      for (let n = 0; n < COUNT / 5; n++) {
        const request = mutated(chance, requestOf(chance, chance.below(2) === 0));
        const plain = tryParseCheck(Buffer.from(request, 'latin1'), 0, {});
        if (plain === undefined) continue;
        read.push({ url: plain.url, headers: { ...plain.headers } });
        text += request.slice(0, plain.end);
      }
      expect(read.length).toBeGreaterThan(COUNT / 100);
      await toldBy((node.address() as AddressInfo).port, [text]);
      expect(heard).toEqual(read);
    },
    30 * MINUTES_MS,
  );
});
