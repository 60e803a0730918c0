/**
 * The short way for plain checks: one connection, read and answered without a request and a response
 * of Node's in between, which cost more than all the rest of a check.
 *
 *     a piece ──▶ parse.ts ──▶ the desk ──▶ one write, while all that comes is plain, whole and decided here
 *                    └─▶ anything else: the connection and what is not answered yet go the long way, for good
 *
 * Nobody is refused here, and nothing is read twice: what is handed over has not been answered, and Node
 * reads it from its first byte.
 */

import type { Socket } from 'node:net';
import { reuseReadBuffer } from '../../../../server/read-buffer.ts';
import { type HttpBounds, idleTimeoutOf } from '../../bounds.ts';
import type { RequestHead } from '../../key.ts';
import { tryParseCheck } from './parse.ts';

export interface FastPathHooks {
  /** The bytes of the answer to a check; undefined: not to be answered here, and nothing was taken. */
  handle(check: RequestHead): string | undefined;
  /** All that comes from now on is somebody else's affair. */
  onHandOff(socket: Socket): void;
  /** It came, and asked nothing in time. */
  onRequestTimeout(socket: Socket): void;
  bounds(): HttpBounds;
}

export class FastPathConnection {
  readonly socket: Socket;
  readonly #hooks: FastPathHooks;
  #isHandedOff = false;

  constructor(accepted: Socket, hooks: FastPathHooks) {
    this.#hooks = hooks;
    this.socket = reuseReadBuffer(accepted, (chunk) => this.#onData(chunk));
    this.socket.setTimeout(hooks.bounds().slowMs);
    this.socket.on('timeout', this.#onTimeout);
    this.socket.on('drain', this.#onDrain);
    this.socket.on('end', this.#onEnd);
    this.socket.on('error', this.#onError);
  }

  /** Hangs up, as nothing is being asked here; unless it has been handed over. */
  finish(): void {
    if (!this.#isHandedOff) this.socket.destroySoon();
  }

  #onData(chunk: Buffer): boolean {
    const { socket } = this;
    // Node's server reads below the socket; whoever else takes it reads the socket.
    if (this.#isHandedOff) return socket.push(Buffer.from(chunk));
    if (socket.writableEnded) return true; // it was told goodbye
    let answered = 0;
    let answers = '';
    while (answered < chunk.length) {
      const check = tryParseCheck(chunk, answered, socket);
      if (check === undefined) break;
      const answer = this.#hooks.handle(check);
      if (answer === undefined) break;
      answers += answer;
      answered = check.end;
    }
    if (answers !== '' && !socket.write(answers, 'latin1')) socket.pause();
    if (answered < chunk.length) this.#handOff(chunk.subarray(answered));
    else this.#startIdleTimeout();
    return true;
  }

  /** From now on it may be as silent as between two requests. */
  #startIdleTimeout(): void {
    const idleMs = idleTimeoutOf(this.#hooks.bounds());
    if (this.socket.timeout !== idleMs) this.socket.setTimeout(idleMs);
  }

  #handOff(rest: Buffer): void {
    const { socket } = this;
    this.#isHandedOff = true;
    socket.off('timeout', this.#onTimeout).off('drain', this.#onDrain).off('end', this.#onEnd);
    socket.setTimeout(0);
    socket.pause();
    socket.unshift(Buffer.from(rest)); // the chunk is read into again
    this.#hooks.onHandOff(socket);
    socket.off('error', this.#onError);
    socket.resume();
  }

  /** Who does not read its answers is somebody else's affair: that shows in what waits to be sent. */
  readonly #onTimeout = (): void => {
    const { socket } = this;
    if (socket.bytesRead === 0 && !socket.writableEnded) this.#hooks.onRequestTimeout(socket);
    else if (socket.writableLength === 0) socket.destroy();
  };

  readonly #onDrain = (): void => {
    this.socket.resume();
  };

  /** All it asked is answered. */
  readonly #onEnd = (): void => {
    this.socket.end();
  };

  /** It hung up: nothing to tell anybody. */
  readonly #onError = (): void => {
    this.socket.destroy();
  };
}
