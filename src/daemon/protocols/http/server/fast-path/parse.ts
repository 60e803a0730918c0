/**
 * Plain checks and their answers as bytes: what nearly every request to a daemon looks like.
 *
 *     GET /check?limit=api&key=alice HTTP/1.1⏎
 *     Host: localhost⏎
 *     ⏎
 *
 * This reads less than HTTP allows, on purpose: letters where a token could have signs, each header once,
 * nothing that says how long a body is or what is to become of the connection. It is either sure, or it
 * says nothing, and then Node's own parser decides. So nobody is ever refused here, and there are no two
 * opinions on where a request ends. `ways.test.ts` compares the two.
 */

import { STATUS_CODES } from 'node:http';
import type { Millis } from '../../../../../core/clock.ts';
import { toBinaryKey } from '../../../../keys/binary-key.ts';
import { MAX_HEADER_BYTES, MAX_HEADERS } from '../../bounds.ts';
import type { RequestHead } from '../../key.ts';
import type { HttpResponse } from '../../reply.ts';

/** A check that came whole, and where in its piece it ends. */
export interface ParsedCheck extends RequestHead {
  readonly end: number;
}

const REQUEST_START = Buffer.from('GET /check');
const URL_OFFSET = REQUEST_START.indexOf('/');
const VERSION_SUFFIX = Buffer.from(' HTTP/1.1\r\n');

const QUESTION_MARK = 63;
const COLON = 58;
const SPACE = 32;
const CR = 13;
const LF = 10;

/** What a byte may be part of. */
const IN_QUERY = 1;
const IN_NAME = 2;
const IN_VALUE = 4;

const BYTE_CLASSES = Uint8Array.from({ length: 256 }, (_, byte) => {
  const own = String.fromCharCode(byte);
  const inQuery = /[\w.~!$&'()*+,;=:@/?%-]/.test(own) ? IN_QUERY : 0; // as RFC 3986 has it
  const inName = /[a-z0-9-]/i.test(own) ? IN_NAME : 0;
  const inValue = /[\x20-\x7e]/.test(own) ? IN_VALUE : 0;
  return inQuery | inName | inValue;
});

/** Whoever sends one of these wants more than an answer, or says something about a body. */
const UNSUPPORTED_HEADERS: ReadonlySet<string> = new Set([
  ...['content-length', 'transfer-encoding', 'trailer', 'te'],
  ...['expect', 'upgrade', 'keep-alive', 'proxy-connection'],
]);

/** The check that begins here; undefined: none that is whole and plain. */
export function tryParseCheck(
  bytes: Buffer,
  from: number,
  socket: RequestHead['socket'],
): ParsedCheck | undefined {
  if (!hasBytesAt(bytes, from, REQUEST_START)) return undefined;
  const pathEnd = from + REQUEST_START.length;
  const urlEnd =
    bytes[pathEnd] === QUESTION_MARK ? endOfClass(bytes, pathEnd + 1, IN_QUERY) : pathEnd;
  if (!hasBytesAt(bytes, urlEnd, VERSION_SUFFIX)) return undefined;
  const marks = scanHeaders(bytes, urlEnd + VERSION_SUFFIX.length, from + MAX_HEADER_BYTES);
  if (marks === 0) return undefined;
  const end = HEADER_OFFSETS[marks - 1];
  const text = bytes.toString('latin1', from, end); // a text of its own: a key may be kept for long
  const headers = readHeaders(text, from, marks - 1);
  if (headers === undefined) return undefined;
  return { method: 'GET', url: text.slice(URL_OFFSET, urlEnd - from), headers, socket, end };
}

/** Where names and values begin and end, four numbers a header, and then where the head ends. */
const HEADER_OFFSETS = new Int32Array(MAX_HEADERS * 4 + 1);

/** Sets the marks, and says how many; 0 if not all of it is there, or it is not plain. */
function scanHeaders(bytes: Buffer, from: number, most: number): number {
  let at = from;
  let marks = 0;
  while (bytes[at] !== CR) {
    const nameEnd = endOfClass(bytes, at, IN_NAME);
    if (nameEnd === at || bytes[nameEnd] !== COLON || marks === MAX_HEADERS * 4) return 0;
    const valueAt = bytes[nameEnd + 1] === SPACE ? nameEnd + 2 : nameEnd + 1;
    const valueEnd = endOfClass(bytes, valueAt, IN_VALUE);
    // No value is empty, or has spaces around it that somebody else may or may not take as part of it.
    if (valueEnd === valueAt || bytes[valueAt] === SPACE || bytes[valueEnd - 1] === SPACE) return 0;
    if (bytes[valueEnd] !== CR || bytes[valueEnd + 1] !== LF) return 0;
    HEADER_OFFSETS[marks++] = at;
    HEADER_OFFSETS[marks++] = nameEnd;
    HEADER_OFFSETS[marks++] = valueAt;
    HEADER_OFFSETS[marks++] = valueEnd;
    at = valueEnd + 2;
  }
  if (bytes[at + 1] !== LF || at + 2 > most) return 0;
  HEADER_OFFSETS[marks++] = at + 2;
  return marks;
}

/** The headers by their names; undefined if one of them changes what the request is. */
function readHeaders(
  text: string,
  from: number,
  marks: number,
): RequestHead['headers'] | undefined {
  const headers: Record<string, string> = Object.create(null);
  for (let n = 0; n < marks; n += 4) {
    const name = text.slice(HEADER_OFFSETS[n] - from, HEADER_OFFSETS[n + 1] - from).toLowerCase();
    const value = text.slice(HEADER_OFFSETS[n + 2] - from, HEADER_OFFSETS[n + 3] - from);
    if (headers[name] !== undefined || UNSUPPORTED_HEADERS.has(name)) return undefined;
    if (name === 'connection' && value.toLowerCase() !== 'keep-alive') return undefined;
    headers[name] = value;
  }
  return headers.host === undefined ? undefined : headers;
}

/** Where bytes of a kind end. */
function endOfClass(bytes: Buffer, from: number, kind: number): number {
  let at = from;
  while (at < bytes.length && (BYTE_CLASSES[bytes[at]] & kind) !== 0) at++;
  return at;
}

function hasBytesAt(bytes: Buffer, at: number, expected: Buffer): boolean {
  if (at + expected.length > bytes.length) return false;
  for (let n = 0; n < expected.length; n++) if (bytes[at + n] !== expected[n]) return false;
  return true;
}

const STATUS_LINES = Array.from(
  { length: 600 },
  (_, status) => `HTTP/1.1 ${status} ${STATUS_CODES[status] ?? 'unknown'}\r\n`,
);

/** Writes replies as Node does: the same headers in the same order. */
export class ResponseWriter {
  #second = Number.NaN;
  #idleMs = Number.NaN;
  /** What every reply of this second says behind its own headers. */
  #commonHeaders = '';

  /** One character for each byte. `idleMs`: how long the connection may be silent then; 0: for ever. */
  write({ status, headers, body }: HttpResponse, now: Millis, idleMs: Millis): string {
    const second = Math.floor(now / 1000);
    if (second !== this.#second || idleMs !== this.#idleMs)
      this.#refreshCommonHeaders(second, idleMs);
    let head = STATUS_LINES[status];
    for (let n = 0; n < headers.length; n += 2) head += `${headers[n]}: ${headers[n + 1]}\r\n`;
    const length = Buffer.byteLength(body);
    const bytes = length === body.length ? body : toBinaryKey(body);
    return `${head}Content-Length: ${length}\r\n${this.#commonHeaders}${bytes}`;
  }

  #refreshCommonHeaders(second: number, idleMs: Millis): void {
    this.#second = second;
    this.#idleMs = idleMs;
    const date = `Date: ${new Date(second * 1000).toUTCString()}\r\n`;
    const idle = idleMs === 0 ? '' : `Keep-Alive: timeout=${Math.floor(idleMs / 1000)}\r\n`;
    this.#commonHeaders = `${date}Connection: keep-alive\r\n${idle}\r\n`;
  }
}
