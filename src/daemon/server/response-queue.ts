/**
 * Answers in the order of their questions, on one connection.
 *
 * Most answers are there at once and go straight out. One that somebody else has to give is owed:
 * whatever is answered after it waits behind it, so that a client can match answers by counting.
 */

import { endOfTick } from '../../core/clock.ts';

/** Answers that somebody else owes; with more of them a client is asked to wait. */
const OWED_MAX = 1024;

/** So many are few enough to go on: one question for each answer would be a lot of going on. */
const OWED_FEW = OWED_MAX / 2;

/** Bytes that are held back behind an answer which is owed; with more of them too. */
const HELD_BACK_BYTES_MAX = 262_144;

/** Where bytes go. */
export type Write = (bytes: Buffer) => void;

interface Owed {
  bytes: Buffer | undefined;
}

export class Answers {
  readonly #write: Write;
  readonly #onSettled: () => void;
  #waiting: Owed[] = [];
  #heldBackBytes = 0;
  #isFlushing = false;
  /** Set while the client does not take what it was answered. */
  isStuck = false;

  /** `onSettled` hears that an answer which was owed has gone out. */
  constructor(write: Write, onSettled: () => void) {
    this.#write = write;
    this.#onSettled = onSettled;
  }

  /** How many answers are held back. */
  get owed(): number {
    return this.#waiting.length;
  }

  /** True if no more should be answered for now: whoever asks keeps the rest of the questions. */
  get isFull(): boolean {
    return (
      this.isStuck || this.#waiting.length > OWED_MAX || this.#heldBackBytes > HELD_BACK_BYTES_MAX
    );
  }

  /** True if it is worth going on. */
  get hasRoom(): boolean {
    return !this.isFull && this.#waiting.length <= OWED_FEW;
  }

  give(bytes: Buffer): void {
    if (this.#waiting.length === 0) {
      this.#write(bytes);
      return;
    }
    this.#waiting.push({ bytes });
    this.#heldBackBytes += bytes.length;
  }

  owe(answer: Promise<Buffer>): void {
    const owed: Owed = { bytes: undefined };
    this.#waiting.push(owed);
    answer.then((bytes) => {
      owed.bytes = bytes;
      this.#heldBackBytes += bytes.length;
      if (!this.#isFlushing) endOfTick(() => this.#flush()); // many come at once, and go as one
      this.#isFlushing = true;
    });
  }

  /** Everything up to the first answer that is still missing, in one piece. */
  #flush(): void {
    this.#isFlushing = false;
    const missing = this.#waiting.findIndex(({ bytes }) => bytes === undefined);
    const ready = this.#waiting.splice(0, missing < 0 ? this.#waiting.length : missing);
    if (ready.length === 0) return;
    const bytes = Buffer.concat(ready.map((own) => own.bytes as Buffer));
    this.#heldBackBytes -= bytes.length;
    this.#write(bytes);
    this.#onSettled();
  }
}
