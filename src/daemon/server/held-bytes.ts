/**
 * Bounds the memory that all connections together make the daemon hold: requests that are incomplete or wait for their
 * turn, queued commands, unread replies. Beyond it the connections that hold most are refused.
 */

import { MEMORY } from '../config/memory.ts';

export interface Holder {
  /** Releases what the connection holds, tells the client why, and closes. */
  refuse(): void;
}

/** An idle connection on the heap, as measured; those of HTTP take most. */
const CONNECTION_BYTES = 7000;

/** The fraction of connections that a protocol has in any case, however many the others have. */
const OWN_PART = 1 / 4;

/** The fraction that is held after some were refused: looking for them takes time. */
const KEPT = 7 / 8;

export class HeldBytes {
  readonly #maxBytes: number;
  readonly #maxConnections: number;
  readonly #byHolder = new Map<Holder, number>();
  #total = 0;
  connections = 0;

  constructor(maxBytes: number = MEMORY.held, maxConnectionBytes: number = MEMORY.connections) {
    this.#maxBytes = maxBytes;
    this.#maxConnections = Math.floor(maxConnectionBytes / CONNECTION_BYTES);
  }

  /** True if no memory is left for one more connection of a protocol. Each protocol may always have `OWN_PART`. */
  isFull(ofProtocol: number, reserved = 0): boolean {
    const max = this.#maxConnections - reserved;
    return this.connections >= max && ofProtocol >= max * OWN_PART;
  }

  /** Sets the bytes that a connection holds from now on. */
  set(holder: Holder, bytes: number): void {
    const before = this.#byHolder.get(holder) ?? 0;
    if (bytes === 0) this.#byHolder.delete(holder);
    else this.#byHolder.set(holder, bytes);
    this.#total += bytes - before;
    if (bytes > before && this.#total > this.#maxBytes) this.#refuse();
  }

  #refuse(): void {
    const byBytes = [...this.#byHolder].sort(([, a], [, b]) => b - a);
    for (const [holder] of byBytes) {
      if (this.#total <= KEPT * this.#maxBytes) return;
      this.set(holder, 0);
      holder.refuse();
    }
  }
}
