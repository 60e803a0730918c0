/**
 * Answers in the order of their questions, on one connection.
 *
 * Most answers are there at once and go straight out. One that somebody else has to give is owed:
 * whatever is answered after it waits behind it, so that a client can match answers by counting.
 */

import { onNextTick } from '../../core/clock.ts';

/** Answers that somebody else owes; with more of them a client is asked to wait. */
const MAX_PENDING = 1024;

/** So many are few enough to go on: one question for each answer would be a lot of going on. */
const RESUME_PENDING = MAX_PENDING / 2;

/** Bytes that are held back behind an answer which is owed; with more of them too. */
const MAX_PENDING_BYTES = 262_144;

/** Where bytes go. */
export type WriteBytes = (bytes: Buffer) => void;

interface PendingResponse {
  bytes: Buffer | undefined;
}

export class ResponseQueue {
  readonly #write: WriteBytes;
  readonly #onFlushed: () => void;
  #pending: PendingResponse[] = [];
  #pendingBytes = 0;
  #isFlushing = false;
  /** Set while the client does not take what it was answered. */
  isBlocked = false;

  /** `onSettled` hears that an answer which was owed has gone out. */
  constructor(write: WriteBytes, onFlushed: () => void) {
    this.#write = write;
    this.#onFlushed = onFlushed;
  }

  /** How many answers are held back. */
  get pendingCount(): number {
    return this.#pending.length;
  }

  /** True if no more should be answered for now: whoever asks keeps the rest of the questions. */
  get isFull(): boolean {
    return (
      this.isBlocked || this.#pending.length > MAX_PENDING || this.#pendingBytes > MAX_PENDING_BYTES
    );
  }

  /** True if it is worth going on. */
  get canResume(): boolean {
    return !this.isFull && this.#pending.length <= RESUME_PENDING;
  }

  write(bytes: Buffer): void {
    if (this.#pending.length === 0) {
      this.#write(bytes);
      return;
    }
    this.#pending.push({ bytes });
    this.#pendingBytes += bytes.length;
  }

  writeLater(answer: Promise<Buffer>): void {
    const pending: PendingResponse = { bytes: undefined };
    this.#pending.push(pending);
    answer.then((bytes) => {
      pending.bytes = bytes;
      this.#pendingBytes += bytes.length;
      if (!this.#isFlushing) onNextTick(() => this.#flush()); // many come at once, and go as one
      this.#isFlushing = true;
    });
  }

  /** Everything up to the first answer that is still missing, in one piece. */
  #flush(): void {
    this.#isFlushing = false;
    const missing = this.#pending.findIndex(({ bytes }) => bytes === undefined);
    const ready = this.#pending.splice(0, missing < 0 ? this.#pending.length : missing);
    if (ready.length === 0) return;
    const bytes = Buffer.concat(ready.map((own) => own.bytes as Buffer));
    this.#pendingBytes -= bytes.length;
    this.#write(bytes);
    this.#onFlushed();
  }
}
