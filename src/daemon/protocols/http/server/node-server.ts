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
  HTTP_BOUNDS,
  type HttpBounds,
  idleTimeoutOf,
  MAX_HEADER_BYTES,
  MAX_HEADERS,
} from '../bounds.ts';
import type { RequestHead } from '../key.ts';
import { type HttpResponse, problemResponse } from '../reply.ts';

/** How often it is looked who is slow. */
const TIMEOUT_CHECK_MS: Millis = 500;
const SERVER_OPTIONS = {
  maxHeaderSize: MAX_HEADER_BYTES,
  connectionsCheckingInterval: TIMEOUT_CHECK_MS,
};

/** A proxy says with these that it asks on behalf of a request: whose body is then none of ours. */
const FORWARDING_HEADERS = [
  'x-forwarded-uri',
  'x-forwarded-method',
  'x-original-uri',
  'x-original-method',
];

/** Whether what is asked for may stand in a body. */
const hasBody = ({ method, headers }: RequestHead): boolean =>
  method === 'POST' &&
  (headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0) &&
  FORWARDING_HEADERS.every((name) => headers[name] === undefined);

const NO_BODY = Buffer.alloc(0);

export interface NodeServerHooks {
  /** What a request is told. */
  handle(
    request: RequestHead,
    isLoopback: boolean,
    body: Buffer,
  ): HttpResponse | Promise<HttpResponse>;
  /** Hears of every reply before it goes out. */
  onResponse(reply: HttpResponse): void;
  /** False: after this reply it hangs up. */
  canKeepAlive(): boolean;
  /** A response that has only begun, and goes on once a second. */
  startEventStream(response: ServerResponse): void;
}

export class NodeHttpServer {
  readonly #hooks: NodeServerHooks;
  /** Whoever comes by loopback, and everybody else. */
  readonly #loopbackServer = createServer(SERVER_OPTIONS, this.#createListener(true));
  readonly #externalServer = createServer(SERVER_OPTIONS, this.#createListener(false));
  #maxBody = HTTP_BOUNDS.maxBody;

  constructor(hooks: NodeServerHooks) {
    this.#hooks = hooks;
    for (const server of [this.#loopbackServer, this.#externalServer]) {
      server.on('clientError', rejectUnparsed);
      server.emit('listening'); // from then on it watches who is slow
    }
  }

  /** From now on with other bounds. */
  configure(bounds: HttpBounds): void {
    this.#maxBody = bounds.maxBody;
    applyBounds(this.#loopbackServer, bounds);
    applyBounds(this.#externalServer, bounds);
  }

  accept(socket: Socket, isLoopback: boolean): void {
    (isLoopback ? this.#loopbackServer : this.#externalServer).emit('connection', socket);
  }

  /** Hangs up where nothing is being asked. */
  closeIdle(): void {
    this.#loopbackServer.close();
    this.#externalServer.close();
  }

  #createListener(isLoopback: boolean): RequestListener {
    return (request, response) => {
      if (request.method !== 'GET' && hasBody(request))
        this.#readBody(request, response, isLoopback);
      else this.#handle(request, response, isLoopback, NO_BODY);
    };
  }

  #handle(
    request: IncomingMessage,
    response: ServerResponse,
    isLoopback: boolean,
    body: Buffer,
  ): void {
    const reply = this.#hooks.handle(request, isLoopback, body);
    if (reply instanceof Promise) reply.then((late) => this.#send(response, late));
    else this.#send(response, reply);
  }

  /** Takes in a body, up to the bound. */
  #readBody(request: IncomingMessage, response: ServerResponse, isLoopback: boolean): void {
    const maxBody = this.#maxBody;
    const chunks: Buffer[] = [];
    let length = 0;
    const tooLong = (): void => {
      request.removeAllListeners('data').removeAllListeners('end');
      response.shouldKeepAlive = false; // what comes behind it is not worth reading
      this.#send(response, problemResponse(413, `The body has more than ${maxBody} bytes.`));
    };
    request.on('error', () => {}); // it hung up: nothing to tell anybody
    if (Number(request.headers['content-length']) > maxBody) {
      tooLong();
      return;
    }
    request.on('data', (chunk: Buffer) => {
      length += chunk.length;
      if (length <= maxBody) chunks.push(chunk);
      else tooLong();
    });
    request.on('end', () =>
      this.#handle(
        request,
        response,
        isLoopback,
        chunks.length === 1 ? chunks[0] : Buffer.concat(chunks),
      ),
    );
  }

  #send(response: ServerResponse, reply: HttpResponse): void {
    const { status, headers, body, isEventStream = false } = reply;
    this.#hooks.onResponse(reply);
    if (!this.#hooks.canKeepAlive()) response.shouldKeepAlive = false;
    if (isEventStream) {
      response.writeHead(status, [...headers]);
      response.write(body);
      this.#hooks.startEventStream(response);
      return;
    }
    const length = Buffer.byteLength(body);
    response.writeHead(status, [...headers, 'Content-Length', String(length)]);
    response.end(body, length === body.length ? 'latin1' : 'utf8'); // the same bytes, sooner
  }
}

function applyBounds(server: Server, bounds: HttpBounds): void {
  server.headersTimeout = bounds.slowMs;
  server.requestTimeout = bounds.slowMs;
  server.keepAliveTimeout = idleTimeoutOf(bounds);
  server.maxHeadersCount = MAX_HEADERS;
  server.maxRequestsPerSocket = 0; // as many as one likes
}

/** What is no HTTP, or too much of it, or too slow: answered before there is a request. */
function rejectUnparsed({ code }: Pick<NodeJS.ErrnoException, 'code'>, socket: Duplex): void {
  if (!socket.writable || code === 'ECONNRESET') return void socket.destroy();
  const { status, headers, body } = problemResponse(...parseErrorProblem(code));
  const lines = [
    `HTTP/1.1 ${status} ${JSON.parse(body).title}`,
    `${headers[0]}: ${headers[1]}`,
    `Content-Length: ${Buffer.byteLength(body)}`,
    'Connection: close',
  ];
  socket.end(`${lines.join('\r\n')}\r\n\r\n${body}`);
}

/** Whoever comes and never asks is told the same, whoever watches it. */
export const rejectTimedOut = (socket: Duplex): void =>
  rejectUnparsed({ code: REQUEST_TIMEOUT }, socket);

const REQUEST_TIMEOUT = 'ERR_HTTP_REQUEST_TIMEOUT';

function parseErrorProblem(code: string | undefined): [number, string] {
  if (code === 'HPE_HEADER_OVERFLOW')
    return [431, `Headers of more than ${MAX_HEADER_BYTES} bytes.`];
  if (code === REQUEST_TIMEOUT) return [408, 'The request did not come in time.'];
  return [400, 'That is no HTTP request.'];
}
