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

/** Longer than any number or error message. */
const MAX_LINE_BYTES = 65_536;

/** The deepest nesting that is parsed; the daemon's replies have four levels. */
const MAX_DEPTH = 8;

const NEWLINE = 10;

const INCOMPLETE = Symbol('incomplete');
/** The items of an array or a map follow. */
const OPENED = Symbol('opened');

type Element = RespValue | typeof INCOMPLETE | typeof OPENED;

/** An array or a map that is not complete. */
interface OpenAggregate {
  readonly items: RespValue[];
  readonly size: number;
  readonly isMap: boolean;
}

const NO_BYTES = Buffer.alloc(0);

/**
 * Parses a stream of bytes into replies.
 *
 * Every byte is parsed once, however the stream is cut into chunks: items of an incomplete array are kept, and a string
 * of a known length is awaited. A parser that began each reply anew could be kept busy by a server that sends single bytes.
 */
export class RespParser {
  /** The beginning of an incomplete element: the first `#size` bytes. */
  #store: Buffer = NO_BYTES;
  #size = 0;
  /** As long as `#store` holds fewer bytes, the element is incomplete. */
  #needed = 0;
  /** The bytes that are parsed now, and the offset in them. */
  #bytes: Buffer = NO_BYTES;
  #offset = 0;
  /** The outermost first. */
  readonly #open: OpenAggregate[] = [];
  /** Bytes of the incomplete reply that are parsed. */
  #replyBytes = 0;

  /**
   * Calls `onReply` with every complete reply. False if the bytes are not RESP: then the rest of the stream is
   * unusable.
   */
  push(chunk: Buffer, onReply: (reply: RespValue) => void): boolean {
    this.#bytes = chunk;
    if (this.#size > 0) {
      this.#append(chunk);
      if (this.#size < this.#needed) return true;
      this.#bytes = this.#store.subarray(0, this.#size);
    }
    let from = 0;
    try {
      for (; from < this.#bytes.length; from = this.#offset) {
        this.#offset = from;
        const element = this.#parseElement();
        if (element === INCOMPLETE) break;
        this.#replyBytes += this.#offset - from;
        const reply = element === OPENED ? OPENED : this.#close(element);
        if (reply === OPENED) continue;
        this.#replyBytes = 0;
        onReply(reply);
      }
    } catch (error) {
      if (error instanceof InvalidRespError) return false;
      throw error;
    }
    this.#keepFrom(from);
    return this.#replyBytes + this.#size <= MAX_REPLY_BYTES;
  }

  /** The store doubles, so that a byte is copied a few times at most. */
  #append(chunk: Buffer): void {
    const size = this.#size + chunk.length;
    if (size > this.#store.length) {
      const grown = Buffer.allocUnsafe(2 * size);
      this.#store.copy(grown, 0, 0, this.#size);
      this.#store = grown;
    }
    chunk.copy(this.#store, this.#size);
    this.#size = size;
  }

  #keepFrom(from: number): void {
    const rest = this.#bytes.length - from;
    const isKept = from === 0 && this.#size > 0;
    if (!isKept) this.#store = rest === 0 ? NO_BYTES : Buffer.from(this.#bytes.subarray(from));
    this.#size = rest;
    this.#bytes = NO_BYTES;
  }

  #parseElement(): Element {
    const end = this.#bytes.indexOf(NEWLINE, this.#offset);
    if (end < 0) {
      const size = this.#bytes.length - this.#offset;
      if (size > MAX_LINE_BYTES) throw new InvalidRespError();
      this.#needed = size + 1;
      return INCOMPLETE;
    }
    const type = String.fromCharCode(this.#bytes[this.#offset]);
    const text = this.#bytes.toString('utf8', this.#offset + 1, end - 1);
    const start = this.#offset;
    this.#offset = end + 1;
    switch (type) {
      case ':':
      case ',':
        return parseNumber(text);
      case '$':
        return this.#parseBulkString(parseSize(text), start);
      case '*':
        return this.#openAggregate(parseSize(text), false);
      case '%':
        return this.#openAggregate(parseSize(text), true);
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

  #parseBulkString(size: number, start: number): string | null | typeof INCOMPLETE {
    if (size < 0) return null;
    const end = this.#offset + size;
    if (end + 2 > this.#bytes.length) {
      this.#needed = end + 2 - start;
      return INCOMPLETE;
    }
    const text = this.#bytes.toString('utf8', this.#offset, end);
    this.#offset = end + 2;
    return text;
  }

  #openAggregate(size: number, isMap: boolean): null | RespValue | typeof OPENED {
    if (size < 0) return null;
    if (this.#open.length >= MAX_DEPTH) throw new InvalidRespError();
    const aggregate = { items: [], size: isMap ? size * 2 : size, isMap };
    if (size === 0) return completed(aggregate);
    this.#open.push(aggregate);
    return OPENED;
  }

  /** Adds a value to the innermost array or map, and that to the next one if it is complete; a whole reply is returned. */
  #close(element: RespValue): RespValue | typeof OPENED {
    let value = element;
    for (let open = this.#open.at(-1); open; open = this.#open.at(-1)) {
      open.items.push(value);
      if (open.items.length < open.size) return OPENED;
      this.#open.pop();
      value = completed(open);
    }
    return value;
  }
}

function completed({ items, isMap }: OpenAggregate): RespValue {
  if (!isMap) return items;
  const entries: [string, RespValue][] = [];
  for (let n = 0; n < items.length; n += 2) entries.push([String(items[n]), items[n + 1]]);
  return Object.fromEntries(entries);
}

class InvalidRespError extends Error {}

function parseNumber(text: string): number {
  if (text === 'inf') return Infinity;
  const value = Number(text);
  if (text === '' || Number.isNaN(value)) throw new InvalidRespError();
  return value;
}

/** Bytes of a string, or items of an array or a map; below 0 for null. */
function parseSize(text: string): number {
  const size = parseNumber(text);
  if (!Number.isInteger(size) || size > MAX_REPLY_BYTES) throw new InvalidRespError();
  return size;
}
