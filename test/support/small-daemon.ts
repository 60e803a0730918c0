/**
 * A gate to talk to without a daemon around it, and conversations without sockets.
 */

import type { AddressInfo } from 'node:net';
import { createServer } from 'node:net';
import { Cells } from '../../src/backends/local/gcra-table.ts';
import { type Clock, systemClock } from '../../src/core/clock.ts';
import { hasher } from '../../src/core/hash.ts';
import { readLimits } from '../../src/daemon/config/limits.ts';
import { lineProtocol } from '../../src/daemon/protocols/line/handler.ts';
import { type RespSetting, respProtocol } from '../../src/daemon/protocols/resp/handler.ts';
import { Shelf } from '../../src/daemon/router/limiter-registry.ts';
import { Gate } from '../../src/daemon/router/router.ts';
import { Streams } from '../../src/daemon/server/connections.ts';
import type { Converse } from '../../src/daemon/server/protocol-handler.ts';
import { Answers } from '../../src/daemon/server/response-queue.ts';

export interface Small {
  readonly gate: Gate;
  readonly cells: Cells;
  readonly resp: Converse;
  readonly line: Converse;
}

type Extra = Partial<RespSetting> & { readonly limits?: unknown; readonly lineMax?: number };

/** A bucket for everybody, one with calls in flight and one that is for nobody by itself. */
const LIMITS = {
  everybody: { bucket: { rate: '1/s', burst: 5 } },
  flights: { adaptive: { initial: 2 }, match: 'flight:*' },
  slow: { bucket: { rate: '1/m', burst: 1 }, match: 'exact:nobody' },
};

export function smallDaemon(clock: Clock = systemClock, extra: Extra = {}): Small {
  const own = hasher([7, 11]);
  const limits = readLimits(extra.limits ?? LIMITS, 'limits');
  const shelf = new Shelf({
    clock,
    hasher: own,
    shareOf: () => undefined,
  });
  shelf.stock(limits);
  const gate = new Gate({ allow: [], deny: [], unmatched: 'allow', limits }, shelf, own, () => 0);
  const cells = new Cells({ hasher: own, clock, keysMax: 100_000 });
  const resp = respProtocol({ gate, cells, version: '1.2.3', clock, ...extra });
  const isAllowed = gate.isAllowed.bind(gate);
  return { gate, cells, resp, line: lineProtocol(isAllowed, () => extra.lineMax ?? 64) };
}

/** What one client says, chunk by chunk, and all that it is told. */
export class Talk {
  readonly #conversation;
  #told: Buffer[] = [];
  isOver = false;

  constructor(converse: Converse) {
    this.#conversation = converse(
      new Answers(
        (bytes) => this.#told.push(bytes),
        () => {},
      ),
    );
  }

  say(chunk: string | Buffer): this {
    if (!this.isOver)
      this.isOver = !this.#conversation.hear(Buffer.from(chunk as string, 'latin1'));
    return this;
  }

  /** What was told since the last time; what is owed comes a turn later. */
  heard(): string {
    const told = Buffer.concat(this.#told).toString('latin1');
    this.#told = [];
    return told;
  }
}

/** A command as an array of bulk strings. */
export const bulk = (...args: readonly string[]): string =>
  `*${args.length}\r\n${args.map((own) => `$${Buffer.byteLength(own)}\r\n${own}\r\n`).join('')}`;

export interface Listening {
  readonly port: number;
  readonly streams: Streams;
  close(): Promise<void>;
}

/** Listens on loopback, at a free port or this one. */
export async function listen(converse: Converse, at: number | string = 0): Promise<Listening> {
  const bounds = { connectionsMax: 1000, slowMs: 5000, idleMs: Infinity };
  const streams = new Streams(converse, () => bounds, systemClock);
  const server = createServer({ allowHalfOpen: true }, (socket) => streams.accept(socket));
  await new Promise<void>((ready, failed) => {
    server.once('error', failed);
    if (typeof at === 'string') server.listen(at, ready);
    else server.listen(at, '127.0.0.1', ready);
  });
  return {
    port: typeof at === 'string' ? 0 : (server.address() as AddressInfo).port,
    streams,
    async close() {
      const closed = new Promise((done) => server.close(done));
      await streams.drain(100);
      await closed;
    },
  };
}
