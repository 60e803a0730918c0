/**
 * A connection as Node's HTTP server sees it: bytes arrive in small pieces, within the slices of `turns.ts`.
 *
 *     socket ──▶ chunk of up to 64 KiB ──▶ a piece: one request head, or 1 KiB ──▶ Node's HTTP server
 *                     └── once the slice is over, the rest waits for the connection's next turn
 *
 * Node's server reads from a plain socket below JavaScript, and handles every request of a chunk at once: thousands,
 * if a client pipelines.
 */

import type { Socket } from 'node:net';
import { Duplex } from 'node:stream';
import { type Millis, onNextTick } from '../../core/clock.ts';
import { ClientSignal } from './client-signal.ts';
import type { Holder } from './held-bytes.ts';
import type { EvictableConnection } from './idle-eviction.ts';
import { Arrival } from './overload.ts';
import { CHUNK_BYTES } from './read-buffer.ts';
import type { Turns } from './turns.ts';

/** Bytes of one piece at most. */
const PIECE_BYTES = 1024;

/** Pipelined requests that wait for their responses; beyond it the connection is not read. */
const MAX_PENDING = 8;

/** Memory of a byte of a head, of which Node makes strings of short headers. A body is in a buffer of up to twice its size. */
const BYTES_PER_HEAD_BYTE = 8;

const EMPTY = Buffer.alloc(0);

const END_OF_HEAD = '\r\n\r\n';

type Callback = (error?: Error | null) => void;

export class PacedSocket extends Duplex implements EvictableConnection, Holder {
  readonly socket: Socket;
  readonly #turns: Turns;
  readonly #arrival: Arrival;
  #unread = EMPTY;
  /** True while Node's server wants bytes. */
  #isWanted = false;
  #isWaiting = false;
  #hasEnded = false;
  /** Set with the last request: the connection closes after its response, and requests behind it are not handled. */
  isLast = false;
  #isDiscarding = false;
  /** Complete requests without a response. */
  #pendingRequests = 0;
  /** Memory of the request that is being received, in Node's server. */
  #requestBytes = 0;
  #isReadingBody = false;
  #heldBytes = 0;
  #lastReadAt: Millis;
  readonly #client = new ClientSignal();

  /** The owner of the socket passes what it reads to `receive`. */
  constructor(socket: Socket, turns: Turns) {
    super({ readableHighWaterMark: PIECE_BYTES, decodeStrings: false });
    this.socket = socket;
    this.#turns = turns;
    this.#lastReadAt = turns.begin();
    this.#arrival = new Arrival(turns.overload, this.#lastReadAt);
    socket.on('end', () => this.receiveEnd());
    socket.on('timeout', () => this.emit('timeout'));
    socket.on('error', (error) => this.destroy(error));
    this.on('error', () => {}); // the client closed the connection; without a listener it would end the process
    socket.on('close', () => {
      this.destroy();
      this.#account();
    });
    socket.on('drain', () => this.#account());
  }

  /**
   * Aborts when the client leaves: no request of this connection waits from then on. A client that closes the connection and
   * one that closes only its sending side both send a FIN, and nothing tells them apart.
   */
  get clientLeft(): AbortSignal {
    return this.#client.signal;
  }

  get remoteAddress(): string | undefined {
    return this.socket.remoteAddress;
  }

  get idleSince(): Millis | undefined {
    return this.#pendingRequests > 0 || this.#unread.length > 0 ? undefined : this.#lastReadAt;
  }

  /** A complete request waits for a backend or its turn. An incomplete one does not keep the connection from eviction. */
  beginRequest(): void {
    this.#pendingRequests++;
  }

  /** The head of a request is complete, and its body is read. */
  beginBody(): void {
    this.#isReadingBody = true;
  }

  /** The request is complete, or what follows of it is not read. */
  endInput(): void {
    this.#isReadingBody = false;
    this.#requestBytes = 0;
  }

  /** Reports the bytes that are held for this client. */
  #account(): void {
    const queued = this.writableLength + this.socket.writableLength;
    const bytes = this.destroyed ? 0 : this.#unread.length + this.#requestBytes + queued;
    if (bytes === this.#heldBytes) return;
    this.#heldBytes = bytes;
    this.#turns.held.set(this, bytes);
  }

  /** Emits `refused`, and whether the client can be told. */
  refuse(): void {
    const hasResponses =
      this.#pendingRequests + this.writableLength + this.socket.writableLength > 0;
    this.#heldBytes = 0;
    this.endInput();
    this.discardInput();
    this.emit('refused', !hasResponses);
    if (hasResponses || this.socket.writableLength > 0) this.destroy();
    else this.destroySoon();
  }

  /** Runs the handler of a request that was received here: one that is too old is shed. */
  handle<T>(run: () => T): T {
    this.endInput();
    this.#arrival.beginRest(this.#turns.now);
    try {
      return run();
    } finally {
      this.#turns.end();
    }
  }

  endRequest(): void {
    this.#pendingRequests--;
    if (this.#unread.length > 0) this.#waitForTurn();
  }

  setTimeout(ms: Millis): this {
    this.socket.setTimeout(ms);
    return this;
  }

  /** Closes once everything is sent; Node's server calls it. */
  destroySoon(): void {
    this.end();
    if (this.writableFinished) this.destroy();
    else this.once('finish', () => this.destroy());
  }

  /** The last request is complete: further bytes are read and discarded. */
  discardInput(): void {
    this.isLast = true;
    this.#isDiscarding = true;
    this.#unread = EMPTY;
  }

  /** Takes bytes that were read; they are copied. */
  receive(chunk: Buffer): void {
    if (this.#isDiscarding || this.writableEnded) return;
    this.#unread = Buffer.concat([this.#unread, chunk]);
    this.#lastReadAt = this.#turns.begin();
    this.#arrival.beginChunk(chunk.length, this.#lastReadAt);
    this.#turns.overload.isShedding = false;
    this.#feed();
    // After a full chunk the system would go on reading this connection before all others.
    if (this.#unread.length > 0) this.socket.pause();
    else if (chunk.length === CHUNK_BYTES) this.#waitForTurn();
    this.#account();
  }

  /** The client sends no more bytes. */
  receiveEnd(): void {
    this.#hasEnded = true;
    this.#client.leave();
    this.#feed();
  }

  /** At least one piece, however short the slice is. */
  #feed(): void {
    while (this.#isWanted && this.#unread.length > 0 && this.#pendingRequests < MAX_PENDING) {
      const end = this.#unread.subarray(0, PIECE_BYTES).indexOf(END_OF_HEAD);
      const length = end < 0 ? PIECE_BYTES : end + END_OF_HEAD.length;
      const piece = this.#unread.subarray(0, length);
      this.#unread = this.#unread.subarray(length);
      this.#requestBytes += piece.length * (this.#isReadingBody ? 2 : BYTES_PER_HEAD_BYTE);
      this.#isWanted = this.push(piece);
      if (this.writableEnded) this.#unread = EMPTY; // the piece was no HTTP, and has its response
      if (this.#unread.length > 0 && this.#turns.isOver) {
        this.#waitForTurn();
        return;
      }
    }
    if (this.#hasEnded && this.#unread.length === 0) this.push(null);
  }

  #waitForTurn(): void {
    this.socket.pause();
    if (this.#isWaiting) return;
    this.#isWaiting = true;
    this.#turns.wait(() => {
      this.#isWaiting = false;
      if (this.destroyed) return;
      this.#arrival.resume(this.#turns.begin());
      this.#feed();
      if (this.#unread.length === 0 && !this.#isWaiting) this.socket.resume();
      this.#account();
    });
  }

  override _read(): void {
    this.#isWanted = true;
    if (this.#unread.length > 0) this.#waitForTurn();
  }

  override _write(bytes: Buffer | string, encoding: BufferEncoding, done: Callback): void {
    this.socket.write(bytes, encoding, done);
    if (this.socket.writableLength > 0) onNextTick(() => this.#account());
  }

  override _writev(
    writes: { chunk: Buffer | string; encoding: BufferEncoding }[],
    done: Callback,
  ): void {
    this.socket.cork();
    const last = writes.length - 1;
    for (const [n, { chunk, encoding }] of writes.entries())
      this.socket.write(chunk, encoding, n === last ? done : undefined);
    this.socket.uncork();
    if (this.socket.writableLength > 0) onNextTick(() => this.#account());
  }

  override _final(done: Callback): void {
    this.socket.end(done);
  }

  override _destroy(error: Error | null, done: Callback): void {
    this.socket.destroy();
    this.#client.leave();
    done(error);
  }
}
