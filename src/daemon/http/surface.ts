/**
 * HTTP on sockets: connections taken over with a bound on everything, bodies taken in, replies sent.
 *
 *     const surface = httpSurface(setting, now);
 *     createServer((socket) => surface.accept(socket, isLoopback)).listen(7612, '127.0.0.1');
 *
 * What is asked and answered is the desk's affair: `desk.ts`.
 */

import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { alarm, type Clock, type HeldClock, type Millis } from '../../clock.ts';
import type { AccessSetting } from './access.ts';
import { DESK_BOUNDS, Desk, type DeskBounds, type DeskSetting } from './desk.ts';
import { Feed, type FeedCounts } from './feed.ts';
import type { Heard, KeyOf } from './key.ts';
import { problem, type Reply } from './reply.ts';

/** What stays as long as the daemon does. */
export interface HttpSetting extends Omit<DeskSetting, 'bounds' | 'feed' | 'admin' | 'keyOf'> {
  readonly clock: Clock | HeldClock;
}

/** What a configuration says, until the next one does. */
export interface HttpNow {
  readonly admin: AccessSetting;
  /** Where the key of a check comes from that names none; undefined: it has to. */
  readonly keyOf?: KeyOf | undefined;
  readonly bounds?: Partial<HttpBounds> | undefined;
}

export interface HttpBounds extends DeskBounds {
  /** Bytes of a body. */
  readonly bodyMax: number;
  /** Who may listen to the feed at once. */
  readonly feedMax: number;
  /** Connections at once. */
  readonly connectionsMax: number;
  /** How long a connection that stays open may be silent between two requests; Infinity: for ever. */
  readonly idleMs: Millis;
  /** How long a client may take to send a request, or not read its answer. */
  readonly slowMs: Millis;
}

export const HTTP_BOUNDS: HttpBounds = {
  ...DESK_BOUNDS,
  bodyMax: 1_048_576,
  feedMax: 100,
  connectionsMax: 10_000,
  idleMs: Infinity,
  slowMs: 10_000,
};

/** Bytes of all headers of a request, and how many there may be. */
const HEADER_BYTES_MAX = 16_384;
const HEADERS_MAX = 100;

/** How often it is looked who is slow. */
const LOOK_EVERY_MS: Millis = 500;
const OPTIONS = { maxHeaderSize: HEADER_BYTES_MAX, connectionsCheckingInterval: LOOK_EVERY_MS };

/** What happened since the start. */
export interface HttpCounts {
  readonly open: number;
  readonly accepted: number;
  /** Turned away: there were too many. */
  readonly refused: number;
  /** Let go because they did not read their answers. */
  readonly slow: number;
  /** Answers by status. */
  readonly answered: Readonly<Record<number, number>>;
  readonly feed: FeedCounts;
}

/** A proxy says with these that it asks on behalf of a request: whose body is then none of ours. */
const FORWARDED = ['x-forwarded-uri', 'x-forwarded-method', 'x-original-uri', 'x-original-method'];

/** Whether what is asked for may stand in a body. */
const hasBody = ({ method, headers }: Heard): boolean =>
  method === 'POST' &&
  (headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0) &&
  FORWARDED.every((name) => headers[name] === undefined);

const NO_BODY = Buffer.alloc(0);

/** One more than the largest status there is. */
const STATUSES = 600;

export const httpSurface = (setting: HttpSetting, now: HttpNow): HttpSurface =>
  new HttpSurface(setting, now);

export class HttpSurface {
  readonly #setting: HttpSetting;
  readonly #held: HeldClock | undefined;
  readonly #feed: Feed;
  readonly #answered = new Float64Array(STATUSES);
  readonly #open = new Set<Socket>();
  /** Of these, who had answers waiting at the last look, and how much had gone out by then. */
  #behind = new Map<Socket, number>();
  #cancelLook = (): void => {};
  /** Whoever comes by loopback, and everybody else. They never listen: sockets are handed to them. */
  readonly #here = createServer(OPTIONS, this.#listener(true));
  readonly #elsewhere = createServer(OPTIONS, this.#listener(false));
  #accepted = 0;
  #refused = 0;
  #slow = 0;
  #bounds = HTTP_BOUNDS;
  #desk: Desk;

  constructor(setting: HttpSetting, now: HttpNow) {
    this.#setting = setting;
    this.#held = 'hold' in setting.clock ? setting.clock : undefined;
    this.#feed = new Feed(setting.gate.shelf, setting.clock);
    this.#desk = this.#deskFor(now);
    for (const server of [this.#here, this.#elsewhere]) {
      server.on('clientError', refuseRaw);
      server.emit('listening'); // from then on it watches who is slow
    }
  }

  get counts(): HttpCounts {
    const seen = [...this.#answered].flatMap((count, status) =>
      count > 0 ? [[status, count] as const] : [],
    );
    return {
      open: this.#open.size,
      accepted: this.#accepted,
      refused: this.#refused,
      slow: this.#slow,
      answered: Object.fromEntries(seen),
      feed: this.#feed.counts,
    };
  }

  /** What a request is told, without a socket. */
  get desk(): Desk {
    return this.#desk;
  }

  /** From now on by another configuration. */
  change(now: HttpNow): void {
    this.#desk = this.#deskFor(now);
  }

  /** Takes over a connection; `isLoopback` if nobody but this host can have made it. */
  accept(socket: Socket, isLoopback: boolean): void {
    if (this.#open.size >= this.#bounds.connectionsMax) {
      this.#refused++;
      socket.destroy();
      return;
    }
    this.#accepted++;
    if (this.#open.size === 0) this.#lookLater();
    this.#open.add(socket);
    socket.once('close', () => this.#open.delete(socket));
    (isLoopback ? this.#here : this.#elsewhere).emit('connection', socket);
  }

  /** Answers what was asked, and hangs up. Replies ask to, once `isReady` says no. */
  async drain(withinMs: Millis): Promise<void> {
    this.#feed.close();
    const { clock } = this.#setting;
    const ended = [...this.#open].map((socket) => new Promise((end) => socket.once('close', end)));
    const cancel = alarm(
      clock,
      clock.now() + withinMs,
      () => {
        for (const socket of this.#open) socket.destroy();
      },
      true,
    );
    this.#here.close(); // hangs up where nothing is being asked
    this.#elsewhere.close();
    for (const socket of this.#open) if (socket.bytesRead === 0) socket.destroy(); // never asked
    await Promise.all(ended);
    cancel();
  }

  #deskFor({ admin, keyOf, bounds }: HttpNow): Desk {
    this.#bounds = { ...HTTP_BOUNDS, ...bounds };
    this.#feed.listenersMax = this.#bounds.feedMax;
    bind(this.#here, this.#bounds);
    bind(this.#elsewhere, this.#bounds);
    return new Desk({ ...this.#setting, admin, keyOf, bounds: this.#bounds, feed: this.#feed });
  }

  #listener(isLoopback: boolean): RequestListener {
    return (request, response) => {
      if (request.method !== 'GET' && hasBody(request)) this.#hear(request, response, isLoopback);
      else this.#answer(request, response, isLoopback, NO_BODY);
    };
  }

  #answer(
    request: IncomingMessage,
    response: ServerResponse,
    isLoopback: boolean,
    body: Buffer,
  ): void {
    this.#held?.hold(); // a check decides and tells of it at one instant
    const reply = this.#desk.answer(request, isLoopback, body);
    this.#held?.letGo();
    if (reply instanceof Promise) reply.then((late) => this.#send(response, late));
    else this.#send(response, reply);
  }

  /** Takes in a body, up to the bound. */
  #hear(request: IncomingMessage, response: ServerResponse, isLoopback: boolean): void {
    const { bodyMax } = this.#bounds;
    const chunks: Buffer[] = [];
    let length = 0;
    const tooLong = (): void => {
      request.removeAllListeners('data').removeAllListeners('end');
      response.shouldKeepAlive = false; // what comes behind it is not worth reading
      this.#send(response, problem(413, `The body has more than ${bodyMax} bytes.`));
    };
    request.on('error', () => {}); // it hung up: nothing to tell anybody
    if (Number(request.headers['content-length']) > bodyMax) {
      tooLong();
      return;
    }
    request.on('data', (chunk: Buffer) => {
      length += chunk.length;
      if (length <= bodyMax) chunks.push(chunk);
      else tooLong();
    });
    request.on('end', () =>
      this.#answer(
        request,
        response,
        isLoopback,
        chunks.length === 1 ? chunks[0] : Buffer.concat(chunks),
      ),
    );
  }

  #send(response: ServerResponse, { status, headers, body, isFeed = false }: Reply): void {
    this.#answered[status]++;
    if (!this.#setting.isReady()) response.shouldKeepAlive = false;
    if (isFeed) {
      response.writeHead(status, [...headers]);
      response.write(body);
      this.#feed.add(response);
      return;
    }
    const length = Buffer.byteLength(body);
    response.writeHead(status, [...headers, 'Content-Length', String(length)]);
    response.end(body, length === body.length ? 'latin1' : 'utf8'); // the same bytes, sooner
  }

  /** Lets go who has answers waiting and has read none since the last look. */
  #look(): void {
    const before = this.#behind;
    this.#behind = new Map();
    for (const socket of this.#open) {
      if (socket.writableLength === 0) continue;
      const sent = socket.bytesWritten - socket.writableLength;
      if (before.get(socket) !== sent) this.#behind.set(socket, sent);
      else {
        this.#slow++;
        socket.destroy();
      }
    }
    if (this.#open.size > 0) this.#lookLater();
  }

  #lookLater(): void {
    const { clock } = this.#setting;
    this.#cancelLook();
    this.#cancelLook = alarm(clock, clock.now() + this.#bounds.slowMs, () => this.#look(), false);
  }
}

/** Node counts an idle connection in whole milliseconds; 0: for ever. */
function bind(server: Server, { idleMs, slowMs }: HttpBounds): void {
  server.headersTimeout = slowMs;
  server.requestTimeout = slowMs;
  server.keepAliveTimeout = idleMs === Infinity ? 0 : Math.ceil(idleMs);
  server.maxHeadersCount = HEADERS_MAX;
  server.maxRequestsPerSocket = 0; // as many as one likes
}

/** What is no HTTP, or too much of it, or too slow: answered before there is a request. */
function refuseRaw(error: NodeJS.ErrnoException, socket: Duplex): void {
  if (!socket.writable || error.code === 'ECONNRESET') return void socket.destroy();
  const { status, headers, body } = problem(...rawProblem(error.code));
  const lines = [
    `HTTP/1.1 ${status} ${JSON.parse(body).title}`,
    `${headers[0]}: ${headers[1]}`,
    `Content-Length: ${Buffer.byteLength(body)}`,
    'Connection: close',
  ];
  socket.end(`${lines.join('\r\n')}\r\n\r\n${body}`);
}

function rawProblem(code: string | undefined): [number, string] {
  if (code === 'HPE_HEADER_OVERFLOW')
    return [431, `Headers of more than ${HEADER_BYTES_MAX} bytes.`];
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') return [408, 'The request did not come in time.'];
  return [400, 'That is no HTTP request.'];
}
