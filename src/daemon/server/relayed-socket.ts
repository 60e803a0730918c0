/**
 * A client's connection whose socket is in a worker (`daemon/workers/`): the part of a `Socket` that connections use.
 *
 *     client ══ socket of a worker ══ channel ══ RelayedSocket ── protocol handler
 *
 * Back-pressure passes through both ways: a paused reader pauses the worker's socket, and a client that does not read
 * leaves writes here pending.
 */

import { Duplex } from 'node:stream';
import { type Millis, systemClock } from '../../core/clock.ts';
import { IdleTimer } from './idle-timer.ts';
import { CHUNK_BYTES } from './read-buffer.ts';

/** Passes what happens here to the worker that has the socket. */
export interface RemoteEnd {
  /** Returns false if the worker does not keep up: `unblock` follows. */
  write(bytes: Buffer | string, encoding: BufferEncoding): boolean;
  pause(): void;
  resume(): void;
  end(): void;
  close(): void;
}

type Callback = (error?: Error | null) => void;

export class RelayedSocket extends Duplex {
  readonly remoteAddress: string | undefined;
  readonly #remote: RemoteEnd;
  bytesRead = 0;
  #bytesPassed = 0;
  /** Set by the worker while the client does not read. */
  #isClientBlocked = false;
  #pendingWrite: Callback | undefined;
  #isReadPaused = false;
  #activeAt: Millis = systemClock.now();
  readonly #idle = new IdleTimer(
    systemClock,
    () => this.#activeAt,
    () => void this.emit('timeout'),
  );

  constructor(remote: RemoteEnd, remoteAddress: string | undefined) {
    super({ readableHighWaterMark: CHUNK_BYTES, decodeStrings: false, allowHalfOpen: true });
    this.#remote = remote;
    this.remoteAddress = remoteAddress;
  }

  /** Pending bytes included, as of a `Socket`. */
  get bytesWritten(): number {
    return this.#bytesPassed + this.writableLength;
  }

  /** The client has sent these bytes, which are not changed any more. */
  receive(bytes: Buffer): void {
    this.bytesRead += bytes.length;
    this.#touch();
    if (this.push(bytes)) return;
    this.#isReadPaused = true;
    this.#remote.pause();
  }

  /** The client sends no more. */
  receiveEnd(): void {
    this.push(null);
  }

  /** The client does not read. */
  block(): void {
    this.#isClientBlocked = true;
  }

  /** The client, or the worker, reads again. */
  unblock(isClient: boolean): void {
    if (isClient) this.#isClientBlocked = false;
    if (this.#isClientBlocked) return;
    const done = this.#pendingWrite;
    this.#pendingWrite = undefined;
    done?.();
  }

  /** The time without a byte in either direction after which `timeout` is emitted, as by a `Socket`; 0: never. */
  setTimeout(ms: Millis): this {
    this.#activeAt = systemClock.now();
    this.#idle.start(ms);
    return this;
  }

  get timeout(): Millis {
    return this.#idle.timeoutMs;
  }

  /** A byte in either direction: the timeout starts again if it has passed. */
  #touch(): void {
    this.#activeAt = systemClock.now();
    if (!this.#idle.isRunning) this.#idle.start(this.timeout);
  }

  /** The worker has set it. */
  setNoDelay(): this {
    return this;
  }

  /** The worker has set it. */
  setKeepAlive(): this {
    return this;
  }

  /** Closes once everything is sent. */
  destroySoon(): void {
    if (this.writable) this.end();
    if (this.writableFinished) this.destroy();
    else this.once('finish', () => this.destroy());
  }

  override _read(): void {
    if (!this.#isReadPaused) return;
    this.#isReadPaused = false;
    this.#remote.resume();
  }

  override _write(bytes: Buffer | string, encoding: BufferEncoding, done: Callback): void {
    this.#touch();
    const length = typeof bytes === 'string' ? Buffer.byteLength(bytes, encoding) : bytes.length;
    const isTaken = this.#remote.write(bytes, encoding);
    const pass = (): void => {
      this.#bytesPassed += length;
      done();
    };
    if (isTaken && !this.#isClientBlocked) pass();
    else this.#pendingWrite = pass;
  }

  override _final(done: Callback): void {
    this.#remote.end();
    done();
  }

  override _destroy(error: Error | null, done: Callback): void {
    this.#idle.stop();
    this.#remote.close();
    done(error);
  }
}
