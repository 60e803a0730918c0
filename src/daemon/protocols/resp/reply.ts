/**
 * RESP2 has strings, integers, arrays and null. RESP3 adds maps, doubles and booleans. For a RESP2 client a map becomes
 * an array of names and values, a double a string, a boolean 1 or 0.
 */

export type RespVersion = 2 | 3;

/** A value that can be encoded; undefined fields of a map are left out. */
export type ReplyValue =
  | string
  | number
  | boolean
  | null
  | Buffer
  | SimpleString
  | readonly ReplyValue[]
  | { readonly [name: string]: ReplyValue | undefined };

/** Encoded as a simple string instead of a bulk string. */
export class SimpleString {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

const [PLUS, MINUS, COLON, DOLLAR, STAR, PERCENT, UNDERSCORE, COMMA, HASH] =
  Buffer.from('+-:$*%_,#');
const CR = 13;
const LF = 10;
const ZERO = 0x30;

/** The longest integer with its type byte and line end. */
const MAX_HEADER_BYTES = 20;

const MAX_SHORT_CHARS = 64;

/** Initial size; the buffer grows. */
const BUFFER_BYTES = 16_384;

/** Enough for most single replies. */
const SINGLE_REPLY_BYTES = 256;

/** A larger buffer is released after use. */
const MAX_KEPT_BUFFER_BYTES = 1_048_576;

/** Methods return undefined, so that a command can end with `return reply.…`. */
export class RespWriter {
  protocol: RespVersion = 2;
  #bytes: Buffer;
  #length = 0;

  constructor(size = BUFFER_BYTES) {
    this.#bytes = Buffer.allocUnsafeSlow(size);
  }

  get size(): number {
    return this.#length;
  }

  /** Returns a copy of everything encoded so far and starts over. */
  takeBytes(): Buffer {
    const taken = Buffer.from(this.#bytes.subarray(0, this.#length));
    this.#length = 0;
    if (this.#bytes.length > MAX_KEPT_BUFFER_BYTES)
      this.#bytes = Buffer.allocUnsafeSlow(BUFFER_BYTES);
    return taken;
  }

  simple(text: string): undefined {
    this.#textLine(PLUS, text);
  }

  /** Control and wide characters are replaced: an error is one line of Latin-1. */
  error(text: string): undefined {
    this.#textLine(MINUS, text.replace(/[\r\n\0]/g, ' ').replace(/[^\0-\xff]/g, '?'));
  }

  bulk(text: string): undefined {
    const size = isShortAscii(text) ? text.length : Buffer.byteLength(text);
    this.#header(DOLLAR, size);
    this.#reserve(size + 2);
    if (size === text.length) this.#latin1(text);
    else this.#length += this.#bytes.write(text, this.#length);
    this.#endLine();
  }

  bulkBytes(bytes: Buffer): undefined {
    this.#header(DOLLAR, bytes.length);
    this.#reserve(bytes.length + 2);
    bytes.copy(this.#bytes, this.#length);
    this.#length += bytes.length;
    this.#endLine();
  }

  integer(number: number): undefined {
    this.#header(COLON, number);
  }

  array(length: number): undefined {
    this.#header(STAR, length);
  }

  map(length: number): undefined {
    if (this.protocol === 3) this.#header(PERCENT, length);
    else this.array(length * 2);
  }

  nil(): undefined {
    if (this.protocol === 3) this.#textLine(UNDERSCORE, '');
    else this.#header(DOLLAR, -1);
  }

  /** The reply of CL.THROTTLE, with one capacity check. */
  fiveIntegers(a: number, b: number, c: number, d: number, e: number): undefined {
    this.#reserve(6 * MAX_HEADER_BYTES);
    this.#writeHeader(STAR, 5);
    this.#writeHeader(COLON, a);
    this.#writeHeader(COLON, b);
    this.#writeHeader(COLON, c);
    this.#writeHeader(COLON, d);
    this.#writeHeader(COLON, e);
  }

  value(value: ReplyValue): undefined {
    if (value === null) this.nil();
    else if (typeof value === 'string') this.bulk(value);
    else if (typeof value === 'number') this.#number(value);
    else if (typeof value === 'boolean') this.#boolean(value);
    else if (Buffer.isBuffer(value)) this.bulkBytes(value);
    else if (value instanceof SimpleString) this.simple(value.text);
    else if (isList(value)) {
      this.array(value.length);
      for (const item of value) this.value(item);
    } else this.#mapEntries(value);
  }

  #mapEntries(map: { readonly [name: string]: ReplyValue | undefined }): void {
    const names = Object.keys(map).filter((name) => map[name] !== undefined);
    this.map(names.length);
    for (const name of names) {
      this.bulk(name);
      this.value(map[name] as ReplyValue);
    }
  }

  #number(number: number): void {
    if (Number.isSafeInteger(number)) this.integer(number);
    else if (this.protocol === 3)
      this.#textLine(COMMA, `${number}`.replace('Infinity', 'inf').toLowerCase());
    else this.bulk(String(number));
  }

  #boolean(value: boolean): void {
    if (this.protocol === 3) this.#textLine(HASH, value ? 't' : 'f');
    else this.integer(value ? 1 : 0);
  }

  /** A type byte and an integer. */
  #header(type: number, number: number): void {
    this.#reserve(MAX_HEADER_BYTES);
    this.#writeHeader(type, number);
  }

  /** Writes a header without a capacity check. A number that is not exact is clamped: clients take no more than 64 bits. */
  #writeHeader(type: number, number: number): void {
    const bytes = this.#bytes;
    let at = this.#length;
    bytes[at++] = type;
    let rest = number;
    if (rest < 0) {
      bytes[at++] = MINUS;
      rest = -rest;
    }
    if (!(rest <= Number.MAX_SAFE_INTEGER)) rest = rest > 0 ? Number.MAX_SAFE_INTEGER : 0;
    if (rest < 10) bytes[at++] = ZERO + rest;
    else {
      let digits = 1;
      for (let power = 10; power <= rest; power *= 10) digits++;
      for (let n = at + digits - 1; n >= at; n--) {
        const shorter = Math.floor(rest / 10);
        bytes[n] = ZERO + (rest - shorter * 10);
        rest = shorter;
      }
      at += digits;
    }
    bytes[at++] = CR;
    bytes[at++] = LF;
    this.#length = at;
  }

  /** A type byte and a string of one character per byte. */
  #textLine(type: number, text: string): void {
    this.#reserve(text.length + 3);
    this.#bytes[this.#length++] = type;
    this.#latin1(text);
    this.#endLine();
  }

  /** Short strings are written faster character by character than by a call into C++. */
  #latin1(text: string): void {
    if (text.length > MAX_SHORT_CHARS) {
      this.#length += this.#bytes.write(text, this.#length, 'latin1');
      return;
    }
    for (let n = 0; n < text.length; n++) this.#bytes[this.#length++] = text.charCodeAt(n);
  }

  #endLine(): void {
    this.#bytes[this.#length++] = CR;
    this.#bytes[this.#length++] = LF;
  }

  #reserve(size: number): undefined {
    if (this.#length + size <= this.#bytes.length) return;
    const larger = Buffer.allocUnsafeSlow(Math.max(this.#length + size, this.#bytes.length * 2));
    this.#bytes.copy(larger, 0, 0, this.#length);
    this.#bytes = larger;
  }
}

function isShortAscii(text: string): boolean {
  if (text.length > MAX_SHORT_CHARS) return false;
  for (let n = 0; n < text.length; n++) if (text.charCodeAt(n) > 0x7f) return false;
  return true;
}

const isList = (value: object): value is readonly ReplyValue[] => Array.isArray(value);

export function encodeReply(protocol: RespVersion, write: (reply: RespWriter) => void): Buffer {
  const reply = new RespWriter(SINGLE_REPLY_BYTES);
  reply.protocol = protocol;
  write(reply);
  return reply.takeBytes();
}
