/**
 * Bytes that were read while their connection waits for its turn, with the instants after which they arrived.
 *
 * Bytes that are not read fill the buffers of the system and then those of the client. How long they wait there cannot
 * be seen from this process. A check that is too old would be decided as if it were new.
 */

import type { Millis } from '../../core/clock.ts';
import { copyOf } from './read-buffer.ts';

export interface ArrivedChunk {
  readonly bytes: Buffer;
  readonly arrivedAfter: Millis;
}

/** Bytes of one connection, beyond which it is not read. */
const MAX_BYTES = 262_144;

export class ReadAhead {
  readonly #chunks: ArrivedChunk[] = [];
  bytes = 0;

  get isEmpty(): boolean {
    return this.#chunks.length === 0;
  }

  get isFull(): boolean {
    return this.bytes >= MAX_BYTES;
  }

  /** The bytes are copied: the read buffer is reused. */
  add(chunk: Buffer, arrivedAfter: Millis): void {
    this.#chunks.push({ bytes: copyOf(chunk), arrivedAfter });
    this.bytes += chunk.length;
  }

  take(): ArrivedChunk | undefined {
    const first = this.#chunks.shift();
    this.bytes -= first?.bytes.length ?? 0;
    return first;
  }

  clear(): void {
    this.#chunks.length = this.bytes = 0;
  }
}
