/**
 * Answers as bytes, gathered one behind the other.
 *
 * RESP2 knows texts, whole numbers, lists and nothing. RESP3 also knows maps, fractions and yes or no;
 * whoever speaks RESP2 gets a map as a list of names and values, the rest as text or 1 and 0.
 */

/** Which of them the client speaks. */
export type RespVersion = 2 | 3;

/** What can be said in RESP; undefined is left out of a map. */
export type ReplyValue =
  | string
  | number
  | boolean
  | null
  | Buffer
  | SimpleString
  | readonly ReplyValue[]
  | { readonly [name: string]: ReplyValue | undefined };

/** A text that is a line of its own: a word, not a value of any length. */
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

/** The longest whole number, with its mark and its line's end. */
const MAX_HEADER_BYTES = 20;

const MAX_SHORT_CHARS = 64;

/** What a few answers need; it grows when many are gathered. */
const BUFFER_BYTES = 16_384;

/** What one answer on its own needs, mostly. */
const SINGLE_REPLY_BYTES = 256;

/** More room than this is not kept for later. */
const MAX_KEPT_BUFFER_BYTES = 1_048_576;

/** Methods return nothing at all, so that a command can end with one of them. */
export class RespWriter {
  protocol: RespVersion = 2;
  #bytes: Buffer;
  #length = 0;

  constructor(room = BUFFER_BYTES) {
    this.#bytes = Buffer.allocUnsafeSlow(room);
  }

  /** Bytes gathered so far. */
  get size(): number {
    return this.#length;
  }

  /** Everything gathered so far, as bytes of their own; gathers anew. */
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

  /** Never more than one line, whatever it tells of. */
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

  /** Bytes as they came. */
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

  /** Five whole numbers: the one answer that has to be fast. */
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
      for (const own of value) this.value(own);
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
      this.#textLine(COMMA, Number.isFinite(number) ? `${number}` : 'inf');
    else this.bulk(String(number));
  }

  #boolean(isSo: boolean): void {
    if (this.protocol === 3) this.#textLine(HASH, isSo ? 't' : 'f');
    else this.integer(isSo ? 1 : 0);
  }

  /** A mark and a whole number. */
  #header(mark: number, number: number): void {
    this.#reserve(MAX_HEADER_BYTES);
    this.#writeHeader(mark, number);
  }

  /** The same where there is room already. */
  #writeHeader(mark: number, number: number): void {
    const bytes = this.#bytes;
    let at = this.#length;
    bytes[at++] = mark;
    let rest = number;
    if (rest < 0) {
      bytes[at++] = MINUS;
      rest = -rest;
    }
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

  /** A mark and a text of one character for each byte. */
  #textLine(mark: number, text: string): void {
    this.#reserve(text.length + 3);
    this.#bytes[this.#length++] = mark;
    this.#latin1(text);
    this.#endLine();
  }

  /** Short texts are written faster character by character than by calling out of the engine. */
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

/** One answer on its own. */
export function encodeReply(protocol: RespVersion, fill: (reply: RespWriter) => void): Buffer {
  const reply = new RespWriter(SINGLE_REPLY_BYTES);
  reply.protocol = protocol;
  fill(reply);
  return reply.takeBytes();
}
