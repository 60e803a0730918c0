/**
 * Frames between the daemon and one worker, over a socket pair. All frames of one turn of the event loop are one write.
 *
 *     ┌──────────────┬─────────┬─────────────┬─────────┐
 *     │ connection 4 │ type 1  │ length 4    │ payload │   numbers in bytes, little endian
 *     └──────────────┴─────────┴─────────────┴─────────┘
 */

import type { Socket } from 'node:net';
import { onImmediate } from '../../core/clock.ts';
import { CHUNK_BYTES, reuseReadBuffer } from '../server/read-buffer.ts';

export const Frame = {
  /** From a worker: it has the connection. */
  OPEN: 1,
  /** Bytes of the client, or for it. */
  DATA: 2,
  /** The client, or the daemon, sends no more. */
  END: 3,
  /** The connection is closed. */
  CLOSE: 4,
  /** The receiver shall send no more bytes of this connection until RESUME. */
  PAUSE: 5,
  RESUME: 6,
  /** A worker sends it back to show that it responds. The first one comes without a request: it is ready. */
  PING: 7,
} as const;

const HEADER_BYTES = 9;

/** A payload that does not fit is written without being copied. */
const BATCH_BYTES = 2 * CHUNK_BYTES;

const EMPTY = Buffer.alloc(0);

export interface FrameReceiver {
  /** The payload is valid until the call returns. */
  onFrame(type: number, connection: number, payload: Buffer): void;
  /** The other process reads again. */
  onDrain(): void;
  /** The other process has closed its end, or is gone. */
  onEnd(): void;
}

export class FrameChannel {
  readonly #socket: Socket;
  readonly #receiver: FrameReceiver;
  #batch = Buffer.allocUnsafeSlow(BATCH_BYTES);
  #length = 0;
  #isFlushPlanned = false;
  #incomplete = EMPTY;

  constructor(socket: Socket, receiver: FrameReceiver) {
    this.#receiver = receiver;
    this.#socket = reuseReadBuffer(socket, (chunk) => this.#onChunk(chunk));
    this.#socket.on('drain', () => receiver.onDrain());
    this.#socket.on('error', () => this.#socket.destroy());
    let hasEnded = false;
    for (const event of ['end', 'close'])
      this.#socket.on(event, () => {
        if (!hasEnded) receiver.onEnd();
        hasEnded = true;
      });
  }

  /** True while the other process does not read: frames stay in memory, so as few as possible should follow. */
  get isBlocked(): boolean {
    return this.#socket.writableNeedDrain;
  }

  send(
    type: number,
    connection: number,
    payload: Buffer | string = EMPTY,
    encoding: BufferEncoding = 'latin1',
  ): void {
    const isText = typeof payload === 'string';
    const bytes = isText ? Buffer.byteLength(payload, encoding) : payload.length;
    if (this.#length + HEADER_BYTES + bytes > BATCH_BYTES) this.flush();
    const batch = this.#batch;
    const at = this.#length;
    batch.writeUInt32LE(connection, at);
    batch[at + 4] = type;
    batch.writeUInt32LE(bytes, at + 5);
    this.#length = at + HEADER_BYTES;
    if (this.#length + bytes > BATCH_BYTES) {
      this.flush();
      this.#socket.write(isText ? Buffer.from(payload, encoding) : payload);
      return;
    }
    if (isText) batch.write(payload, this.#length, encoding);
    else payload.copy(batch, this.#length);
    this.#length += bytes;
    if (!this.#isFlushPlanned) onImmediate(this.#flushNow);
    this.#isFlushPlanned = true;
  }

  readonly #flushNow = (): void => {
    this.#isFlushPlanned = false;
    this.flush();
  };

  flush(): void {
    if (this.#length === 0) return;
    const { writable } = this.#socket;
    if (writable) this.#socket.write(this.#batch.subarray(0, this.#length));
    this.#length = 0;
    // Bytes that the system has not taken yet are still in the batch.
    if (this.#socket.writableLength > 0) this.#batch = Buffer.allocUnsafeSlow(BATCH_BYTES);
  }

  /** Sends pending frames, then closes this end. */
  end(): void {
    this.flush();
    this.#socket.end();
  }

  destroy(): void {
    this.#socket.destroy();
  }

  #onChunk(chunk: Buffer): void {
    const bytes = this.#incomplete.length > 0 ? Buffer.concat([this.#incomplete, chunk]) : chunk;
    let at = 0;
    while (at + HEADER_BYTES <= bytes.length) {
      const start = at + HEADER_BYTES;
      const end = start + bytes.readUInt32LE(at + 5);
      if (end > bytes.length) break;
      this.#receiver.onFrame(bytes[at + 4], bytes.readUInt32LE(at), bytes.subarray(start, end));
      at = end;
    }
    this.#incomplete = at < bytes.length ? Buffer.from(bytes.subarray(at)) : EMPTY;
  }
}
