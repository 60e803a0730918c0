/**
 * The long way, which every request can go: Node's own HTTP server, bodies taken in up to a bound,
 * replies sent. The servers never listen: connections are handed to them.
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
import type { Millis } from '../../../../core/clock.ts';
import {
  HEADER_BYTES_MAX,
  HEADERS_MAX,
  HTTP_BOUNDS,
  type HttpBounds,
  idleTimeoutOf,
} from '../bounds.ts';
import type { Heard } from '../key.ts';
import { problem, type Reply } from '../reply.ts';

/** How often it is looked who is slow. */
const LOOK_EVERY_MS: Millis = 500;
const OPTIONS = { maxHeaderSize: HEADER_BYTES_MAX, connectionsCheckingInterval: LOOK_EVERY_MS };

/** A proxy says with these that it asks on behalf of a request: whose body is then none of ours. */
const FORWARDED = ['x-forwarded-uri', 'x-forwarded-method', 'x-original-uri', 'x-original-method'];

/** Whether what is asked for may stand in a body. */
const hasBody = ({ method, headers }: Heard): boolean =>
  method === 'POST' &&
  (headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0) &&
  FORWARDED.every((name) => headers[name] === undefined);

const NO_BODY = Buffer.alloc(0);

export interface LongWayTold {
  /** What a request is told. */
  answer(request: Heard, isLoopback: boolean, body: Buffer): Reply | Promise<Reply>;
  /** Hears of every reply before it goes out. */
  replied(reply: Reply): void;
  /** False: after this reply it hangs up. */
  staysOpen(): boolean;
  /** A response that has only begun, and goes on once a second. */
  feeds(response: ServerResponse): void;
}

export class LongWay {
  readonly #told: LongWayTold;
  /** Whoever comes by loopback, and everybody else. */
  readonly #here = createServer(OPTIONS, this.#listener(true));
  readonly #elsewhere = createServer(OPTIONS, this.#listener(false));
  #bodyMax = HTTP_BOUNDS.bodyMax;

  constructor(told: LongWayTold) {
    this.#told = told;
    for (const server of [this.#here, this.#elsewhere]) {
      server.on('clientError', refuseRaw);
      server.emit('listening'); // from then on it watches who is slow
    }
  }

  /** From now on with other bounds. */
  bind(bounds: HttpBounds): void {
    this.#bodyMax = bounds.bodyMax;
    bind(this.#here, bounds);
    bind(this.#elsewhere, bounds);
  }

  take(socket: Socket, isLoopback: boolean): void {
    (isLoopback ? this.#here : this.#elsewhere).emit('connection', socket);
  }

  /** Hangs up where nothing is being asked. */
  closeIdle(): void {
    this.#here.close();
    this.#elsewhere.close();
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
    const reply = this.#told.answer(request, isLoopback, body);
    if (reply instanceof Promise) reply.then((late) => this.#send(response, late));
    else this.#send(response, reply);
  }

  /** Takes in a body, up to the bound. */
  #hear(request: IncomingMessage, response: ServerResponse, isLoopback: boolean): void {
    const bodyMax = this.#bodyMax;
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

  #send(response: ServerResponse, reply: Reply): void {
    const { status, headers, body, isFeed = false } = reply;
    this.#told.replied(reply);
    if (!this.#told.staysOpen()) response.shouldKeepAlive = false;
    if (isFeed) {
      response.writeHead(status, [...headers]);
      response.write(body);
      this.#told.feeds(response);
      return;
    }
    const length = Buffer.byteLength(body);
    response.writeHead(status, [...headers, 'Content-Length', String(length)]);
    response.end(body, length === body.length ? 'latin1' : 'utf8'); // the same bytes, sooner
  }
}

function bind(server: Server, bounds: HttpBounds): void {
  server.headersTimeout = bounds.slowMs;
  server.requestTimeout = bounds.slowMs;
  server.keepAliveTimeout = idleTimeoutOf(bounds);
  server.maxHeadersCount = HEADERS_MAX;
  server.maxRequestsPerSocket = 0; // as many as one likes
}

/** What is no HTTP, or too much of it, or too slow: answered before there is a request. */
function refuseRaw({ code }: Pick<NodeJS.ErrnoException, 'code'>, socket: Duplex): void {
  if (!socket.writable || code === 'ECONNRESET') return void socket.destroy();
  const { status, headers, body } = problem(...rawProblem(code));
  const lines = [
    `HTTP/1.1 ${status} ${JSON.parse(body).title}`,
    `${headers[0]}: ${headers[1]}`,
    `Content-Length: ${Buffer.byteLength(body)}`,
    'Connection: close',
  ];
  socket.end(`${lines.join('\r\n')}\r\n\r\n${body}`);
}

/** Whoever comes and never asks is told the same, whoever watches it. */
export const refuseSilent = (socket: Duplex): void => refuseRaw({ code: TOO_SLOW }, socket);

const TOO_SLOW = 'ERR_HTTP_REQUEST_TIMEOUT';

function rawProblem(code: string | undefined): [number, string] {
  if (code === 'HPE_HEADER_OVERFLOW')
    return [431, `Headers of more than ${HEADER_BYTES_MAX} bytes.`];
  if (code === TOO_SLOW) return [408, 'The request did not come in time.'];
  return [400, 'That is no HTTP request.'];
}
