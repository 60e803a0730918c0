/**
 * One connection to the daemon: handshake, failure detection, and reconnects with exponential backoff.
 *
 *     connecting ── handshake ──▶ open ── failure ──▶ backing-off: no request is sent
 *        │                                                │    ▲
 *        └─────────────── failure ────────────────────────┼────┤ failure
 *                       open ◀── handshake ── reconnect in the background, after a delay
 *
 * Only the first connect has requests waiting for it. After a failure requests are refused at once until a handshake has
 * succeeded. Delays double with each failure, and jitter keeps a fleet from reconnecting at the same instant.
 */

import { connect as connectPlain, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { scheduleDeadline } from '../core/call-deadline.ts';
import { type Millis, schedule } from '../core/clock.ts';
import { errorMessageOf, RejectedError, UnavailableError } from '../core/errors.ts';
import { formatEndpoint } from './address.ts';
import type { ClientSettings } from './options.ts';
import { encodeCommand, RespError, RespParser, type RespValue, toBinaryString } from './resp.ts';

/** Why a request got no decision: an outage, or the request or the configuration is wrong. */
export type RequestError = UnavailableError | RejectedError;

/** The events of a connection. */
export interface ConnectionHandlers {
  /** The handshake has succeeded: waiting requests can be sent. */
  onOpen(): void;
  /** The next reply, in the order of the requests. */
  onReply(reply: RespValue): void;
  /** No sent request will get a reply. */
  onFailure(error: RequestError): void;
  /** The error for a handshake that takes too long. Default: an outage. */
  timeoutError?(reason: string): RequestError;
}

/** How long a handshake may take. Only requests before the first one wait for it. */
const HANDSHAKE_TIMEOUT_MS: Millis = 1_000;

/** Error replies of a server that cannot decide now. All others reject the request. */
const OUTAGE_REPLY =
  /^(LOADING|BUSY|TRYAGAIN|MASTERDOWN|CLUSTERDOWN|ERR max number of clients reached)\b/;

/** OpenSSL's words for a reply that is no TLS record. Any other failure of TLS may be one of the server, and pass. */
const NO_TLS = /wrong version number|packet length too long|unexpected message|record layer/;

/** The first byte of a TLS alert, which a server with TLS sends to a plain client. */
const TLS_ALERT = 21;

/** Error replies to a wrong limit, plan or password, or of a server that is no daemon. A key or a cost causes none. */
const MISTAKE_REPLY = /^(NOAUTH|WRONGPASS|ERR no limit|ERR no plan|ERR unknown command)\b/;

const CONNECTION_CLOSED = 'connection closed';
const TLS_HINT = 'if this port has TLS, set `tls`';
const SPEAKS_NO_TLS =
  'the server does not speak TLS. Leave out `tls`, or set it for this listener of the daemon';
const SPEAKS_TLS = 'the server speaks TLS: set `tls`';

type ConnectionState = 'connecting' | 'open' | 'backing-off' | 'closed';

export class DaemonConnection {
  /** Successful handshakes so far. */
  handshakes = 0;
  readonly #settings: ClientSettings;
  readonly #handlers: ConnectionHandlers;
  #state: ConnectionState = 'connecting';
  #error: RequestError;
  #socket: Socket | undefined;
  #isBusy = false;
  #failures = 0;
  #cancelTimer: (() => void) | undefined;
  #retryAt: Millis = 0;

  constructor(settings: ClientSettings, handlers: ConnectionHandlers) {
    this.#settings = settings;
    this.#handlers = handlers;
    this.#error = this.unavailableError('not connected yet');
    this.#connect();
  }

  get state(): ConnectionState {
    return this.#state;
  }

  /** Why no request is sent. */
  get error(): RequestError {
    return this.#error;
  }

  unavailableError(reason: unknown): UnavailableError {
    return new UnavailableError(this.name, reason);
  }

  /** The server replied, but did not decide. */
  rejectedError(reply: string, retryAfterMs?: Millis): RejectedError {
    const isMistake = MISTAKE_REPLY.test(reply);
    return new RejectedError(this.name, reply, { retryAfterMs, isMistake });
  }

  /** A call after `close` is no outage. */
  closedError(): RejectedError {
    return new RejectedError(this.name, 'the client is closed', {
      problem: 'was not asked',
    });
  }

  /** The server replied with something that no daemon sends. */
  protocolError(reply: string): RejectedError {
    const hint = `${reply}. Expected a daemon's RESP port at this address`;
    return new RejectedError(this.name, hint, { isMistake: true });
  }

  /** No connection: an outage, or a wrong port if it is plainly one and no connection ever worked. */
  #connectError(reason: unknown, hasReply: boolean): RequestError {
    const { tls } = this.#settings;
    const text = typeof reason === 'string' ? reason : errorMessageOf(reason);
    if (tls && isTlsError(reason) && NO_TLS.test(text)) {
      return this.handshakes === 0
        ? new RejectedError(this.name, SPEAKS_NO_TLS, { isMistake: true })
        : this.unavailableError(SPEAKS_NO_TLS);
    }
    const isSilent = !tls && this.handshakes === 0 && !hasReply && wasClosed(reason);
    return this.unavailableError(isSilent ? `${text} without a reply; ${TLS_HINT}` : reason);
  }

  errorOf({ message }: RespError): RequestError {
    return OUTAGE_REPLY.test(message)
      ? this.unavailableError(message)
      : this.rejectedError(message);
  }

  /** For messages. */
  get name(): string {
    return `sluice at ${formatEndpoint(this.#settings.endpoint)}`;
  }

  /** How long until the next reconnect. */
  get backoffMs(): Millis {
    return Math.max(1, Math.ceil(this.#retryAt - this.#settings.clock.now()));
  }

  /** Writes a binary string. Only while the connection is open. */
  write(text: string): void {
    this.#socket?.write(text, 'latin1');
  }

  /** The connection keeps the process alive only while requests are pending. */
  setBusy(isBusy: boolean): void {
    if (isBusy === this.#isBusy) return;
    this.#isBusy = isBusy;
    if (isBusy) this.#socket?.ref();
    else this.#socket?.unref();
  }

  /** Closes the connection and starts the backoff. */
  fail(error: RequestError): void {
    if (this.#state === 'closed') return;
    this.#disconnect();
    const { clock, random, initialDelayMs, maxDelayMs } = this.#settings;
    const delayMs = Math.min(maxDelayMs, initialDelayMs * 2 ** Math.min(this.#failures++, 30));
    this.#state = 'backing-off';
    this.#error = error;
    this.#retryAt = clock.now() + delayMs * (0.5 + random() / 2);
    this.#cancelTimer = schedule(clock, this.#retryAt, () => this.#reconnect(), false);
    this.#handlers.onFailure(this.#error);
  }

  close(): void {
    this.#disconnect();
    this.#state = 'closed';
    this.#error = this.closedError();
    this.#handlers.onFailure(this.#error);
  }

  #disconnect(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = undefined;
    this.#socket?.destroy();
    this.#socket = undefined;
  }

  /** Invalid options throw in the first connect; the same error is an outage later. */
  #reconnect(): void {
    try {
      this.#connect();
    } catch (error) {
      this.fail(this.unavailableError(error));
    }
  }

  #connect(): void {
    const { clock, endpoint, tls, password } = this.#settings;
    const socket = tls ? connectTls({ ...tls, ...endpoint }) : connectPlain(endpoint);
    const parser = new RespParser();
    this.#socket = socket;
    if (!this.#isBusy) socket.unref();
    /** Events of a socket that was replaced are ignored. */
    const isCurrent = (): boolean => this.#socket === socket;
    let hasReply = false;
    const fail = (reason: unknown): void => {
      if (isCurrent()) this.fail(this.#connectError(reason, hasReply));
    };
    const timeOut = (): void => {
      const reason = `no handshake within ${HANDSHAKE_TIMEOUT_MS} ms`;
      if (isCurrent())
        this.fail(this.#handlers.timeoutError?.(reason) ?? this.unavailableError(reason));
    };
    this.#cancelTimer = scheduleDeadline(clock, clock.now(), HANDSHAKE_TIMEOUT_MS, timeOut, false);
    socket.setNoDelay(true);
    const auth = password === undefined ? [] : ['AUTH', 'default', toBinaryString(password)];
    socket.write(encodeCommand(['HELLO', '3', ...auth]), 'latin1'); // buffered until the socket is connected
    socket.on('error', fail);
    socket.on('close', () => fail(CONNECTION_CLOSED));
    socket.on('data', (chunk: Buffer) => {
      if (!hasReply && chunk[0] === TLS_ALERT && isCurrent())
        return this.fail(this.protocolError(SPEAKS_TLS));
      hasReply = true;
      const onReply = (reply: RespValue): void => {
        if (isCurrent()) this.#onReply(reply);
      };
      if (!parser.push(chunk, onReply) && isCurrent())
        this.fail(this.protocolError('the reply is not RESP'));
    });
  }

  #onReply(reply: RespValue): void {
    if (this.#state === 'open') this.#handlers.onReply(reply);
    else if (reply instanceof RespError) this.fail(this.errorOf(reply));
    else this.#onHandshake();
  }

  #onHandshake(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = undefined;
    this.#state = 'open';
    this.#failures = 0;
    this.handshakes++;
    this.#handlers.onOpen();
  }
}

const codeOf = (reason: unknown): string =>
  String((reason as { code?: unknown } | null)?.code ?? '');

/** True for an error of TLS itself. A certificate that is not trusted, or a lost connection, has another code. */
const isTlsError = (reason: unknown): boolean =>
  codeOf(reason) === 'EPROTO' || codeOf(reason).startsWith('ERR_SSL_');

/** A server with TLS closes the connection of a plain client. */
const wasClosed = (reason: unknown): boolean =>
  reason === CONNECTION_CLOSED || codeOf(reason) === 'ECONNRESET';
