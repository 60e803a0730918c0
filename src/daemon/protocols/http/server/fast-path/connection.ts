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
import { heardInPlace } from '../../../../server/read-buffer.ts';
import { type HttpBounds, idleTimeoutOf } from '../../bounds.ts';
import type { Heard } from '../../key.ts';
import { readPlain } from './parse.ts';

export interface ShortWayTold {
  /** The bytes of the answer to a check; undefined: not to be answered here, and nothing was taken. */
  answer(check: Heard): string | undefined;
  /** All that comes from now on is somebody else's affair. */
  handedOver(socket: Socket): void;
  /** It came, and asked nothing in time. */
  silent(socket: Socket): void;
  bounds(): HttpBounds;
}

export class ShortWay {
  readonly socket: Socket;
  readonly #told: ShortWayTold;
  #isHandedOver = false;

  constructor(accepted: Socket, told: ShortWayTold) {
    this.#told = told;
    this.socket = heardInPlace(accepted, (chunk) => this.#hear(chunk));
    this.socket.setTimeout(told.bounds().slowMs);
    this.socket.on('timeout', this.#onTimeout);
    this.socket.on('drain', this.#onDrain);
    this.socket.on('end', this.#onEnd);
    this.socket.on('error', this.#onError);
  }

  /** Hangs up, as nothing is being asked here; unless it has been handed over. */
  finish(): void {
    if (!this.#isHandedOver) this.socket.destroySoon();
  }

  #hear(chunk: Buffer): boolean {
    const { socket } = this;
    // Node's server reads below the socket; whoever else takes it reads the socket.
    if (this.#isHandedOver) return socket.push(Buffer.from(chunk));
    if (socket.writableEnded) return true; // it was told goodbye
    let answered = 0;
    let answers = '';
    while (answered < chunk.length) {
      const check = readPlain(chunk, answered, socket);
      if (check === undefined) break;
      const answer = this.#told.answer(check);
      if (answer === undefined) break;
      answers += answer;
      answered = check.end;
    }
    if (answers !== '' && !socket.write(answers, 'latin1')) socket.pause();
    if (answered < chunk.length) this.#handOver(chunk.subarray(answered));
    else this.#mayIdle();
    return true;
  }

  /** From now on it may be as silent as between two requests. */
  #mayIdle(): void {
    const idleMs = idleTimeoutOf(this.#told.bounds());
    if (this.socket.timeout !== idleMs) this.socket.setTimeout(idleMs);
  }

  #handOver(rest: Buffer): void {
    const { socket } = this;
    this.#isHandedOver = true;
    socket.off('timeout', this.#onTimeout).off('drain', this.#onDrain).off('end', this.#onEnd);
    socket.setTimeout(0);
    socket.pause();
    socket.unshift(Buffer.from(rest)); // the chunk is read into again
    this.#told.handedOver(socket);
    socket.off('error', this.#onError);
    socket.resume();
  }

  /** Who does not read its answers is somebody else's affair: that shows in what waits to be sent. */
  readonly #onTimeout = (): void => {
    const { socket } = this;
    if (socket.bytesRead === 0 && !socket.writableEnded) this.#told.silent(socket);
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
