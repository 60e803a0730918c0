/**
 * Serves every request that the fast path does not: Node's HTTP server, with a bound on bodies. The
 * servers never listen; connections are passed to them.
 */

import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { Duplex } from 'node:stream';
import type { Millis } from '../../../../core/clock.ts';
import type { PacedSocket } from '../../../server/paced-socket.ts';
import {
  HTTP_BOUNDS,
  type HttpBounds,
  idleTimeoutOf,
  MAX_HEADER_BYTES,
  MAX_HEADERS,
} from '../bounds.ts';
import type { RequestHead } from '../key.ts';
import { asRequested, proxiedCheckUrl } from '../proxied-check.ts';
import { type EventualResponse, type HttpResponse, problemResponse, titleOf } from '../response.ts';

/** How often Node looks for connections beyond their timeouts. */
const TIMEOUT_CHECK_MS: Millis = 500;
const SERVER_OPTIONS = {
  maxHeaderSize: MAX_HEADER_BYTES,
  connectionsCheckingInterval: TIMEOUT_CHECK_MS,
  requireHostHeader: false, // `NO_HOST`: Node would go on reading behind its response, which closes the connection
};

/** A client that has sent all its requests may close its side, and still reads the responses. Not in the types of Node. */
const HALF_OPEN = { httpAllowHalfOpen: true };

/** Headers of a proxy that authorises another request: a body then belongs to that request. */
const FORWARDING_HEADERS = [
  'x-forwarded-uri',
  'x-forwarded-method',
  'x-original-uri',
  'x-original-method',
];

/** True if the body may hold the parameters. */
const hasBody = ({ method, headers, url = '' }: RequestHead): boolean =>
  method === 'POST' &&
  proxiedCheckUrl(url) === undefined &&
  (headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0) &&
  FORWARDING_HEADERS.every((name) => headers[name] === undefined);

const NO_BODY = Buffer.alloc(0);

const connectionOf = ({ socket }: IncomingMessage): PacedSocket => socket as Duplex as PacedSocket;

/** A dropped header may name the client: without it the client would count as the proxy. */
const hasDroppedHeaders = ({ rawHeaders }: IncomingMessage): boolean =>
  rawHeaders.length > MAX_HEADERS * 2;

const isHostMissing = ({ httpVersion, headers }: IncomingMessage): boolean =>
  httpVersion === '1.1' && headers.host === undefined;

const NO_HOST = problemResponse(400, 'Expected a Host header.');

const TOO_MANY_HEADERS = problemResponse(431, `The request has more than ${MAX_HEADERS} headers.`);

export interface NodeServerHooks {
  handle(request: RequestHead, isLoopback: boolean, body: Buffer): EventualResponse;
  onResponse(response: HttpResponse): void;
  /** False: the connection closes after this response. */
  canKeepAlive(): boolean;
  /** Takes over a response that stays open. */
  startEventStream(response: ServerResponse): void;
  /** The connection held too many bytes; undefined if the client cannot be told. */
  onRefused(connection: Duplex | undefined): void;
}

export class NodeHttpServer {
  readonly #hooks: NodeServerHooks;
  readonly #loopbackServer = createServer(SERVER_OPTIONS, this.#createListener(true));
  readonly #externalServer = createServer(SERVER_OPTIONS, this.#createListener(false));
  #maxBody = HTTP_BOUNDS.maxBody;

  constructor(hooks: NodeServerHooks) {
    this.#hooks = hooks;
    for (const server of [this.#loopbackServer, this.#externalServer]) {
      Object.assign(server, HALF_OPEN);
      server.on('clientError', rejectUnparsed);
      server.on('connect', (_request, socket) => this.#rejectConnect(socket));
      server.emit('listening'); // starts Node's timeout checks
    }
  }

  configure(bounds: HttpBounds): void {
    this.#maxBody = bounds.maxBody;
    applyBounds(this.#loopbackServer, bounds);
    applyBounds(this.#externalServer, bounds);
  }

  accept(connection: PacedSocket, isLoopback: boolean): void {
    connection.once('refused', (canTell) =>
      this.#hooks.onRefused(canTell ? connection : undefined),
    );
    (isLoopback ? this.#loopbackServer : this.#externalServer).emit('connection', connection);
  }

  /** Closes connections without a pending request. */
  closeIdle(): void {
    this.#loopbackServer.close();
    this.#externalServer.close();
  }

  #createListener(isLoopback: boolean): RequestListener {
    return (request, response) => {
      const connection = connectionOf(request);
      if (connection.isLast) return;
      connection.isLast = !response.shouldKeepAlive;
      if (hasDroppedHeaders(request)) {
        connection.endInput();
        this.#send(response, asRequested(request, TOO_MANY_HEADERS));
      } else if (isHostMissing(request)) this.#close(request, response, NO_HOST);
      else if (request.method !== 'GET' && hasBody(request))
        this.#readBody(request, response, isLoopback);
      else this.#handle(request, response, isLoopback, NO_BODY);
    };
  }

  #rejectConnect(connection: Duplex): void {
    this.#hooks.onResponse(NO_PROXY);
    endWith(connection, NO_PROXY);
  }

  #handle(
    request: IncomingMessage,
    response: ServerResponse,
    isLoopback: boolean,
    body: Buffer,
  ): void {
    const connection = connectionOf(request);
    if (!response.shouldKeepAlive) connection.discardInput();
    const result = connection.handle(() => this.#hooks.handle(request, isLoopback, body));
    if (!(result instanceof Promise)) {
      this.#send(response, result);
      return;
    }
    connection.beginRequest();
    result.then((later) => {
      this.#send(response, later);
      connection.endRequest();
    });
  }

  #readBody(request: IncomingMessage, response: ServerResponse, isLoopback: boolean): void {
    const maxBody = this.#maxBody;
    let body: Buffer = NO_BODY;
    let length = 0;
    connectionOf(request).beginBody();
    const tooLong = (): void => {
      request.removeAllListeners('data').removeAllListeners('end');
      this.#close(request, response, problemResponse(413, `The body exceeds ${maxBody} bytes.`));
    };
    request.on('error', () => {}); // the client closed the connection
    if (Number(request.headers['content-length']) > maxBody) return void tooLong();
    request.on('data', (chunk: Buffer) => {
      if (length + chunk.length > maxBody) return void tooLong();
      // Copied: a client chooses how small the chunks are, and each would keep what it is a part of.
      if (length + chunk.length > body.length) {
        const larger = Buffer.allocUnsafeSlow(Math.min(maxBody, 2 * (length + chunk.length)));
        body.copy(larger, 0, 0, length);
        body = larger;
      }
      chunk.copy(body, length);
      length += chunk.length;
    });
    request.on('end', () => this.#handle(request, response, isLoopback, body.subarray(0, length)));
  }

  /** Sends the last response of a connection. What follows the head of its request is not read. */
  #close(request: IncomingMessage, response: ServerResponse, encoded: HttpResponse): void {
    response.shouldKeepAlive = false;
    connectionOf(request).discardInput();
    this.#send(response, encoded);
  }

  #send(response: ServerResponse, encoded: HttpResponse): void {
    const { status, headers, body, isEventStream = false } = encoded;
    this.#hooks.onResponse(encoded);
    if (!this.#hooks.canKeepAlive()) response.shouldKeepAlive = false;
    if (isEventStream) {
      response.writeHead(status, [...headers]);
      response.write(body);
      connectionOf(response.req).beginRequest(); // it never ends
      this.#hooks.startEventStream(response);
      return;
    }
    const length = Buffer.byteLength(body);
    response.writeHead(status, [...headers, 'Content-Length', String(length)]);
    response.end(body, length === body.length ? 'latin1' : 'utf8'); // latin1 is faster, and the same for ASCII
  }
}

function applyBounds(server: Server, bounds: HttpBounds): void {
  server.headersTimeout = bounds.slowMs;
  server.requestTimeout = bounds.slowMs;
  server.keepAliveTimeout = idleTimeoutOf(bounds);
  server.maxHeadersCount = MAX_HEADERS + 1; // Node drops the rest: `hasDroppedHeaders`
  server.maxRequestsPerSocket = 0; // no bound
}

/** Answers bytes that never became a request: invalid HTTP, too many headers, or too slow. */
function rejectUnparsed({ code }: Pick<NodeJS.ErrnoException, 'code'>, socket: Duplex): void {
  if (!socket.writable || code === 'ECONNRESET') return void socket.destroy();
  endWith(socket, problemResponse(...parseErrorProblem(code)));
}

const NO_PROXY = problemResponse(405, 'This is no proxy.');

/** How long a client may take to close after the last response. */
const LINGER_MS: Millis = 2000;

/** Sends a last response without a request. */
function endWith(connection: Duplex, { status, headers, body }: HttpResponse): void {
  const lines = [
    `HTTP/1.1 ${status} ${titleOf(status)}`,
    `${headers[0]}: ${headers[1]}`,
    `Content-Length: ${Buffer.byteLength(body)}`,
    'Connection: close',
  ];
  connection.end(`${lines.join('\r\n')}\r\n\r\n${body}`);
  const socket = connection as PacedSocket; // or a plain one
  socket.on('timeout', () => socket.destroy());
  socket.setTimeout(LINGER_MS);
}

/** Answers a client that sent no request in time. */
export const rejectTimedOut = (socket: Duplex): void =>
  rejectUnparsed({ code: REQUEST_TIMEOUT }, socket);

/** Answers a client whose connection holds most of the memory for incomplete requests. */
export const rejectOversized = (socket: Duplex): void =>
  rejectUnparsed({ code: OVERSIZED }, socket);

const REQUEST_TIMEOUT = 'ERR_HTTP_REQUEST_TIMEOUT';
const OVERSIZED = 'OVERSIZED';

function parseErrorProblem(code: string | undefined): [number, string] {
  if (code === 'HPE_HEADER_OVERFLOW') return [431, `The headers exceed ${MAX_HEADER_BYTES} bytes.`];
  if (code === REQUEST_TIMEOUT) return [408, 'The request was not received in time.'];
  if (code === OVERSIZED) return [503, 'Out of memory for incomplete requests of all clients.'];
  return [400, 'Not a valid HTTP request.'];
}
