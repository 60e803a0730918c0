/**
 * Answers as bytes, gathered one behind the other.
 *
 * RESP2 knows texts, whole numbers, lists and nothing. RESP3 also knows maps, fractions and yes or no;
 * whoever speaks RESP2 gets a map as a list of names and values, the rest as text or 1 and 0.
 */

/** Which of them the client speaks. */
export type Protocol = 2 | 3;

/** What can be said in RESP; undefined is left out of a map. */
export type Value =
  | string
  | number
  | boolean
  | null
  | Buffer
  | Status
  | readonly Value[]
  | { readonly [name: string]: Value | undefined };

/** A text that is a line of its own: a word, not a value of any length. */
export class Status {
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
const COUNTED_BYTES_MAX = 20;

const SHORT_CHARS_MAX = 64;

/** What a few answers need; it grows when many are gathered. */
const ROOM = 16_384;

/** What one answer on its own needs, mostly. */
const ROOM_FOR_ONE = 256;

/** More room than this is not kept for later. */
const ROOM_KEPT_MAX = 1_048_576;

/** Methods return nothing at all, so that a command can end with one of them. */
export class Reply {
  protocol: Protocol = 2;
  #bytes: Buffer;
  #length = 0;

  constructor(room = ROOM) {
    this.#bytes = Buffer.allocUnsafeSlow(room);
  }

  /** Bytes gathered so far. */
  get size(): number {
    return this.#length;
  }

  /** Everything gathered so far, as bytes of their own; gathers anew. */
  take(): Buffer {
    const taken = Buffer.from(this.#bytes.subarray(0, this.#length));
    this.#length = 0;
    if (this.#bytes.length > ROOM_KEPT_MAX) this.#bytes = Buffer.allocUnsafeSlow(ROOM);
    return taken;
  }

  simple(text: string): undefined {
    this.#line(PLUS, text);
  }

  /** Never more than one line, whatever it tells of. */
  error(text: string): undefined {
    this.#line(MINUS, text.replace(/[\r\n\0]/g, ' ').replace(/[^\0-\xff]/g, '?'));
  }

  bulk(text: string): undefined {
    const size = isShortAscii(text) ? text.length : Buffer.byteLength(text);
    this.#counted(DOLLAR, size);
    this.#reserve(size + 2);
    if (size === text.length) this.#bytewise(text);
    else this.#length += this.#bytes.write(text, this.#length);
    this.#endLine();
  }

  /** Bytes as they came. */
  raw(bytes: Buffer): undefined {
    this.#counted(DOLLAR, bytes.length);
    this.#reserve(bytes.length + 2);
    bytes.copy(this.#bytes, this.#length);
    this.#length += bytes.length;
    this.#endLine();
  }

  integer(number: number): undefined {
    this.#counted(COLON, number);
  }

  array(length: number): undefined {
    this.#counted(STAR, length);
  }

  map(length: number): undefined {
    if (this.protocol === 3) this.#counted(PERCENT, length);
    else this.array(length * 2);
  }

  nothing(): undefined {
    if (this.protocol === 3) this.#line(UNDERSCORE, '');
    else this.#counted(DOLLAR, -1);
  }

  /** Five whole numbers: the one answer that has to be fast. */
  five(a: number, b: number, c: number, d: number, e: number): undefined {
    this.#reserve(6 * COUNTED_BYTES_MAX);
    this.#write(STAR, 5);
    this.#write(COLON, a);
    this.#write(COLON, b);
    this.#write(COLON, c);
    this.#write(COLON, d);
    this.#write(COLON, e);
  }

  value(value: Value): undefined {
    if (value === null) this.nothing();
    else if (typeof value === 'string') this.bulk(value);
    else if (typeof value === 'number') this.#number(value);
    else if (typeof value === 'boolean') this.#flag(value);
    else if (Buffer.isBuffer(value)) this.raw(value);
    else if (value instanceof Status) this.simple(value.text);
    else if (isList(value)) {
      this.array(value.length);
      for (const own of value) this.value(own);
    } else this.#entries(value);
  }

  #entries(map: { readonly [name: string]: Value | undefined }): void {
    const names = Object.keys(map).filter((name) => map[name] !== undefined);
    this.map(names.length);
    for (const name of names) {
      this.bulk(name);
      this.value(map[name] as Value);
    }
  }

  #number(number: number): void {
    if (Number.isSafeInteger(number)) this.integer(number);
    else if (this.protocol === 3) this.#line(COMMA, Number.isFinite(number) ? `${number}` : 'inf');
    else this.bulk(String(number));
  }

  #flag(isSo: boolean): void {
    if (this.protocol === 3) this.#line(HASH, isSo ? 't' : 'f');
    else this.integer(isSo ? 1 : 0);
  }

  /** A mark and a whole number. */
  #counted(mark: number, number: number): void {
    this.#reserve(COUNTED_BYTES_MAX);
    this.#write(mark, number);
  }

  /** The same where there is room already. */
  #write(mark: number, number: number): void {
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
  #line(mark: number, text: string): void {
    this.#reserve(text.length + 3);
    this.#bytes[this.#length++] = mark;
    this.#bytewise(text);
    this.#endLine();
  }

  /** Short texts are written faster character by character than by calling out of the engine. */
  #bytewise(text: string): void {
    if (text.length > SHORT_CHARS_MAX) {
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
  if (text.length > SHORT_CHARS_MAX) return false;
  for (let n = 0; n < text.length; n++) if (text.charCodeAt(n) > 0x7f) return false;
  return true;
}

const isList = (value: object): value is readonly Value[] => Array.isArray(value);

/** One answer on its own. */
export function replyWith(protocol: Protocol, fill: (reply: Reply) => void): Buffer {
  const reply = new Reply(ROOM_FOR_ONE);
  reply.protocol = protocol;
  fill(reply);
  return reply.take();
}
