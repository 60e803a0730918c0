/**
 * Transport between groups over HTTP.
 *
 *     POST /borrow   authorization: Bearer KEY    {"requests": [["api", "alice", 12], …]}
 *     200            {"grants": [8, …]}
 *
 * An address may be a load balancer: all processes of a group lend from one bucket. With several addresses, a failed
 * request switches to the next one.
 */

import { createHash, timingSafeEqual } from 'node:crypto';
import http from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import { type Millis, systemClock } from '../../core/clock.ts';
import { formatHostPort, type HostPort } from '../../core/host-port.ts';
import { tryParseJson } from '../../core/json.ts';
import { isRecord } from '../../core/options.ts';
import { HttpClient, readText } from '../connections/http-client.ts';
import {
  type BorrowRequest,
  type GroupTransport,
  isBorrowRequest,
  MAX_BORROW_REQUESTS,
} from './transport.ts';

export interface HttpTransportOptions {
  /** Base URLs by group. */
  readonly addresses: ReadonlyMap<string, readonly string[]>;
  readonly key: string;
  readonly deadlineMs: Millis;
}

/** Large enough for `MAX_BORROW_REQUESTS` with long keys. */
const MAX_BODY_BYTES = 1_000_000;

export const BORROW_PATH = '/borrow';

export class HttpGroupTransport implements GroupTransport {
  readonly #options: HttpTransportOptions;
  readonly #client: HttpClient;
  /** Index of the address in use, by group. */
  readonly #addressIndexes = new Map<string, number>();

  constructor(options: HttpTransportOptions) {
    this.#options = options;
    const { deadlineMs } = options;
    this.#client = new HttpClient({ clock: systemClock, deadlineMs, maxBytes: MAX_BODY_BYTES });
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
    this.#client.close();
  }

  async #post(address: string, body: string): Promise<string> {
    const url = new URL(address);
    url.pathname = url.pathname.replace(/\/$/, '') + BORROW_PATH; // a reverse proxy may add a path prefix
    const headers = {
      authorization: `Bearer ${this.#options.key}`,
      'content-type': 'application/json',
    };
    const { status, text } = await this.#client.send(url, 'POST', headers, body);
    if (status === 200) return text;
    throw new Error(`${url.host} replied ${status}: ${text.slice(0, 200)}`);
  }
}

/** Packs the requests that fit into one body, with their indexes. A key that is too long is skipped. */
function packRequests(requests: readonly BorrowRequest[]) {
  const packed: number[] = [];
  const rows: string[] = [];
  let bytes = '{"requests":[]}'.length;
  for (const [n, { limit, key, tokens }] of requests.entries()) {
    const row = JSON.stringify([limit, key, tokens]);
    const size = Buffer.byteLength(row) + 1;
    if (bytes + size > MAX_BODY_BYTES) continue;
    bytes += size;
    packed.push(n);
    rows.push(row);
  }
  return { body: `{"requests":[${rows}]}`, packed };
}

function parseGrants(text: string): readonly number[] {
  const reply: unknown = JSON.parse(text);
  if (!isRecord(reply) || !Array.isArray(reply.grants))
    throw new Error('expected a reply with `grants`');
  return reply.grants;
}

type LendHandler = (requests: readonly BorrowRequest[]) => Promise<readonly number[]>;

/** The most connections without an authorized request. Beyond it, the oldest is closed. */
const MAX_UNAUTHENTICATED = 256;

/** Interval of the check for requests that take too long. */
const CHECK_INTERVAL_MS: Millis = 500;

export interface LendingServer {
  /** A server that does not listen yet. */
  readonly server: http.Server;
  /** Closes the oldest connection without an authorized request; false if there is none. */
  closeUnauthenticated(): boolean;
}

/** Creates a server that lends to other groups. A connection is trusted after a request with the key. */
export function createLendingServer(
  { key, deadlineMs }: Pick<HttpTransportOptions, 'key' | 'deadlineMs'>,
  lend: LendHandler,
): LendingServer {
  const options = { connectionsCheckingInterval: CHECK_INTERVAL_MS };
  const server = http.createServer(options, (request, response) => {
    handle(request).then(
      ({ status, body }) => {
        const isLast = status === 401; // without the key, no second request
        if (isLast) response.once('finish', () => request.socket.destroySoon());
        const connection = isLast ? { connection: 'close' } : {};
        response.writeHead(status, { 'content-type': 'application/json', ...connection });
        response.end(JSON.stringify(body));
      },
      () => response.destroy(),
    );
  });
  const unauthenticated = new Set<Socket>();
  server.on('connection', (socket) => {
    unauthenticated.add(socket);
    socket.once('close', () => unauthenticated.delete(socket));
    if (unauthenticated.size > MAX_UNAUTHENTICATED) closeUnauthenticated();
  });
  const closeUnauthenticated = (): boolean => {
    const [oldest] = unauthenticated;
    if (oldest) unauthenticated.delete(oldest); // its `close` event comes later
    oldest?.destroy();
    return oldest !== undefined;
  };
  const handle = async (request: http.IncomingMessage) => {
    const refused = (status: number, error: string) => ({ status, body: { error } });
    if (!isAuthorized(request.headers.authorization, key))
      return refused(401, 'wrong key in the authorization header');
    unauthenticated.delete(request.socket);
    if (request.method !== 'POST' || request.url !== BORROW_PATH)
      return refused(404, `expected POST ${BORROW_PATH}`);
    const requests = parseBorrowRequests(await readText(request, MAX_BODY_BYTES));
    if (!requests) return refused(400, 'expected {"requests": [["limit", "key", tokens], …]}');
    return { status: 200, body: { grants: await lend(requests) } };
  };
  server.requestTimeout = Math.max(1000, deadlineMs * 2);
  server.headersTimeout = server.requestTimeout; // also limits connections that send nothing
  return { server, closeUnauthenticated };
}

/** Starts the lending server. Rejects if the port cannot be bound. */
export async function startLendingServer(
  options: HttpTransportOptions,
  { port, host }: HostPort,
  lend: LendHandler,
) {
  const { server } = createLendingServer(options, lend);
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject);
    server.listen(port, host, resolve);
  });
  server.on('error', () => {}); // a connection was not accepted: the borrower retries
  server.unref();
  const { address: boundHost, port: boundPort } = server.address() as AddressInfo;
  return {
    address: `http://${formatHostPort({ host: boundHost, port: boundPort })}`,
    close: () =>
      new Promise<void>((done) => {
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
  const rows = isRecord(body) ? body.requests : undefined;
  if (!Array.isArray(rows) || rows.length > MAX_BORROW_REQUESTS) return undefined;
  const requests: unknown[] = rows.map((row: unknown) => {
    const [limit, key, tokens] = Array.isArray(row) ? row : [];
    return { limit, key, tokens };
  });
  return requests.every(isBorrowRequest) ? requests : undefined;
}
