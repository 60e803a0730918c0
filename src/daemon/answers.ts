/**
 * Answers in the order of their questions, on one connection.
 *
 * Most answers are there at once and go straight out. One that somebody else has to give is owed:
 * whatever is answered after it waits behind it, so that a client can match answers by counting.
 */

/** Where bytes go. */
export type Write = (bytes: Buffer) => void;

interface Owed {
  bytes: Buffer | undefined;
}

export class Answers {
  readonly #write: Write;
  readonly #onSettled: () => void;
  #waiting: Owed[] = [];

  /** `onSettled` hears that an answer which was owed has gone out. */
  constructor(write: Write, onSettled: () => void) {
    this.#write = write;
    this.#onSettled = onSettled;
  }

  /** How many answers are held back. */
  get owed(): number {
    return this.#waiting.length;
  }

  give(bytes: Buffer): void {
    if (this.#waiting.length === 0) this.#write(bytes);
    else this.#waiting.push({ bytes });
  }

  owe(answer: Promise<Buffer>): void {
    const owed: Owed = { bytes: undefined };
    this.#waiting.push(owed);
    answer.then((bytes) => {
      owed.bytes = bytes;
      this.#flush();
    });
  }

  /** Everything up to the first answer that is still missing, in one piece. */
  #flush(): void {
    const missing = this.#waiting.findIndex(({ bytes }) => bytes === undefined);
    const ready = this.#waiting.splice(0, missing < 0 ? this.#waiting.length : missing);
    if (ready.length === 0) return;
    this.#write(Buffer.concat(ready.map(({ bytes }) => bytes as Buffer)));
    this.#onSettled();
  }
}
