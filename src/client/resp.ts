/** RESP on the client's side: encodes commands and parses replies. */

/** A reply of the daemon; an error is a value. */
export type RespValue =
  | string
  | number
  | boolean
  | null
  | RespError
  | readonly RespValue[]
  | { readonly [name: string]: RespValue };

/** The daemon refused a command as invalid. */
export class RespError {
  readonly message: string;

  constructor(message: string) {
    this.message = message;
  }
}

/** A string with one character per UTF-8 byte. */
export const toBinaryString = (text: string): string =>
  isAscii(text) ? text : Buffer.from(text, 'utf8').toString('latin1');

function isAscii(text: string): boolean {
  for (let n = 0; n < text.length; n++) if (text.charCodeAt(n) > 0x7f) return false;
  return true;
}

/** Encodes a command; the arguments are binary strings. */
export function encodeCommand(args: readonly string[]): string {
  let text = `*${args.length}\r\n`;
  for (const arg of args) text += `$${arg.length}\r\n${arg}\r\n`;
  return text;
}

/** Longer than any reply to our commands. */
const MAX_REPLY_BYTES = 1_048_576;

/** The deepest nesting that is parsed; the daemon's replies have four levels. */
const MAX_DEPTH = 8;

const NEWLINE = 10;

const INCOMPLETE = Symbol('incomplete');

/** Parses a stream of bytes into replies. */
export class RespParser {
  #bytes: Buffer = Buffer.alloc(0);
  #offset = 0;

  /**
   * Calls `onReply` with every complete reply. False if the bytes are not RESP: then the rest of the stream is
   * unusable.
   */
  push(chunk: Buffer, onReply: (reply: RespValue) => void): boolean {
    this.#bytes = this.#bytes.length > 0 ? Buffer.concat([this.#bytes, chunk]) : chunk;
    let from = 0;
    try {
      while (from < this.#bytes.length) {
        this.#offset = from;
        const reply = this.#parseValue(0);
        if (reply === INCOMPLETE) break;
        from = this.#offset;
        onReply(reply);
      }
    } catch (error) {
      if (error instanceof InvalidRespError) return false;
      throw error;
    }
    this.#bytes = this.#bytes.subarray(from);
    return this.#bytes.length <= MAX_REPLY_BYTES;
  }

  #parseValue(depth: number): RespValue | typeof INCOMPLETE {
    const end = this.#bytes.indexOf(NEWLINE, this.#offset);
    if (end < 0) return INCOMPLETE;
    const type = String.fromCharCode(this.#bytes[this.#offset]);
    const text = this.#bytes.toString('utf8', this.#offset + 1, end - 1);
    this.#offset = end + 1;
    switch (type) {
      case ':':
      case ',':
        return parseNumber(text);
      case '$':
        return this.#parseBulkString(parseNumber(text));
      case '*':
        return this.#parseArray(parseNumber(text), depth);
      case '%':
        return this.#parseMap(parseNumber(text), depth);
      case '+':
        return text;
      case '-':
        return new RespError(text);
      case '#':
        return text === 't';
      case '_':
        return null;
      default:
        throw new InvalidRespError();
    }
  }

  #parseBulkString(size: number): string | null | typeof INCOMPLETE {
    if (size < 0) return null;
    if (size > MAX_REPLY_BYTES) throw new InvalidRespError();
    const end = this.#offset + size;
    if (end + 2 > this.#bytes.length) return INCOMPLETE;
    const text = this.#bytes.toString('utf8', this.#offset, end);
    this.#offset = end + 2;
    return text;
  }

  #parseArray(size: number, depth: number): RespValue[] | null | typeof INCOMPLETE {
    if (size < 0) return null;
    if (size > MAX_REPLY_BYTES || depth >= MAX_DEPTH) throw new InvalidRespError();
    const list: RespValue[] = [];
    for (let n = 0; n < size; n++) {
      const item = this.#parseValue(depth + 1);
      if (item === INCOMPLETE) return INCOMPLETE;
      list.push(item);
    }
    return list;
  }

  #parseMap(size: number, depth: number): RespValue | typeof INCOMPLETE {
    const list = this.#parseArray(size * 2, depth);
    if (list === INCOMPLETE || list === null) return list;
    const entries = Array.from({ length: size }, (_, n) => [String(list[n * 2]), list[n * 2 + 1]]);
    return Object.fromEntries(entries);
  }
}

class InvalidRespError extends Error {}

function parseNumber(text: string): number {
  if (text === 'inf') return Infinity;
  const value = Number(text);
  if (text === '' || Number.isNaN(value)) throw new InvalidRespError();
  return value;
}
