/**
 * The line to the daemon: one connection, and whether it is any good.
 *
 *     trying ── the daemon greets ──▶ open ── a failure ──▶ away: nobody is sent
 *        │                                                   │    ▲
 *        └──────────── no connection ────────────────────────┼────┤ no greeting
 *                       open ◀── it greets ── a try in the background, after a pause
 *
 * Only the very first try has somebody waiting for it. After a failure nobody waits for a socket
 * until the daemon has greeted again; pauses grow with every try that fails, and chance spreads them so
 * that a fleet does not come back as one.
 */

import { connect as connectPlain, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { type Millis, schedule } from '../core/clock.ts';
import { UnavailableError } from '../core/errors.ts';
import { formatEndpoint } from './address.ts';
import type { ClientSettings } from './options.ts';
import { encodeCommand, RespError, RespParser, type RespValue, toBinaryString } from './resp.ts';

/** What the line tells its owner. */
export interface ConnectionHandlers {
  /** The daemon has greeted: what waits can be sent. */
  onOpen(): void;
  /** The next answer, in the order of what was sent. */
  onReply(told: RespValue): void;
  /** There will be no answer to anything that was sent. */
  onFailure(why: UnavailableError): void;
}

/** How long a daemon may take to greet: nobody waits for it but the first who ask. */
const HANDSHAKE_TIMEOUT_MS: Millis = 1_000;

type ConnectionState = 'connecting' | 'open' | 'backing-off' | 'closed';

export class DaemonConnection {
  /** Connections made, from the start on. */
  handshakes = 0;
  readonly #settings: ClientSettings;
  readonly #handlers: ConnectionHandlers;
  #state: ConnectionState = 'connecting';
  #error: UnavailableError;
  #socket: Socket | undefined;
  #isBusy = false;
  #failures = 0;
  #cancelTimer: (() => void) | undefined;
  #retryAt: Millis = 0;

  constructor(settings: ClientSettings, ears: ConnectionHandlers) {
    this.#settings = settings;
    this.#handlers = ears;
    this.#error = this.#unavailableError('it was not reached yet');
    this.#connect();
  }

  get state(): ConnectionState {
    return this.#state;
  }

  /** Why nobody is sent. */
  get error(): UnavailableError {
    return this.#error;
  }

  /** How long it is away at least. */
  get backoffMs(): Millis {
    return Math.max(1, Math.ceil(this.#retryAt - this.#settings.clock.now()));
  }

  /** Bytes, as one character for each. Only while it is open. */
  write(text: string): void {
    this.#socket?.write(text, 'latin1');
  }

  /** While somebody waits for an answer the process stays; otherwise the line does not keep it. */
  setBusy(isBusy: boolean): void {
    if (isBusy === this.#isBusy) return;
    this.#isBusy = isBusy;
    if (isBusy) this.#socket?.ref();
    else this.#socket?.unref();
  }

  /** The daemon did not answer. */
  fail(why: unknown): void {
    if (this.#state === 'closed') return;
    this.#disconnect();
    const { clock, random, firstBackoffMs, maxBackoffMs } = this.#settings;
    const most = Math.min(maxBackoffMs, firstBackoffMs * 2 ** Math.min(this.#failures++, 30));
    this.#state = 'backing-off';
    this.#error = this.#unavailableError(why);
    this.#retryAt = clock.now() + most * (0.5 + random() / 2);
    this.#cancelTimer = schedule(clock, this.#retryAt, () => this.#reconnect(), false);
    this.#handlers.onFailure(this.#error);
  }

  close(): void {
    this.#disconnect();
    this.#state = 'closed';
    this.#error = this.#unavailableError('the client is closed');
    this.#handlers.onFailure(this.#error);
  }

  #unavailableError(why: unknown): UnavailableError {
    return new UnavailableError(`sluice at ${formatEndpoint(this.#settings.endpoint)}`, why);
  }

  #disconnect(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = undefined;
    this.#socket?.destroy();
    this.#socket = undefined;
  }

  /** What makes no sense to the system was told when the client was made; later it is an outage. */
  #reconnect(): void {
    try {
      this.#connect();
    } catch (error) {
      this.fail(error);
    }
  }

  #connect(): void {
    const { clock, endpoint, tls, password } = this.#settings;
    const socket = tls ? connectTls({ ...tls, ...endpoint }) : connectPlain(endpoint);
    const reader = new RespParser();
    this.#socket = socket;
    if (!this.#isBusy) socket.unref();
    /** Whatever a socket says after we have left it is no news. */
    const isOurs = (): boolean => this.#socket === socket;
    const fail = (why: unknown): void => {
      if (isOurs()) this.fail(why);
    };
    const late = `no greeting within ${HANDSHAKE_TIMEOUT_MS} ms`;
    this.#cancelTimer = schedule(
      clock,
      clock.now() + HANDSHAKE_TIMEOUT_MS,
      () => fail(late),
      false,
    );
    socket.setNoDelay(true);
    const auth = password === undefined ? [] : ['AUTH', 'default', toBinaryString(password)];
    socket.write(encodeCommand(['HELLO', '3', ...auth]), 'latin1'); // sent as soon as there is somebody
    socket.on('error', fail);
    socket.on('close', () => fail('it hung up'));
    socket.on('data', (chunk: Buffer) => {
      const hear = (told: RespValue): void => {
        if (isOurs()) this.#onReply(told);
      };
      if (!reader.push(chunk, hear)) fail('what it says is no RESP');
    });
  }

  #onReply(told: RespValue): void {
    if (this.#state === 'open') this.#handlers.onReply(told);
    else if (told instanceof RespError) this.fail(told.message);
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
