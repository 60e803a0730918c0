/**
 * Groups that reach each other over HTTP.
 *
 *     POST /steal    authorization: Bearer KEY    {"wants": [["api", "alice", 12], …]}
 *     200            {"given": [8, …]}
 *
 * What stands before a group's processes may be a load balancer: any of them gives from the same bucket. With several addresses, one that
 * fails is passed over for the next.
 */

import { createHash, timingSafeEqual } from 'node:crypto';
import http from 'node:http';
import https from 'node:https';
import type { Millis } from '../../core/clock.ts';
import { isRecord } from '../../core/options.ts';
import type { BorrowRequest, GroupTransport } from './transport.ts';

export interface HttpTransportOptions {
  /** By group. */
  readonly addresses: ReadonlyMap<string, readonly string[]>;
  readonly key: string;
  readonly deadlineMs: Millis;
}

export interface HttpListenOptions {
  readonly port: number;
  readonly host: string;
}

/** A thousand wants of long keys. */
const MAX_BODY_BYTES = 1_000_000;
const MAX_WANTS = 1000;

export const BORROW_PATH = '/borrow';

export class HttpGroupTransport implements GroupTransport {
  readonly #options: HttpTransportOptions;
  readonly #agents = {
    'http:': new http.Agent({ keepAlive: true }),
    'https:': new https.Agent({ keepAlive: true }),
  };
  /** By group, which of its addresses answered last. */
  readonly #addressIndexes = new Map<string, number>();

  constructor(options: HttpTransportOptions) {
    this.#options = options;
  }

  async borrow(group: string, wants: readonly BorrowRequest[]): Promise<readonly number[]> {
    const addresses = this.#options.addresses.get(group) ?? [];
    const turn = this.#addressIndexes.get(group) ?? 0;
    try {
      const { body, sent } = packRequests(wants);
      const given = parseGrants(await this.#post(addresses[turn % addresses.length], body));
      const byWant = wants.map(() => 0);
      for (const [at, n] of sent.entries()) byWant[n] = given[at];
      return byWant;
    } catch (error) {
      this.#addressIndexes.set(group, turn + 1);
      throw error;
    }
  }

  close(): void {
    for (const agent of Object.values(this.#agents)) agent.destroy();
  }

  #post(address: string, body: string): Promise<string> {
    const { key, deadlineMs } = this.#options;
    const url = new URL(address);
    url.pathname = url.pathname.replace(/\/$/, '') + BORROW_PATH; // a proxy may have it under a path of its own
    const protocol = url.protocol as 'http:' | 'https:';
    const { request } = protocol === 'https:' ? https : http;
    const signal = AbortSignal.timeout(Math.ceil(deadlineMs));
    return new Promise((resolve, reject) => {
      const asked = request(url, {
        method: 'POST',
        agent: this.#agents[protocol],
        signal,
        headers: {
          authorization: `Bearer ${key}`,
          'content-type': 'application/json',
          'content-length': Buffer.byteLength(body),
        },
      });
      asked.on('error', (error: NodeJS.ErrnoException) => {
        const why = error.message || error.code; // several at once have no words
        const late = `it took longer than ${deadlineMs} ms`;
        reject(new Error(signal.aborted ? late : why, { cause: error }));
      });
      asked.on('response', (response) => {
        readBody(response, MAX_BODY_BYTES).then((text) => {
          if (response.statusCode === 200) resolve(text);
          else reject(new Error(`${url.host} says ${response.statusCode}: ${text.slice(0, 200)}`));
        }, reject);
      });
      asked.end(body);
    });
  }
}

/** The wants that fit into one request, and which they are: keys may be long, and one must not keep all others from being stolen for. */
function packRequests(wants: readonly BorrowRequest[]): { body: string; sent: readonly number[] } {
  const [start, end] = ['{"wants":[', ']}'];
  const sent: number[] = [];
  const texts: string[] = [];
  let bytes = start.length + end.length;
  for (const [n, { limit, key, units }] of wants.entries()) {
    const text = JSON.stringify([limit, key, units]);
    const more = Buffer.byteLength(text) + 1;
    if (bytes + more > MAX_BODY_BYTES) continue;
    bytes += more;
    sent.push(n);
    texts.push(text);
  }
  return { body: start + texts.join(',') + end, sent };
}

function parseGrants(text: string): readonly number[] {
  const told: unknown = JSON.parse(text);
  if (!isRecord(told) || !Array.isArray(told.given)) throw new Error('an answer without `given`');
  return told.given;
}

export interface LendingServer {
  readonly address: string;
  close(): Promise<void>;
}

type LendHandler = (wants: readonly BorrowRequest[]) => Promise<readonly number[]>;

/** The other end, where others steal: a server that does not listen yet. */
export function createLendingServer(
  { key, deadlineMs }: Pick<HttpTransportOptions, 'key' | 'deadlineMs'>,
  lend: LendHandler,
): http.Server {
  const server = http.createServer((request, response) => {
    answer(request).then(
      ({ status, body }) => {
        response.writeHead(status, { 'content-type': 'application/json' });
        response.end(JSON.stringify(body));
      },
      () => response.destroy(),
    );
  });
  const answer = async (request: http.IncomingMessage) => {
    const refused = (status: number, error: string) => ({ status, body: { error } });
    if (!isAuthorized(request.headers.authorization, key))
      return refused(401, 'the key is another');
    if (request.method !== 'POST' || request.url !== BORROW_PATH)
      return refused(404, `POST ${BORROW_PATH}`);
    const wants = parseBorrowRequests(await readBody(request, MAX_BODY_BYTES));
    if (!wants) return refused(400, 'expected {"wants": [["limit", "key", units], …]}');
    return { status: 200, body: { given: await lend(wants) } };
  };
  server.requestTimeout = Math.max(1000, deadlineMs * 2);
  return server;
}

/** Lets others steal. Rejects if it cannot listen. */
export async function startLendingServer(
  options: HttpTransportOptions,
  { port, host }: HttpListenOptions,
  lend: LendHandler,
): Promise<LendingServer> {
  const server = createLendingServer(options, lend);
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, resolve);
  });
  server.on('error', () => {}); // one connection could not be accepted: whoever tried will try again
  server.unref();
  const bound = server.address() as { port: number; address: string; family: string };
  const shown = bound.family === 'IPv6' ? `[${bound.address}]` : bound.address;
  return {
    address: `http://${shown}:${bound.port}`,
    close: () =>
      new Promise((done) => {
        server.close(() => done());
        server.closeAllConnections();
      }),
  };
}

/** Compared in the same time whatever is given. */
function isAuthorized(given: string | undefined, key: string): boolean {
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(given ?? ''), digest(`Bearer ${key}`));
}

function parseBorrowRequests(text: string): BorrowRequest[] | undefined {
  let told: unknown;
  try {
    told = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (!isRecord(told) || !Array.isArray(told.wants) || told.wants.length > MAX_WANTS)
    return undefined;
  const wants = told.wants.map((want: unknown) => (Array.isArray(want) ? want : []));
  const isWant = ([limit, key, units]: unknown[]): boolean =>
    typeof limit === 'string' && typeof key === 'string' && Number.isSafeInteger(units);
  if (!wants.every(isWant)) return undefined;
  return wants.map(([limit, key, units]) => ({ limit, key, units }) as BorrowRequest);
}

async function readBody(stream: http.IncomingMessage, maxBytes: number): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of stream) {
    bytes += (chunk as Buffer).length;
    if (bytes > maxBytes) throw new Error(`more than ${maxBytes} bytes`);
    chunks.push(chunk as Buffer);
  }
  return Buffer.concat(chunks).toString();
}
