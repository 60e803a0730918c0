/**
 * Finds commands in bytes without decoding them.
 *
 *     *3\r\n $12\r\nSLUICE.CHECK\r\n $1\r\n*\r\n $5\r\nalice\r\n        an array of bulk strings
 *     SLUICE.CHECK * "alice"\r\n                                        or an inline command
 *
 * An argument is two offsets into `source`, valid until the next command is parsed. The result never depends on how the
 * bytes were cut into chunks. A bound counts from the beginning of a command, and is enforced as soon as it is known to
 * be exceeded.
 */

export interface RespBounds {
  /** Arguments of one command, its name included. */
  readonly maxArguments: number;
  readonly maxArgumentBytes: number;
  /** Bytes of one encoded command. */
  readonly maxCommandBytes: number;
  /** A longer key gets an error; the connection goes on. */
  readonly maxKeyBytes: number;
}

export const RESP_BOUNDS: RespBounds = {
  maxArguments: 128,
  maxArgumentBytes: 65_536,
  maxCommandBytes: 131_072,
  maxKeyBytes: 4096,
};

/** Before AUTH, as in Redis. */
export const UNAUTHENTICATED_BOUNDS: RespBounds = {
  maxArguments: 10,
  maxArgumentBytes: 16_384,
  maxCommandBytes: 16_640,
  maxKeyBytes: 4096,
};

/** The command is incomplete. */
export const INCOMPLETE = -1;
/** The bytes are not RESP; `error` says why. */
export const INVALID = -2;

/** More than any valid length needs. */
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
  /** Bytes of an incomplete command that must be there before it is worth parsing again. */
  bytesNeeded = 0;
  error = '';

  /** Within those of the constructor. */
  bounds: RespBounds;
  /** The offset behind a header and its line end. */
  #headerEnd = 0;

  constructor(bounds: RespBounds) {
    this.bounds = bounds;
    this.starts = new Int32Array(bounds.maxArguments);
    this.ends = new Int32Array(bounds.maxArguments);
  }

  /** Parses a command at an offset. Returns its end, INCOMPLETE or INVALID. */
  next(bytes: Buffer, at: number): number {
    this.count = 0;
    this.source = bytes;
    return bytes[at] === STAR ? this.#array(bytes, at) : this.#inline(bytes, at);
  }

  #array(bytes: Buffer, begin: number): number {
    const { maxArguments, maxArgumentBytes, maxCommandBytes } = this.bounds;
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

  /** The number of the header at `at`, NaN if malformed; undefined if incomplete or invalid. */
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
    this.#headerEnd = end + 2; // the byte behind the carriage return is not checked, as in Redis
    return parseLength(bytes, at + 1, end);
  }

  #inline(bytes: Buffer, begin: number): number {
    const end = bytes.indexOf(NEWLINE, begin);
    const { maxCommandBytes } = this.bounds;
    if ((end < 0 ? bytes.length : end) - begin > maxCommandBytes) {
      return this.#invalid('too big inline request');
    }
    if (end < 0) return this.#incomplete(bytes.length - begin + 1);
    const to = end > begin && bytes[end - 1] === RETURN ? end - 1 : end;
    return this.#splitInline(bytes, begin, to) ? end + 1 : INVALID;
  }

  /** Splits at blanks outside quotes; a backslash escapes within double quotes. */
  #splitInline(bytes: Buffer, from: number, to: number): boolean {
    const plain = Buffer.allocUnsafe(to - from); // unescaping never lengthens
    this.source = plain;
    let length = 0;
    let at = from;
    for (;;) {
      while (at < to && isBlank(bytes[at])) at++;
      if (at === to) return true;
      if (this.count === this.bounds.maxArguments) {
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
      if (length - this.starts[this.count] > this.bounds.maxArgumentBytes) {
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

  #invalid(error: string): typeof INVALID {
    this.error = error;
    return INVALID;
  }
}

const DOUBLE = 0x22;
const SINGLE = 0x27;
const BACKSLASH = 0x5c;
const ESCAPES: Readonly<Record<string, number>> = { n: 10, r: 13, t: 9, b: 8, a: 7 };

let unescaped = 0;

/** Decodes the escape at `at` into `unescaped` and returns its length. */
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

/** A length in the form of Redis: digits without a leading zero; otherwise NaN. */
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

/** An integer with an optional sign; NaN if it is malformed or beyond exact numbers. */
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

/** Compares with a lower-case word, ignoring case. */
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
