/** Router and stream protocols without a daemon, and protocol clients without sockets. */

import type { AddressInfo } from 'node:net';
import { createServer } from 'node:net';
import { GcraTable } from '../../src/backends/local/gcra-table.ts';
import { type Clock, systemClock } from '../../src/core/clock.ts';
import { createHasher } from '../../src/core/hash.ts';
import { readLimits } from '../../src/daemon/config/limits.ts';
import { NO_PATTERNS } from '../../src/daemon/keys/pattern-table.ts';
import { lineProtocol } from '../../src/daemon/protocols/line/handler.ts';
import { type RespContext, respProtocol } from '../../src/daemon/protocols/resp/handler.ts';
import { LimiterRegistry } from '../../src/daemon/router/limiter-registry.ts';
import { Router } from '../../src/daemon/router/router.ts';
import { Connections } from '../../src/daemon/server/connections.ts';
import type { ProtocolFactory } from '../../src/daemon/server/protocol-handler.ts';
import { ResponseQueue } from '../../src/daemon/server/response-queue.ts';

export interface TestDaemon {
  readonly router: Router;
  readonly gcraTable: GcraTable;
  readonly resp: ProtocolFactory;
  readonly line: ProtocolFactory;
}

type TestDaemonOptions = Partial<RespContext> & {
  readonly limits?: unknown;
  readonly maxLine?: number;
};

/** A bucket for all keys, a concurrency limit, and a limit that is only checked by name. */
const LIMITS = {
  'all-users': { bucket: { rate: '1/s', burst: 5 } },
  flights: { adaptive: { initial: 2 }, match: 'flight:*' },
  slow: { bucket: { rate: '1/m', burst: 1 }, match: 'exact:unused' },
};

export function createTestDaemon(
  clock: Clock = systemClock,
  extra: TestDaemonOptions = {},
): TestDaemon {
  const hasher = createHasher([7, 11], 'latin1');
  const limits = readLimits(extra.limits ?? LIMITS, 'limits');
  const registry = new LimiterRegistry({
    clock,
    hasher,
    backendFor: () => undefined,
  });
  registry.apply(limits);
  const router = new Router(
    { allow: NO_PATTERNS, deny: NO_PATTERNS, unmatched: 'allow', limits },
    registry,
    hasher,
    () => 0,
  );
  const gcraTable = new GcraTable({ hasher, clock, maxKeys: 100_000 });
  const resp = respProtocol({ router, gcraTable, version: '1.2.3', clock, ...extra });
  const isAllowed = router.isAllowed.bind(router);
  return {
    router,
    gcraTable,
    resp,
    line: lineProtocol(isAllowed, () => extra.maxLine ?? 64),
  };
}

/** A client that sends chunks and collects the responses. */
export class ProtocolClient {
  readonly #handler;
  #received: Buffer[] = [];
  isClosed = false;

  constructor(createHandler: ProtocolFactory) {
    this.#handler = createHandler(
      new ResponseQueue(
        (bytes) => this.#received.push(bytes),
        () => {},
      ),
    );
  }

  send(chunk: string | Buffer): this {
    if (!this.isClosed)
      this.isClosed = !this.#handler.onData(Buffer.from(chunk as string, 'latin1'));
    return this;
  }

  /** Responses since the last call; pending ones arrive a turn later. */
  takeReceived(): string {
    const text = Buffer.concat(this.#received).toString('latin1');
    this.#received = [];
    return text;
  }
}

/** A command as an array of bulk strings. */
export const respCommand = (...args: readonly string[]): string =>
  `*${args.length}\r\n${args.map((arg) => `$${Buffer.byteLength(arg)}\r\n${arg}\r\n`).join('')}`;

export interface ListeningServer {
  readonly port: number;
  readonly connections: Connections;
  close(): Promise<void>;
}

/** Listens on loopback at a free port, a given port, or a Unix socket. */
export async function listen(
  createHandler: ProtocolFactory,
  at: number | string = 0,
): Promise<ListeningServer> {
  const bounds = { maxConnections: 1000, slowMs: 5000, idleMs: Infinity };
  const connections = new Connections(createHandler, () => bounds, systemClock);
  const server = createServer({ allowHalfOpen: true }, (socket) => connections.accept(socket));
  await new Promise<void>((ready, failed) => {
    server.once('error', failed);
    if (typeof at === 'string') server.listen(at, ready);
    else server.listen(at, '127.0.0.1', ready);
  });
  return {
    port: typeof at === 'string' ? 0 : (server.address() as AddressInfo).port,
    connections,
    async close() {
      const closed = new Promise((done) => server.close(done));
      await connections.drain(100);
      await closed;
    },
  };
}
