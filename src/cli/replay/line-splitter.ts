/**
 * Splits bytes into lines that end with LF or CRLF. A line longer than `MAX_LINE_BYTES` is skipped: memory has a bound
 * whatever the file holds.
 */

export const MAX_LINE_BYTES = 1024 * 1024;

const LF = 10;
const CR = 13;

const NO_BYTES = Buffer.alloc(0);

export class LineSplitter {
  /** The current line is `bytes` from `from` to `to`. */
  bytes: Buffer = NO_BYTES;
  from = 0;
  to = 0;
  /** Number of the current line, from 1. */
  line = 0;
  /** True if the current line was too long; its text is not kept. */
  isTooLong = false;
  #next = 0;
  /** Bytes that follow `bytes`. */
  #following: Buffer = NO_BYTES;
  #isSkipping = false;
  #isEnded = false;

  /** Adds bytes behind those that are left, once `next` has returned false. Copies the line that is cut in two only. */
  push(chunk: Buffer): void {
    const rest = this.bytes.subarray(this.#next);
    const end = rest.length === 0 ? 0 : chunk.indexOf(LF) + 1 || chunk.length;
    this.bytes = Buffer.concat([rest, chunk.subarray(0, end)]);
    this.#following = chunk.subarray(end);
    this.#next = 0;
  }

  /** No more bytes follow: the rest is the last line. */
  end(): void {
    this.#isEnded = true;
  }

  /** Moves to the next line; false if more bytes are needed, or none is left. */
  next(): boolean {
    if (this.#next === this.bytes.length && this.#following.length > 0) {
      this.bytes = this.#following;
      this.#following = NO_BYTES;
      this.#next = 0;
    }
    const { bytes } = this;
    const from = this.#next;
    let at = bytes.indexOf(LF, from);
    if (at < 0) {
      const length = bytes.length - from;
      if (!this.#isEnded) {
        if (length > MAX_LINE_BYTES) {
          this.#isSkipping = true;
          this.#next = bytes.length;
        }
        return false;
      }
      if (length === 0 && !this.#isSkipping) return false;
      at = bytes.length;
    }
    this.isTooLong = this.#isSkipping || at - from > MAX_LINE_BYTES;
    this.#isSkipping = false;
    this.#next = Math.min(at + 1, bytes.length);
    this.from = from;
    this.to = at > from && bytes[at - 1] === CR ? at - 1 : at;
    this.line++;
    return true;
  }
}
