/**
 * HTTP on sockets: connections taken over with a bound on everything, and hung up in the end.
 *
 *     const surface = createHttpServer(setting, now);
 *     createServer((socket) => surface.accept(socket, isLoopback)).listen(7612, '127.0.0.1');
 *
 * Each begins on the short way (`connection.ts`), which is for plain checks, and goes the long one
 * (`node-server.ts`) from the first other request on. What is asked and answered is the desk's affair: `handler.ts`.
 */

import type { Socket } from 'node:net';
import { type BatchClock, type Clock, type Millis, schedule } from '../../../../core/clock.ts';
import { canReuseReadBuffer } from '../../../server/read-buffer.ts';
import type { AdminAccess } from '../access.ts';
import { HTTP_BOUNDS, type HttpBounds, idleTimeoutOf } from '../bounds.ts';
import { EventStream, type EventStreamCounts } from '../events-stream.ts';
import { CheckHandler, type CheckHandlerContext } from '../handler.ts';
import type { KeyExtractor, RequestHead } from '../key.ts';
import type { HttpResponse } from '../reply.ts';
import { FastPathConnection, type FastPathHooks } from './fast-path/connection.ts';
import { ResponseWriter } from './fast-path/parse.ts';
import { NodeHttpServer, rejectTimedOut } from './node-server.ts';

/** What stays as long as the daemon does. */
export interface HttpContext
  extends Omit<CheckHandlerContext, 'bounds' | 'eventStream' | 'admin' | 'extractKey'> {
  readonly clock: Clock | BatchClock;
}

/** What a configuration says, until the next one does. */
export interface HttpSettings {
  readonly admin: AdminAccess;
  /** Where the key of a check comes from that names none; undefined: it has to. */
  readonly extractKey?: KeyExtractor | undefined;
  readonly bounds?: Partial<HttpBounds> | undefined;
}

/** What happened since the start. */
export interface HttpCounts {
  readonly open: number;
  readonly accepted: number;
  /** Turned away: there were too many. */
  readonly refused: number;
  /** Let go because they did not read their answers. */
  readonly slow: number;
  /** Answers by status. */
  readonly responsesByStatus: Readonly<Record<number, number>>;
  readonly eventStream: EventStreamCounts;
}

/** One more than the largest status there is. */
const STATUS_SLOTS = 600;

export const createHttpServer = (context: HttpContext, settings: HttpSettings): HttpServer =>
  new HttpServer(context, settings);

export class HttpServer {
  readonly #context: HttpContext;
  readonly #batchClock: BatchClock | undefined;
  readonly #eventStream: EventStream;
  readonly #responsesByStatus = new Float64Array(STATUS_SLOTS);
  /** Connections, and which of them have begun the short way. */
  readonly #open = new Map<Socket, FastPathConnection | undefined>();
  /** Of these, who had answers waiting at the last look, and how much had gone out by then. */
  #unsentAtLastPoll = new Map<Socket, number>();
  #cancelPoll = (): void => {};
  readonly #nodeServer: NodeHttpServer;
  /** For whoever comes by loopback, and everybody else. */
  readonly #loopbackFastPath = this.#fastPathHooks(true);
  readonly #externalFastPath = this.#fastPathHooks(false);
  readonly #writer = new ResponseWriter();
  #accepted = 0;
  #refused = 0;
  #slow = 0;
  #bounds = HTTP_BOUNDS;
  #handler: CheckHandler;

  constructor(context: HttpContext, settings: HttpSettings) {
    this.#context = context;
    this.#batchClock = 'freeze' in context.clock ? context.clock : undefined;
    this.#eventStream = new EventStream(context.router.registry, context.clock);
    this.#nodeServer = new NodeHttpServer({
      handle: (...asked) => this.#handle(...asked),
      onResponse: ({ status }) => void this.#responsesByStatus[status]++,
      canKeepAlive: () => context.isReady(),
      startEventStream: (response) => this.#eventStream.add(response),
    });
    this.#handler = this.#createHandler(settings);
  }

  get counts(): HttpCounts {
    const seen = [...this.#responsesByStatus].flatMap((count, status) =>
      count > 0 ? [[status, count] as const] : [],
    );
    return {
      open: this.#open.size,
      accepted: this.#accepted,
      refused: this.#refused,
      slow: this.#slow,
      responsesByStatus: Object.fromEntries(seen),
      eventStream: this.#eventStream.counts,
    };
  }

  /** What a request is told, without a socket. */
  get handler(): CheckHandler {
    return this.#handler;
  }

  /** From now on by another configuration. */
  configure(settings: HttpSettings): void {
    this.#handler = this.#createHandler(settings);
  }

  /** Takes over a connection; `isLoopback` if nobody but this host can have made it. */
  accept(socket: Socket, isLoopback: boolean): void {
    if (this.#open.size >= this.#bounds.maxConnections) {
      this.#refused++;
      socket.destroy();
      return;
    }
    this.#accepted++;
    if (this.#open.size === 0) this.#schedulePoll();
    const own = this.#adopt(socket, isLoopback);
    own.once('close', () => this.#open.delete(own));
  }

  /** The socket to go on with. */
  #adopt(socket: Socket, isLoopback: boolean): Socket {
    if (!canReuseReadBuffer(socket)) {
      this.#open.set(socket, undefined);
      this.#nodeServer.accept(socket, isLoopback);
      return socket;
    }
    const connection = new FastPathConnection(
      socket,
      isLoopback ? this.#loopbackFastPath : this.#externalFastPath,
    );
    this.#open.set(connection.socket, connection);
    return connection.socket;
  }

  /** Answers what was asked, and hangs up. Replies ask to, once `isReady` says no. */
  async drain(withinMs: Millis): Promise<void> {
    this.#eventStream.close();
    const { clock } = this.#context;
    const ended = [...this.#open.keys()].map(
      (socket) => new Promise((end) => socket.once('close', end)),
    );
    const cancel = schedule(
      clock,
      clock.now() + withinMs,
      () => {
        for (const socket of this.#open.keys()) socket.destroy();
      },
      true,
    );
    this.#nodeServer.closeIdle();
    for (const [socket, shortWay] of this.#open) {
      if (socket.bytesRead === 0)
        socket.destroy(); // never asked
      else shortWay?.finish();
    }
    await Promise.all(ended);
    cancel();
  }

  #createHandler({ admin, extractKey, bounds }: HttpSettings): CheckHandler {
    this.#bounds = { ...HTTP_BOUNDS, ...bounds };
    this.#eventStream.maxSubscribers = this.#bounds.maxSubscribers;
    this.#nodeServer.configure(this.#bounds);
    return new CheckHandler({
      ...this.#context,
      admin,
      extractKey,
      bounds: this.#bounds,
      eventStream: this.#eventStream,
    });
  }

  #handle(
    request: RequestHead,
    isLoopback: boolean,
    body: Buffer,
  ): HttpResponse | Promise<HttpResponse> {
    this.#batchClock?.freeze(); // a check decides and tells of it at one instant
    const reply = this.#handler.handle(request, isLoopback, body);
    this.#batchClock?.unfreeze();
    return reply;
  }

  #fastPathHooks(isLoopback: boolean): FastPathHooks {
    return {
      handle: (check) => this.#handleLocally(check),
      onHandOff: (socket) => this.#nodeServer.accept(socket, isLoopback),
      onRequestTimeout: rejectTimedOut,
      bounds: () => this.#bounds,
    };
  }

  /** The bytes of an answer, if nobody else has a say in it and the connection stays open. */
  #handleLocally(check: RequestHead): string | undefined {
    if (!this.#context.isReady()) return undefined;
    this.#batchClock?.freeze();
    const reply = this.#handler.handleLocally(check);
    const now = this.#context.clock.now();
    this.#batchClock?.unfreeze();
    if (reply === undefined) return undefined;
    this.#responsesByStatus[reply.status]++;
    return this.#writer.write(reply, now, idleTimeoutOf(this.#bounds));
  }

  /** Lets go who has answers waiting and has read none since the last look. */
  #dropSlowReaders(): void {
    const before = this.#unsentAtLastPoll;
    this.#unsentAtLastPoll = new Map();
    for (const socket of this.#open.keys()) {
      if (socket.writableLength === 0) continue;
      const sent = socket.bytesWritten - socket.writableLength;
      if (before.get(socket) !== sent) this.#unsentAtLastPoll.set(socket, sent);
      else {
        this.#slow++;
        socket.destroy();
      }
    }
    if (this.#open.size > 0) this.#schedulePoll();
  }

  #schedulePoll(): void {
    const { clock } = this.#context;
    this.#cancelPoll();
    this.#cancelPoll = schedule(
      clock,
      clock.now() + this.#bounds.slowMs,
      () => this.#dropSlowReaders(),
      false,
    );
  }
}
