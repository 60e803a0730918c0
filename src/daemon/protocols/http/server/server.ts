/**
 *     const server = new HttpServer(context, settings);
 *     createServer((socket) => server.accept(socket, isLoopback)).listen(7612, '127.0.0.1');
 *
 * A connection starts on the fast path (`fast-path/`), which handles plain checks. With the first other
 * request it moves to Node's HTTP server (`node-server.ts`). `fastPath: false` starts it there. Both call
 * the same `handler.ts`.
 */

import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { type BatchClock, type Clock, type Millis, schedule } from '../../../../core/clock.ts';
import { scheduleDrainEnd } from '../../../config/drain-time.ts';
import type { ConnectionCounts } from '../../../server/connections.ts';
import { IdleEviction } from '../../../server/idle-eviction.ts';
import { PacedSocket } from '../../../server/paced-socket.ts';
import { canReuseReadBuffer } from '../../../server/read-buffer.ts';
import { RelayedSocket } from '../../../server/relayed-socket.ts';
import { Turns } from '../../../server/turns.ts';
import { HTTP_BOUNDS, type HttpBounds, idleTimeoutOf } from '../bounds.ts';
import { EventStream } from '../event-stream.ts';
import { HttpHandler, type HttpHandlerContext } from '../handler.ts';
import type { RequestHead } from '../key.ts';
import type { EventualResponse } from '../response.ts';
import { FastPathConnection, type FastPathHooks } from './fast-path/connection.ts';
import { ResponseWriter } from './fast-path/parse.ts';
import { NodeHttpServer, rejectOversized, rejectTimedOut } from './node-server.ts';

/** Fixed for the life of the daemon. */
export interface HttpContext
  extends Omit<
    HttpHandlerContext,
    'bounds' | 'eventStream' | 'admin' | 'extractKey' | 'allowCrossSite' | 'turns'
  > {
  readonly clock: Clock | BatchClock;
  /** Shared with the other protocols; default: its own. */
  readonly turns?: Turns | undefined;
}

/** Settings that a reload may change. */
export interface HttpSettings
  extends Pick<HttpHandlerContext, 'admin' | 'extractKey' | 'allowCrossSite'> {
  readonly bounds?: Partial<HttpBounds> | undefined;
  /** False: Node's HTTP server handles new connections from the start. Default: true. */
  readonly fastPath?: boolean | undefined;
}

interface HttpCounts extends Omit<ConnectionCounts, 'protocolErrors'> {
  readonly responsesByStatus: Readonly<Record<number, number>>;
}

const isRelayed = (socket: unknown): boolean => socket instanceof RelayedSocket;

/** One more than the largest status. */
const STATUS_SLOTS = 600;

/** Connections that only loopback addresses and Unix sockets get, so that an operator can connect during a flood; at most a tenth. */
export const MAX_RESERVED = 16;

export class HttpServer {
  readonly #context: HttpContext;
  readonly #batchClock: BatchClock | undefined;
  readonly #turns: Turns;
  readonly #eventStream: EventStream;
  readonly #responsesByStatus = new Float64Array(STATUS_SLOTS);
  readonly #open = new Set<FastPathConnection | PacedSocket>();
  readonly #eviction = new IdleEviction(this.#open);
  /** Bytes sent by the last poll, of connections that had unsent bytes then. */
  #sentAtLastPoll = new Map<Socket, number>();
  #cancelPoll = (): void => {};
  readonly #nodeServer: NodeHttpServer;
  readonly #writer = new ResponseWriter();
  readonly #loopbackHooks: FastPathHooks;
  readonly #externalHooks: FastPathHooks;
  readonly #totals = { accepted: 0, refused: 0, slow: 0, evicted: 0, oversized: 0 };
  #bounds = HTTP_BOUNDS;
  #usesFastPath = true;
  readonly #timeouts = { slowMs: 0, idleMs: 0 };
  #handler: HttpHandler;

  constructor(context: HttpContext, settings: HttpSettings) {
    this.#context = context;
    this.#batchClock = 'freeze' in context.clock ? context.clock : undefined;
    this.#turns = context.turns ?? new Turns();
    this.#loopbackHooks = this.#fastPathHooks(true);
    this.#externalHooks = this.#fastPathHooks(false);
    this.#eventStream = new EventStream(
      context.router.registry,
      context.clock,
      context.router.denials,
      () => context.router.limits,
    );
    this.#nodeServer = new NodeHttpServer({
      handle: (...request) => this.#handle(...request),
      onResponse: ({ status }) => void this.#responsesByStatus[status]++,
      canKeepAlive: () => context.isReady(),
      startEventStream: (response) => this.#eventStream.add(response),
      onRefused: this.#onRefused,
    });
    this.#handler = this.#createHandler(settings);
  }

  get counts(): HttpCounts {
    const byStatus = [...this.#responsesByStatus].flatMap((count, status) =>
      count > 0 ? [[status, count] as const] : [],
    );
    const responsesByStatus = Object.fromEntries(byStatus);
    return { open: this.#open.size, ...this.#totals, responsesByStatus };
  }

  /** Handles requests without a socket. */
  get handler(): HttpHandler {
    return this.#handler;
  }

  /** Applies other settings to every request and connection from now on. */
  configure(settings: HttpSettings): void {
    this.#handler = this.#createHandler(settings);
  }

  /** Takes over a connection; `isLoopback` if only clients on this host can have opened it. */
  accept(socket: Socket, isLoopback: boolean): void {
    const { maxConnections } = this.#bounds;
    const reserved = isLoopback ? 0 : Math.min(MAX_RESERVED, Math.floor(maxConnections / 10));
    const { held } = this.#turns;
    const { size } = this.#open;
    const isFull = held.isFull(size, reserved) || size >= maxConnections - reserved;
    if (isFull && !this.#evict()) {
      this.#totals.refused++;
      socket.destroy();
      return;
    }
    this.#totals.accepted++;
    held.connections++;
    if (this.#open.size === 0) this.#schedulePoll();
    const connection = this.#adopt(socket, isLoopback);
    this.#open.add(connection);
    connection.socket.once('close', () => {
      held.connections--;
      this.#open.delete(connection);
    });
  }

  /** Closes an idle connection; false if there is none. */
  #evict(): boolean {
    const chosen = this.#eviction.choose(this.#turns.now);
    if (chosen === undefined) return false;
    this.#totals.evicted++;
    this.#open.delete(chosen);
    chosen.socket.destroy();
    return true;
  }

  #adopt(socket: Socket, isLoopback: boolean): FastPathConnection | PacedSocket {
    if (this.#usesFastPath && (canReuseReadBuffer(socket) || isRelayed(socket))) {
      return new FastPathConnection(socket, isLoopback ? this.#loopbackHooks : this.#externalHooks);
    }
    const connection = new PacedSocket(socket, this.#turns);
    socket.on('data', (chunk) => connection.receive(chunk));
    this.#nodeServer.accept(connection, isLoopback);
    return connection;
  }

  /** Answers pending requests and closes all connections; those still open after `withinMs` are destroyed. */
  async drain(withinMs: Millis): Promise<void> {
    this.#eventStream.close();
    const { clock } = this.#context;
    const closed = [...this.#open].map(
      ({ socket }) => new Promise((resolve) => socket.once('close', resolve)),
    );
    const destroyAll = (): void => {
      for (const { socket } of this.#open) socket.destroy();
    };
    const cancel = scheduleDrainEnd(clock, withinMs, destroyAll);
    this.#nodeServer.closeIdle();
    for (const connection of this.#open) {
      const { socket } = connection;
      if (socket.bytesRead === 0)
        socket.destroy(); // no request was ever sent
      else if (connection instanceof FastPathConnection) connection.finish();
    }
    await Promise.all(closed);
    cancel();
  }

  #createHandler(settings: HttpSettings): HttpHandler {
    const { admin, extractKey, allowCrossSite, bounds, fastPath = true } = settings;
    this.#bounds = { ...HTTP_BOUNDS, ...bounds };
    this.#usesFastPath = fastPath;
    this.#timeouts.slowMs = this.#bounds.slowMs;
    this.#timeouts.idleMs = idleTimeoutOf(this.#bounds);
    this.#eventStream.maxSubscribers = this.#bounds.maxSubscribers;
    this.#nodeServer.configure(this.#bounds);
    const current = { admin, extractKey, allowCrossSite, bounds: this.#bounds, turns: this.#turns };
    return new HttpHandler({ ...this.#context, ...current, eventStream: this.#eventStream });
  }

  readonly #onRefused = (socket: Duplex | undefined): void => {
    this.#totals.oversized++;
    if (socket) rejectOversized(socket);
  };

  #handle(request: RequestHead, isLoopback: boolean, body: Buffer): EventualResponse {
    this.#batchClock?.freeze(); // decision and status at the same instant
    const response = this.#handler.handle(request, isLoopback, body);
    this.#batchClock?.unfreeze();
    return response;
  }

  /** The encoded response; undefined if a remote limit decides or the connection must be closed. */
  readonly #localHandler =
    (isLoopback: boolean) =>
    (check: RequestHead): string | undefined => {
      if (!this.#context.isReady()) return undefined;
      this.#batchClock?.freeze(this.#turns.beganAt);
      const response = this.#handler.handleLocally(check, isLoopback);
      const now = this.#context.clock.now();
      this.#batchClock?.unfreeze();
      if (response === undefined) return undefined;
      this.#responsesByStatus[response.status]++;
      return this.#writer.write(response, now, this.#timeouts.idleMs);
    };

  #fastPathHooks(isLoopback: boolean): FastPathHooks {
    return {
      handle: this.#localHandler(isLoopback),
      onHandOff: (connection) => this.#nodeServer.accept(connection, isLoopback),
      onRequestTimeout: rejectTimedOut,
      onRefused: this.#onRefused,
      timeouts: this.#timeouts,
      turns: this.#turns,
    };
  }

  /** Closes connections with unsent bytes whose client has read nothing since the last poll. */
  #dropSlowReaders(): void {
    const before = this.#sentAtLastPoll;
    this.#sentAtLastPoll = new Map();
    for (const { socket } of this.#open) {
      if (socket.writableLength === 0) continue;
      const sent = socket.bytesWritten - socket.writableLength;
      if (before.get(socket) !== sent) this.#sentAtLastPoll.set(socket, sent);
      else {
        this.#totals.slow++;
        socket.destroy();
      }
    }
    if (this.#open.size > 0) this.#schedulePoll();
  }

  #schedulePoll(): void {
    const { clock } = this.#context;
    const at = clock.now() + this.#bounds.slowMs;
    this.#cancelPoll();
    this.#cancelPoll = schedule(clock, at, () => this.#dropSlowReaders(), false);
  }
}
