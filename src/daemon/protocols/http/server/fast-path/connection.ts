/**
 * The fast path of one HTTP connection: plain checks are read and answered without Node's request and
 * response objects, which cost more than all the rest of a check.
 *
 *     chunk ──▶ parse.ts ──▶ handler ──▶ one write, while requests are plain checks, complete and local
 *                  └─▶ anything else: Node's HTTP server takes over the connection for good
 *
 * The fast path refuses no request, and no byte is read twice: Node's server gets the first unanswered
 * request from its first byte.
 */

import type { Socket } from 'node:net';
import type { Millis } from '../../../../../core/clock.ts';
import { reuseReadBuffer } from '../../../../server/read-buffer.ts';
import type { RequestHead } from '../../key.ts';
import { tryParseCheck } from './parse.ts';

export interface FastPathHooks {
  /** The encoded response; undefined if the check cannot be decided here, and nothing was taken. */
  handle(check: RequestHead): string | undefined;
  /** Takes over the socket, with everything unanswered in its read buffer. */
  onHandOff(socket: Socket): void;
  /** The client connected but sent no request in time. */
  onRequestTimeout(socket: Socket): void;
  /** Read with every use: a reload may change them. */
  readonly timeouts: {
    /** Until the first request. */
    readonly slowMs: Millis;
    /** Between two requests, as Node counts: 0 means no bound. */
    readonly idleMs: Millis;
  };
}

export class FastPathConnection {
  readonly socket: Socket;
  readonly #hooks: FastPathHooks;
  #isHandedOff = false;

  constructor(accepted: Socket, hooks: FastPathHooks) {
    this.#hooks = hooks;
    this.socket = reuseReadBuffer(accepted, this.#onData);
    this.socket.setTimeout(hooks.timeouts.slowMs);
    this.socket.on('timeout', this.#onTimeout);
    this.socket.on('drain', this.#onDrain);
    this.socket.on('end', this.#onEnd);
    this.socket.on('error', this.#onError);
  }

  /** Closes the connection unless it was handed off: between two chunks no request is pending here. */
  finish(): void {
    if (!this.#isHandedOff) this.socket.destroySoon();
  }

  readonly #onData = (chunk: Buffer): boolean => {
    const { socket } = this;
    // Node's server reads below the socket; any other owner reads from the socket.
    if (this.#isHandedOff) return socket.push(Buffer.from(chunk));
    if (socket.writableEnded) return true; // closing
    let answered = 0;
    let responses = '';
    while (answered < chunk.length) {
      const check = tryParseCheck(chunk, answered, socket);
      if (check === undefined) break;
      const response = this.#hooks.handle(check);
      if (response === undefined) break;
      responses += response;
      answered = check.end;
    }
    if (responses !== '' && !socket.write(responses, 'latin1')) socket.pause();
    const { idleMs } = this.#hooks.timeouts;
    if (answered < chunk.length) this.#handOff(chunk.subarray(answered));
    else if (socket.timeout !== idleMs) socket.setTimeout(idleMs);
    return true;
  };

  #handOff(unanswered: Buffer): void {
    const { socket } = this;
    this.#isHandedOff = true;
    socket.off('timeout', this.#onTimeout).off('drain', this.#onDrain).off('end', this.#onEnd);
    socket.setTimeout(0);
    socket.pause();
    socket.unshift(Buffer.from(unanswered)); // copied: the read buffer is reused
    this.#hooks.onHandOff(socket);
    socket.off('error', this.#onError);
    socket.resume();
  }

  /** A client that does not read its responses is left to the server's check of unsent bytes. */
  readonly #onTimeout = (): void => {
    const { socket } = this;
    if (socket.bytesRead === 0 && !socket.writableEnded) this.#hooks.onRequestTimeout(socket);
    else if (socket.writableLength === 0) socket.destroy();
  };

  readonly #onDrain = (): void => {
    this.socket.resume();
  };

  /** Every complete request is answered by now. */
  readonly #onEnd = (): void => {
    this.socket.end();
  };

  readonly #onError = (): void => {
    this.socket.destroy();
  };
}
