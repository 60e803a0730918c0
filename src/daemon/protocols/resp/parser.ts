/**
 * Finds commands in bytes, without making anything of them yet.
 *
 *     *3\r\n $12\r\nSLUICE.CHECK\r\n $1\r\n*\r\n $5\r\nalice\r\n        an array of bulk strings
 *     SLUICE.CHECK * "alice"\r\n                                        or a line, as people type it
 *
 * An argument is two places in `source`, and stays good until the next command is looked for. What
 * is said of bytes never depends on how they were cut into chunks: a bound counts from the
 * beginning of a command, and is enforced as soon as it is known to be crossed.
 */

export interface RespBounds {
  /** Arguments of one command, its name included. */
  readonly maxArguments: number;
  readonly maxArgumentBytes: number;
  /** Bytes of one command, as they travel. */
  readonly maxCommandBytes: number;
  /** A longer key is refused, and the talk goes on. */
  readonly maxKeyBytes: number;
}

export const RESP_BOUNDS: RespBounds = {
  maxArguments: 128,
  maxArgumentBytes: 65_536,
  maxCommandBytes: 131_072,
  maxKeyBytes: 4096,
};

/** The end of the command has not come yet. */
export const INCOMPLETE = -1;
/** Nothing sensible can follow; `complaint` says why. */
export const INVALID = -2;

/** The longest length anybody writes, and then some. */
const MAX_HEADER_BYTES = 32;

const STAR = 0x2a;
const DOLLAR = 0x24;
const RETURN = 13;
const NEWLINE = 10;
const MINUS = 0x2d;
const ZERO = 0x30;
const NINE = 0x39;

export class CommandParser {
  /** Arguments of the command found last. */
  count = 0;
  readonly starts: Int32Array;
  readonly ends: Int32Array;
  source: Buffer = Buffer.alloc(0);
  /** How many bytes from the beginning of an incomplete command there must at least be to go on. */
  bytesNeeded = 0;
  error = '';

  readonly #bounds: RespBounds;
  /** Where a header ends, its line's end included. */
  #headerEnd = 0;

  constructor(bounds: RespBounds) {
    this.#bounds = bounds;
    this.starts = new Int32Array(bounds.maxArguments);
    this.ends = new Int32Array(bounds.maxArguments);
  }

  /** Looks for a command from `at` on. Where it ends; or INCOMPLETE or BROKEN. */
  next(bytes: Buffer, at: number): number {
    this.count = 0;
    this.source = bytes;
    return bytes[at] === STAR ? this.#array(bytes, at) : this.#inline(bytes, at);
  }

  #array(bytes: Buffer, begin: number): number {
    const { maxArguments, maxArgumentBytes, maxCommandBytes } = this.#bounds;
    const count = this.#header(bytes, begin, begin, 'mbulk');
    if (count === undefined) return this.error ? INVALID : INCOMPLETE;
    if (!(count <= maxArguments)) return this.#invalid('invalid multibulk length');
    let at = this.#headerEnd;
    for (let n = 0; n < count; n++) {
      if (at >= bytes.length) return this.#incomplete(at + 1 - begin);
      if (bytes[at] !== DOLLAR) return this.#invalid(`expected '$', got '${printable(bytes[at])}'`);
      const length = this.#header(bytes, at, begin, 'bulk');
      if (length === undefined) return this.error ? INVALID : INCOMPLETE;
      if (!(length >= 0 && length <= maxArgumentBytes)) return this.#invalid('invalid bulk length');
      const end = this.#headerEnd + length + 2;
      if (end - begin > maxCommandBytes) return this.#invalid('too big request');
      if (end > bytes.length) return this.#incomplete(end - begin);
      this.starts[n] = this.#headerEnd;
      this.ends[n] = end - 2;
      at = end;
    }
    this.count = Math.max(0, count);
    return at;
  }

  /** The number behind the mark at `at`, NaN if it is none; undefined if incomplete or broken. */
  #header(bytes: Buffer, at: number, begin: number, what: string): number | undefined {
    let end = at + 1;
    const last = Math.min(bytes.length, at + MAX_HEADER_BYTES);
    while (end < last && bytes[end] !== RETURN) end++;
    if (end === at + MAX_HEADER_BYTES) {
      this.#invalid(`too big ${what} count string`);
      return undefined;
    }
    if (end + 1 >= bytes.length) {
      this.#incomplete(bytes.length + 1 - begin);
      return undefined;
    }
    this.#headerEnd = end + 2; // what stands behind the return is taken for a newline, as Redis does
    return parseLength(bytes, at + 1, end);
  }

  #inline(bytes: Buffer, begin: number): number {
    const end = bytes.indexOf(NEWLINE, begin);
    const { maxCommandBytes } = this.#bounds;
    if ((end < 0 ? bytes.length : end) - begin > maxCommandBytes) {
      return this.#invalid('too big inline request');
    }
    if (end < 0) return this.#incomplete(bytes.length - begin + 1);
    const to = end > begin && bytes[end - 1] === RETURN ? end - 1 : end;
    return this.#splitInline(bytes, begin, to) ? end + 1 : INVALID;
  }

  /** Words between blanks. Quotes keep blanks together; between double ones a backslash escapes. */
  #splitInline(bytes: Buffer, from: number, to: number): boolean {
    const plain = Buffer.allocUnsafe(to - from); // no longer than what it is made of
    this.source = plain;
    let length = 0;
    let at = from;
    for (;;) {
      while (at < to && isBlank(bytes[at])) at++;
      if (at === to) return true;
      if (this.count === this.#bounds.maxArguments) {
        this.#invalid('too many arguments');
        return false;
      }
      this.starts[this.count] = length;
      let quote = 0;
      for (; at < to && (quote !== 0 || !isBlank(bytes[at])); at++) {
        const byte = bytes[at];
        if (quote === 0 && (byte === DOUBLE || byte === SINGLE)) quote = byte;
        else if (quote !== 0 && byte === quote) {
          quote = 0;
          if (at + 1 < to && !isBlank(bytes[at + 1])) return this.#unbalanced();
        } else if (quote !== 0 && byte === BACKSLASH && at + 1 < to) {
          const taken = readEscape(bytes, at, to, quote);
          plain[length++] = unescaped;
          at += taken - 1;
        } else plain[length++] = byte;
      }
      if (quote !== 0) return this.#unbalanced();
      if (length - this.starts[this.count] > this.#bounds.maxArgumentBytes) {
        this.#invalid('too big inline request');
        return false;
      }
      this.ends[this.count++] = length;
    }
  }

  #unbalanced(): false {
    this.#invalid('unbalanced quotes in request');
    return false;
  }

  #incomplete(needed: number): typeof INCOMPLETE {
    this.bytesNeeded = needed;
    return INCOMPLETE;
  }

  #invalid(complaint: string): typeof INVALID {
    this.error = complaint;
    return INVALID;
  }
}

const DOUBLE = 0x22;
const SINGLE = 0x27;
const BACKSLASH = 0x5c;
const ESCAPES: Readonly<Record<string, number>> = { n: 10, r: 13, t: 9, b: 8, a: 7 };

let unescaped = 0;

/** Leaves in `unescaped` what the escape at `at` stands for, and says how long the escape is. */
function readEscape(bytes: Buffer, at: number, to: number, quote: number): number {
  const next = bytes[at + 1];
  if (quote === SINGLE) {
    unescaped = next === SINGLE ? SINGLE : BACKSLASH;
    return next === SINGLE ? 2 : 1;
  }
  if (next === 0x78 && at + 3 < to) {
    const hex = bytes.toString('latin1', at + 2, at + 4);
    if (/^[\da-f]{2}$/i.test(hex)) {
      unescaped = Number.parseInt(hex, 16);
      return 4;
    }
  }
  unescaped = ESCAPES[String.fromCharCode(next)] ?? next;
  return 2;
}

const isBlank = (byte: number): boolean => byte === 0x20 || (byte >= 9 && byte <= 13);

const printable = (byte: number): string =>
  byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : ' ';

/** A length as Redis wants it written: digits without a leading zero; anything else is NaN. */
function parseLength(bytes: Buffer, from: number, to: number): number {
  if (to - from === 1) {
    const digit = bytes[from] - ZERO;
    return digit >= 0 && digit <= 9 ? digit : Number.NaN;
  }
  const isNegative = bytes[from] === MINUS;
  let at = isNegative ? from + 1 : from;
  if (at === to || bytes[at] === ZERO) return Number.NaN;
  let number = 0;
  for (; at < to; at++) {
    const byte = bytes[at];
    if (byte < ZERO || byte > NINE) return Number.NaN;
    number = number * 10 + byte - ZERO;
  }
  return isNegative ? -number : number;
}

/** A whole number as an argument, with a sign or not; NaN if it is none, or too large to be exact. */
export function parseInteger(bytes: Buffer, from: number, to: number): number {
  const sign = bytes[from];
  const isSigned = to > from && (sign === MINUS || sign === 0x2b);
  let at = isSigned ? from + 1 : from;
  if (at === to) return Number.NaN;
  let number = 0;
  for (; at < to; at++) {
    const byte = bytes[at];
    if (byte < ZERO || byte > NINE) return Number.NaN;
    number = number * 10 + byte - ZERO;
  }
  if (number > Number.MAX_SAFE_INTEGER) return Number.NaN;
  return isSigned && sign === MINUS ? -number : number;
}

/** Whether the bytes are this word, written in lower case, whichever case they are in. */
export function equalsIgnoringCase(
  bytes: Buffer,
  from: number,
  to: number,
  word: Uint8Array,
): boolean {
  if (to - from !== word.length) return false;
  for (let n = 0; n < word.length; n++) {
    const byte = bytes[from + n];
    const lower = byte >= 0x41 && byte <= 0x5a ? byte | 0x20 : byte;
    if (lower !== word[n]) return false;
  }
  return true;
}
