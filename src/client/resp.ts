/**
 * RESP from the client's side: questions into bytes, bytes into answers.
 */

/** What the daemon says; an error is a value here. */
export type Told =
  | string
  | number
  | boolean
  | null
  | Complaint
  | readonly Told[]
  | { readonly [name: string]: Told };

/** The daemon says that a question made no sense. */
export class Complaint {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

/** A text as one character for each of its bytes. */
export const bytesOf = (text: string): string =>
  isAscii(text) ? text : Buffer.from(text, 'utf8').toString('latin1');

function isAscii(text: string): boolean {
  for (let n = 0; n < text.length; n++) if (text.charCodeAt(n) > 0x7f) return false;
  return true;
}

/** A command; arguments are one character for each byte. */
export function encode(args: readonly string[]): string {
  let text = `*${args.length}\r\n`;
  for (const own of args) text += `$${own.length}\r\n${own}\r\n`;
  return text;
}

/** No answer to a question of ours is as long. */
const TOLD_BYTES_MAX = 1_048_576;

/** Answers within answers; ours have four. */
const DEPTH_MAX = 8;

const NEWLINE = 10;

/** More has to come before this is an answer. */
const MORE = Symbol('more');

/** Cuts a stream of bytes into answers. */
export class Reader {
  #bytes: Buffer = Buffer.alloc(0);
  #at = 0;

  /**
   * Calls `hear` with every answer that is whole. False if what came is no RESP: nothing after it can
   * be trusted.
   */
  read(chunk: Buffer, hear: (told: Told) => void): boolean {
    this.#bytes = this.#bytes.length > 0 ? Buffer.concat([this.#bytes, chunk]) : chunk;
    let from = 0;
    try {
      while (from < this.#bytes.length) {
        this.#at = from;
        const told = this.#value(0);
        if (told === MORE) break;
        from = this.#at;
        hear(told);
      }
    } catch (error) {
      if (error instanceof NotResp) return false;
      throw error;
    }
    this.#bytes = this.#bytes.subarray(from);
    return this.#bytes.length <= TOLD_BYTES_MAX;
  }

  #value(depth: number): Told | typeof MORE {
    const end = this.#bytes.indexOf(NEWLINE, this.#at);
    if (end < 0) return MORE;
    const mark = String.fromCharCode(this.#bytes[this.#at]);
    const text = this.#bytes.toString('utf8', this.#at + 1, end - 1);
    this.#at = end + 1;
    switch (mark) {
      case ':':
      case ',':
        return number(text);
      case '$':
        return this.#text(number(text));
      case '*':
        return this.#list(number(text), depth);
      case '%':
        return this.#map(number(text), depth);
      case '+':
        return text;
      case '-':
        return new Complaint(text);
      case '#':
        return text === 't';
      case '_':
        return null;
      default:
        throw new NotResp();
    }
  }

  #text(size: number): string | null | typeof MORE {
    if (size < 0) return null;
    if (size > TOLD_BYTES_MAX) throw new NotResp();
    const end = this.#at + size;
    if (end + 2 > this.#bytes.length) return MORE;
    const text = this.#bytes.toString('utf8', this.#at, end);
    this.#at = end + 2;
    return text;
  }

  #list(size: number, depth: number): Told[] | null | typeof MORE {
    if (size < 0) return null;
    if (size > TOLD_BYTES_MAX || depth >= DEPTH_MAX) throw new NotResp();
    const list: Told[] = [];
    for (let n = 0; n < size; n++) {
      const told = this.#value(depth + 1);
      if (told === MORE) return MORE;
      list.push(told);
    }
    return list;
  }

  #map(size: number, depth: number): Told | typeof MORE {
    const list = this.#list(size * 2, depth);
    if (list === MORE || list === null) return list;
    const entries = Array.from({ length: size }, (_, n) => [String(list[n * 2]), list[n * 2 + 1]]);
    return Object.fromEntries(entries);
  }
}

class NotResp extends Error {}

function number(text: string): number {
  if (text === 'inf') return Infinity;
  const value = Number(text);
  if (text === '' || Number.isNaN(value)) throw new NotResp();
  return value;
}
