/**
 * The fast path of one HTTP connection: plain checks are read and answered without Node's request and response objects.
 * These cost more than all the rest of a check.
 *
 *     chunk ──▶ parse.ts ──▶ handler ──▶ one write, while requests are plain checks, complete and local
 *                  ├─▶ the slice is over: the rest waits for the connection's next turn (`server/turns.ts`)
 *                  ├─▶ the beginning of a request, behind complete ones: waits for the next chunk
 *                  └─▶ anything else: Node's HTTP server takes over the connection for good
 *
 * The fast path refuses no request, and no byte is read twice: Node's server gets the first unanswered
 * request from its first byte. A request whose next chunk does not complete it goes there as well, because only Node's
 * server bounds the time in which a head arrives.
 */

import type { Socket } from 'node:net';
import type { Millis } from '../../../../../core/clock.ts';
import type { Holder } from '../../../../server/held-bytes.ts';
import type { EvictableConnection } from '../../../../server/idle-eviction.ts';
import { IdleTimer } from '../../../../server/idle-timer.ts';
import { Arrival } from '../../../../server/overload.ts';
import { PacedSocket } from '../../../../server/paced-socket.ts';
import { CHUNK_BYTES, copyOf, reuseReadBuffer } from '../../../../server/read-buffer.ts';
import type { Turns } from '../../../../server/turns.ts';
import type { RequestHead } from '../../key.ts';
import { tryParseCheck } from './parse.ts';

export interface FastPathHooks {
  /** The encoded response; undefined if the check cannot be decided here, and nothing was taken. */
  handle(check: RequestHead): string | undefined;
  /** Takes over the connection, from the first unanswered request on. */
  onHandOff(connection: PacedSocket): void;
  /** The client connected but sent no request in time. */
  onRequestTimeout(socket: Socket): void;
  /** Read with every use: a reload may change them. */
  readonly timeouts: {
    /** Until the first request. */
    readonly slowMs: Millis;
    /** Between two requests, as Node counts: 0 means no bound. */
    readonly idleMs: Millis;
  };
  readonly turns: Turns;
  /** The connection held too many bytes; undefined if the client cannot be told. */
  onRefused(socket: Socket | undefined): void;
}

const EMPTY = Buffer.alloc(0);

export class FastPathConnection implements EvictableConnection, Holder {
  readonly socket: Socket;
  readonly #hooks: FastPathHooks;
  /** Set once Node's server has the connection. */
  #handedOff: PacedSocket | undefined;
  /** Received requests that wait for the connection's next turn. */
  #backlog: Buffer = EMPTY;
  /** The beginning of a request that continues in the next chunk. */
  #incomplete: Buffer = EMPTY;
  #isWaiting = false;
  #isFinishing = false;
  #heldBytes = 0;
  #lastReadAt: Millis;
  readonly #arrival: Arrival;
  readonly #idle: IdleTimer;

  constructor(accepted: Socket, hooks: FastPathHooks) {
    this.#hooks = hooks;
    this.#lastReadAt = hooks.turns.begin();
    this.#arrival = new Arrival(hooks.turns.overload, this.#lastReadAt);
    this.socket = reuseReadBuffer(accepted, this.#onData);
    const lastUseAt = () =>
      this.socket.writableLength > 0 ? this.#hooks.turns.now : this.#lastReadAt;
    this.#idle = new IdleTimer(hooks.turns.clock, lastUseAt, this.#onIdle);
    this.#idle.start(hooks.timeouts.slowMs);
    this.socket.once('close', () => {
      this.#idle.stop();
      this.#account();
    });
    this.socket.on('drain', this.#onDrain);
    this.socket.on('end', this.#onEnd);
    this.socket.on('error', this.#onError);
  }

  get idleSince(): Millis | undefined {
    if (this.#handedOff) return this.#handedOff.idleSince;
    return this.#isWaiting || this.socket.writableLength > 0 ? undefined : this.#lastReadAt;
  }

  /** Closes the connection once every received request is answered, unless it was handed off. */
  finish(): void {
    this.#isFinishing = true;
    if (this.#handedOff === undefined && this.#backlog.length === 0) this.socket.destroySoon();
  }

  /** Reports the bytes that are held for this client. */
  #account(): void {
    const held = this.#incomplete.length + this.#backlog.length + this.socket.writableLength;
    const bytes = this.#handedOff || this.socket.destroyed ? 0 : held;
    if (bytes === this.#heldBytes) return;
    this.#heldBytes = bytes;
    this.#hooks.turns.held.set(this, bytes);
  }

  refuse(): void {
    this.#heldBytes = 0;
    this.#incomplete = this.#backlog = EMPTY;
    const hasResponses = this.socket.writableLength > 0;
    this.#hooks.onRefused(hasResponses ? undefined : this.socket);
    if (this.socket.writableLength > 0) this.socket.destroy();
    else this.socket.destroySoon();
  }

  readonly #onData = (chunk: Buffer): void => {
    if (this.#handedOff) this.#handedOff.receive(chunk);
    else if (!this.socket.writableEnded) {
      const beginning = this.#incomplete;
      this.#incomplete = EMPTY;
      const whole = beginning.length === 0 ? chunk : Buffer.concat([beginning, chunk]);
      this.#process(whole, chunk.length);
      this.#account();
    }
  };

  /** Answers requests. `newBytes` is 0 if the chunk is the rest of an earlier one. */
  #process(chunk: Buffer, newBytes: number): void {
    const { socket } = this;
    const { turns, timeouts } = this.#hooks;
    const isNew = newBytes > 0;
    this.#lastReadAt = turns.begin();
    if (isNew) this.#arrival.beginChunk(newBytes, this.#lastReadAt);
    else this.#arrival.beginRest(this.#lastReadAt);
    let answered = 0;
    let responses = '';
    let isOver = false;
    let isIncomplete = false;
    while (answered < chunk.length && !isOver) {
      const check = tryParseCheck(chunk, answered, socket);
      if (typeof check === 'string') {
        isIncomplete = check === 'incomplete' && (answered > 0 || !isNew);
        break;
      }
      const response = this.#hooks.handle(check);
      if (response === undefined) break;
      responses += response;
      answered = check.end;
      isOver = answered < chunk.length && turns.isOver;
    }
    turns.end();
    this.#arrival.isHeldBack = responses !== '' && !socket.write(responses, 'latin1');
    if (this.#arrival.isHeldBack) socket.pause();
    const rest = chunk.subarray(answered);
    // The read buffer is reused; what was copied before is not copied with every slice.
    if (isOver) this.#waitForTurn(isNew ? copyOf(rest) : rest);
    else if (rest.length > 0 && !isIncomplete) this.#handOff(rest);
    else {
      if (isIncomplete) this.#incomplete = copyOf(rest);
      const timeoutMs = isIncomplete ? timeouts.slowMs : timeouts.idleMs;
      if (this.#idle.timeoutMs !== timeoutMs) this.#idle.start(timeoutMs);
      if (newBytes === CHUNK_BYTES) this.#waitForTurn(EMPTY);
    }
  }

  /** After a full chunk as well: the system would go on reading this connection before all others. */
  #waitForTurn(unanswered: Buffer): void {
    this.#backlog = unanswered;
    this.#isWaiting = true;
    this.socket.pause();
    this.#hooks.turns.wait(() => {
      this.#isWaiting = false;
      this.#arrival.resume(this.#hooks.turns.now);
      this.#resume();
    });
  }

  /** Continues unless the client has to read first, or others have their turn. */
  #resume(): void {
    const { socket } = this;
    if (socket.destroyed || this.#isWaiting || socket.writableNeedDrain) return;
    const backlog = this.#backlog;
    this.#backlog = EMPTY;
    if (backlog.length > 0) this.#process(backlog, 0);
    this.#account();
    if (this.#handedOff || this.#isWaiting) return;
    if (this.#isFinishing && !socket.writableEnded) socket.destroySoon();
    else if (!socket.writableNeedDrain) socket.resume();
  }

  #handOff(unanswered: Buffer): PacedSocket {
    const { socket } = this;
    socket.off('drain', this.#onDrain).off('end', this.#onEnd).off('error', this.#onError);
    this.#idle.stop();
    const connection = new PacedSocket(socket, this.#hooks.turns);
    this.#handedOff = connection;
    this.#hooks.onHandOff(connection);
    connection.receive(unanswered);
    return connection;
  }

  /** A client that does not read its responses is left to the server's check of unsent bytes. */
  readonly #onIdle = (): void => {
    const { socket } = this;
    if (socket.bytesRead === 0 && !socket.writableEnded) this.#hooks.onRequestTimeout(socket);
    else socket.destroy();
  };

  readonly #onDrain = (): void => {
    this.#lastReadAt = this.#hooks.turns.now; // idle from now on
    this.#resume();
  };

  /** Every complete request is answered by now. An incomplete one is refused by Node's server. */
  readonly #onEnd = (): void => {
    if (this.#incomplete.length === 0) this.socket.end();
    else this.#handOff(this.#incomplete).receiveEnd();
  };

  readonly #onError = (): void => {
    this.socket.destroy();
  };
}
