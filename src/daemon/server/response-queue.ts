/**
 * Responses keep the order of their requests, so that a client can match them by counting: one that waits for a remote
 * backend holds back all later ones. Bounds on these give back-pressure.
 */

import { onNextTick } from '../../core/clock.ts';

/** Responses held back; beyond it the connection is not read. */
const MAX_PENDING = 1024;

/** Reading resumes below this number, not after every single response. */
const RESUME_PENDING = MAX_PENDING / 2;

/** Bytes held back; beyond it the connection is not read either. */
const MAX_PENDING_BYTES = 262_144;

export type WriteBytes = (bytes: Buffer) => void;

interface PendingResponse {
  bytes: Buffer | undefined;
}

export class ResponseQueue {
  readonly #write: WriteBytes;
  readonly #onFlushed: () => void;
  #pending: PendingResponse[] = [];
  /** Bytes of the responses that are held back. */
  pendingBytes = 0;
  #isFlushing = false;
  /** Set while the client does not read its responses. */
  isBlocked = false;
  /** Set while a request waits: those behind it are not processed. */
  isWaiting = false;

  /** `onFlushed` is called when responses that were held back have been written. */
  constructor(write: WriteBytes, onFlushed: () => void) {
    this.#write = write;
    this.#onFlushed = onFlushed;
  }

  get pendingCount(): number {
    return this.#pending.length;
  }

  /** True if no more requests should be processed: the handler keeps the rest as backlog. */
  get isFull(): boolean {
    return (
      this.isBlocked ||
      this.isWaiting ||
      this.#pending.length > MAX_PENDING ||
      this.pendingBytes > MAX_PENDING_BYTES
    );
  }

  /** True if enough was sent to process requests again. */
  get canResume(): boolean {
    return !this.isFull && this.#pending.length <= RESUME_PENDING;
  }

  write(bytes: Buffer): void {
    if (this.#pending.length === 0) {
      this.#write(bytes);
      return;
    }
    this.#pending.push({ bytes });
    this.pendingBytes += bytes.length;
  }

  writeLater(response: Promise<Buffer>): void {
    const pending: PendingResponse = { bytes: undefined };
    this.#pending.push(pending);
    response.then((bytes) => {
      pending.bytes = bytes;
      this.pendingBytes += bytes.length;
      if (!this.#isFlushing) onNextTick(() => this.#flush()); // responses of one tick go out as one write
      this.#isFlushing = true;
    });
  }

  /** The response to a request that waits. It holds back the requests behind it, not only their responses. */
  writeAfterWait(response: Promise<Buffer>): void {
    this.isWaiting = true;
    const waited = response.then((bytes) => {
      this.isWaiting = false;
      return bytes;
    });
    this.writeLater(waited);
  }

  /** Writes everything before the first missing response, in one piece. */
  #flush(): void {
    this.#isFlushing = false;
    const missing = this.#pending.findIndex(({ bytes }) => bytes === undefined);
    const ready = this.#pending.splice(0, missing < 0 ? this.#pending.length : missing);
    if (ready.length === 0) return;
    const bytes = Buffer.concat(ready.map((each) => each.bytes as Buffer));
    this.pendingBytes -= bytes.length;
    this.#write(bytes);
    this.#onFlushed();
  }
}
