/**
 * Transport between groups over HTTP.
 *
 *     POST /borrow   authorization: Bearer KEY    {"requests": [["api", "alice", 12], …]}
 *     200            {"grants": [8, …]}
 *
 * An address may be a load balancer: every process of a group lends from the same bucket. With several addresses, a failed
 * request moves on to the next one.
 */

import { createHash, timingSafeEqual } from 'node:crypto';
import http from 'node:http';
import https from 'node:https';
import type { Millis } from '../../core/clock.ts';
import { tryParseJson } from '../../core/json.ts';
import { isRecord } from '../../core/options.ts';
import {
  type BorrowRequest,
  type GroupTransport,
  isBorrowRequest,
  lateReplyMessage,
  MAX_BORROW_REQUESTS,
} from './transport.ts';

export interface HttpTransportOptions {
  /** Base URLs by group. */
  readonly addresses: ReadonlyMap<string, readonly string[]>;
  readonly key: string;
  readonly deadlineMs: Millis;
}

export interface HttpListenOptions {
  readonly port: number;
  readonly host: string;
}

/** `MAX_BORROW_REQUESTS` with long keys. */
const MAX_BODY_BYTES = 1_000_000;

export const BORROW_PATH = '/borrow';

export class HttpGroupTransport implements GroupTransport {
  readonly #options: HttpTransportOptions;
  readonly #agents = {
    'http:': new http.Agent({ keepAlive: true }),
    'https:': new https.Agent({ keepAlive: true }),
  };
  /** By group: the address in use. */
  readonly #addressIndexes = new Map<string, number>();

  constructor(options: HttpTransportOptions) {
    this.#options = options;
  }

  async borrow(group: string, requests: readonly BorrowRequest[]): Promise<readonly number[]> {
    const addresses = this.#options.addresses.get(group) ?? [];
    const index = this.#addressIndexes.get(group) ?? 0;
    try {
      const { body, packed } = packRequests(requests);
      const grants = parseGrants(await this.#post(addresses[index % addresses.length], body));
      const byRequest = requests.map(() => 0);
      for (const [at, n] of packed.entries()) byRequest[n] = grants[at];
      return byRequest;
    } catch (error) {
      this.#addressIndexes.set(group, index + 1);
      throw error;
    }
  }

  close(): void {
    for (const agent of Object.values(this.#agents)) agent.destroy();
  }

  #post(address: string, body: string): Promise<string> {
    const { key, deadlineMs } = this.#options;
    const url = new URL(address);
    url.pathname = url.pathname.replace(/\/$/, '') + BORROW_PATH; // a reverse proxy may add a path prefix
    const protocol = url.protocol as 'http:' | 'https:';
    const { request } = protocol === 'https:' ? https : http;
    const signal = AbortSignal.timeout(Math.ceil(deadlineMs));
    return new Promise((resolve, reject) => {
      const outgoing = request(url, {
        method: 'POST',
        agent: this.#agents[protocol],
        signal,
        headers: {
          authorization: `Bearer ${key}`,
          'content-type': 'application/json',
          'content-length': Buffer.byteLength(body),
        },
      });
      outgoing.on('error', (error: NodeJS.ErrnoException) => {
        const reason = error.message || error.code; // an AggregateError has no message
        reject(new Error(signal.aborted ? lateReplyMessage(deadlineMs) : reason, { cause: error }));
      });
      outgoing.on('response', (response) => {
        readBody(response).then((text) => {
          const { statusCode: status } = response;
          if (status === 200) resolve(text);
          else reject(new Error(`${url.host} replied ${status}: ${text.slice(0, 200)}`));
        }, reject);
      });
      outgoing.end(body);
    });
  }
}

/** The requests that fit into one body, by index. A key that is too long is left out and does not block the rest. */
function packRequests(requests: readonly BorrowRequest[]) {
  const [start, end] = ['{"requests":[', ']}'];
  const packed: number[] = [];
  const texts: string[] = [];
  let bytes = start.length + end.length;
  for (const [n, { limit, key, tokens }] of requests.entries()) {
    const text = JSON.stringify([limit, key, tokens]);
    const size = Buffer.byteLength(text) + 1;
    if (bytes + size > MAX_BODY_BYTES) continue;
    bytes += size;
    packed.push(n);
    texts.push(text);
  }
  return { body: start + texts.join(',') + end, packed };
}

function parseGrants(text: string): readonly number[] {
  const reply: unknown = JSON.parse(text);
  if (!isRecord(reply) || !Array.isArray(reply.grants))
    throw new Error('expected a reply with `grants`');
  return reply.grants;
}

interface LendingServer {
  readonly address: string;
  close(): Promise<void>;
}

type LendHandler = (requests: readonly BorrowRequest[]) => Promise<readonly number[]>;

/** A server that lends to other groups; it does not listen yet. */
export function createLendingServer(
  { key, deadlineMs }: Pick<HttpTransportOptions, 'key' | 'deadlineMs'>,
  lend: LendHandler,
): http.Server {
  const server = http.createServer((request, response) => {
    handle(request).then(
      ({ status, body }) => {
        response.writeHead(status, { 'content-type': 'application/json' });
        response.end(JSON.stringify(body));
      },
      () => response.destroy(),
    );
  });
  const handle = async (request: http.IncomingMessage) => {
    const refused = (status: number, error: string) => ({ status, body: { error } });
    if (!isAuthorized(request.headers.authorization, key))
      return refused(401, 'wrong key in the authorization header');
    if (request.method !== 'POST' || request.url !== BORROW_PATH)
      return refused(404, `expected POST ${BORROW_PATH}`);
    const requests = parseBorrowRequests(await readBody(request));
    if (!requests) return refused(400, 'expected {"requests": [["limit", "key", tokens], …]}');
    return { status: 200, body: { grants: await lend(requests) } };
  };
  server.requestTimeout = Math.max(1000, deadlineMs * 2);
  return server;
}

/** Starts to lend. Rejects if the port cannot be bound. */
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
  server.on('error', () => {}); // a connection was not accepted: the borrower tries again
  server.unref();
  const bound = server.address() as { port: number; address: string; family: string };
  const printedHost = bound.family === 'IPv6' ? `[${bound.address}]` : bound.address;
  return {
    address: `http://${printedHost}:${bound.port}`,
    close: () =>
      new Promise((done) => {
        server.close(() => done());
        server.closeAllConnections();
      }),
  };
}

/** Compares in constant time. */
function isAuthorized(header: string | undefined, key: string): boolean {
  const digest = (text: string): Buffer => createHash('sha256').update(text).digest();
  return timingSafeEqual(digest(header ?? ''), digest(`Bearer ${key}`));
}

function parseBorrowRequests(text: string): BorrowRequest[] | undefined {
  const body = tryParseJson(text);
  if (
    !isRecord(body) ||
    !Array.isArray(body.requests) ||
    body.requests.length > MAX_BORROW_REQUESTS
  )
    return undefined;
  const requests: unknown[] = body.requests.map((row: unknown) => {
    const [limit, key, tokens] = Array.isArray(row) ? row : [];
    return { limit, key, tokens };
  });
  return requests.every(isBorrowRequest) ? requests : undefined;
}

async function readBody(stream: http.IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of stream) {
    bytes += (chunk as Buffer).length;
    if (bytes > MAX_BODY_BYTES) throw new Error(`body of more than ${MAX_BODY_BYTES} bytes`);
    chunks.push(chunk as Buffer);
  }
  return Buffer.concat(chunks).toString();
}
