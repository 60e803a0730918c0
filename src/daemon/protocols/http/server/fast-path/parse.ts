/**
 * Parses plain checks and encodes their responses: the form of nearly every request to a daemon.
 *
 *     GET /check?limit=api&key=alice HTTP/1.1⏎
 *     Host: localhost⏎
 *     ⏎
 *
 * The parser accepts less than HTTP allows, on purpose: simple header names, each header once, no header
 * about a body or about the connection. It returns a request only if Node's parser must read the same;
 * otherwise Node decides. So there are never two opinions on where a request ends (request smuggling).
 * `equivalence.test.ts` holds it to Node's parser.
 */

import { STATUS_CODES } from 'node:http';
import type { Millis } from '../../../../../core/clock.ts';
import { toBinaryKey } from '../../../../keys/binary-key.ts';
import { MAX_HEADER_BYTES, MAX_HEADERS } from '../../bounds.ts';
import type { RequestHead } from '../../key.ts';
import type { HttpResponse } from '../../response.ts';

/** A complete check, and the offset of its end in the chunk. */
export interface ParsedCheck extends RequestHead {
  readonly end: number;
}

/** `incomplete`: a plain check so far, of which the rest is missing. `other`: left to Node. */
export type Unparsed = 'incomplete' | 'other';

const REQUEST_START = Buffer.from('GET /check');
const URL_OFFSET = REQUEST_START.indexOf('/');
const VERSION_SUFFIX = Buffer.from(' HTTP/1.1\r\n');

const QUESTION_MARK = 63;
const COLON = 58;
const SPACE = 32;
const CR = 13;
const LF = 10;

/** Byte classes. */
const IN_QUERY = 1;
const IN_NAME = 2;
const IN_VALUE = 4;

const BYTE_CLASSES = Uint8Array.from({ length: 256 }, (_, byte) => {
  const char = String.fromCharCode(byte);
  const inQuery = /[\w.~!$&'()*+,;=:@/?%-]/.test(char) ? IN_QUERY : 0; // RFC 3986
  const inName = /[a-z0-9-]/i.test(char) ? IN_NAME : 0;
  const inValue = /[\x20-\x7e]/.test(char) ? IN_VALUE : 0;
  return inQuery | inName | inValue;
});

/** Headers that announce a body, or change the connection or the response. */
const UNSUPPORTED_HEADERS: ReadonlySet<string> = new Set([
  ...['content-length', 'transfer-encoding', 'trailer', 'te'],
  ...['expect', 'upgrade', 'keep-alive', 'proxy-connection'],
]);

/** The headers of the last check, empty line included: most clients send the same ones with every request. */
let lastHead = 'Host: localhost\r\n\r\n';
let lastHeaders: RequestHead['headers'] = { host: 'localhost' };

function isLastHead(bytes: Buffer, at: number): boolean {
  if (at + lastHead.length > bytes.length) return false;
  for (let n = 0; n < lastHead.length; n++)
    if (bytes[at + n] !== lastHead.charCodeAt(n)) return false;
  return true;
}

/** The check that begins at an offset. */
export function tryParseCheck(
  bytes: Buffer,
  from: number,
  socket: RequestHead['socket'],
): ParsedCheck | Unparsed {
  if (!hasBytesAt(bytes, from, REQUEST_START)) return unparsed(bytes, from, REQUEST_START);
  const pathEnd = from + REQUEST_START.length;
  const urlEnd =
    bytes[pathEnd] === QUESTION_MARK ? endOfClass(bytes, pathEnd + 1, IN_QUERY) : pathEnd;
  if (!hasBytesAt(bytes, urlEnd, VERSION_SUFFIX)) return unparsed(bytes, urlEnd, VERSION_SUFFIX);
  const headersAt = urlEnd + VERSION_SUFFIX.length;
  const maxEnd = from + MAX_HEADER_BYTES;
  let end = headersAt + lastHead.length;
  if (end > maxEnd || !isLastHead(bytes, headersAt)) {
    const count = scanHeaders(bytes, headersAt, maxEnd);
    if (count <= 0) return count === CUT_OFF ? 'incomplete' : 'other';
    end = HEADER_OFFSETS[count - 1];
    const text = bytes.toString('latin1', headersAt, end); // copied: the read buffer is reused
    const headers = readHeaders(text, headersAt, count - 1);
    if (headers === undefined) return 'other';
    lastHead = text;
    lastHeaders = headers;
  }
  const url = bytes.toString('latin1', from + URL_OFFSET, urlEnd);
  return { method: 'GET', url, headers: lastHeaders, socket, end };
}

/** For bytes that do not continue as expected, or end before they could. */
const unparsed = (bytes: Buffer, at: number, expected: Buffer): Unparsed =>
  hasBytesAt(bytes, at, expected.subarray(0, bytes.length - at)) ? 'incomplete' : 'other';

/** Start and end of name and value, four numbers a header, then the end of the head. */
const HEADER_OFFSETS = new Int32Array(MAX_HEADERS * 4 + 1);

/** Results of `scanHeaders` without numbers. */
const NOT_PLAIN = 0;
const CUT_OFF = -1;

const failureAt = (bytes: Buffer, at: number, maxEnd: number): number =>
  at >= bytes.length && at <= maxEnd ? CUT_OFF : NOT_PLAIN;

/** Fills `HEADER_OFFSETS` and returns how many numbers; `CUT_OFF` if the bytes end within plain headers. */
function scanHeaders(bytes: Buffer, from: number, maxEnd: number): number {
  let at = from;
  let count = 0;
  while (bytes[at] !== CR) {
    const nameEnd = endOfClass(bytes, at, IN_NAME);
    if (count === MAX_HEADERS * 4) return NOT_PLAIN;
    if (nameEnd === at || bytes[nameEnd] !== COLON) return failureAt(bytes, nameEnd, maxEnd);
    const valueAt = bytes[nameEnd + 1] === SPACE ? nameEnd + 2 : nameEnd + 1;
    const valueEnd = endOfClass(bytes, valueAt, IN_VALUE);
    // Empty values and surrounding spaces are left to Node: parsers differ on them.
    if (bytes[valueAt] === SPACE) return NOT_PLAIN;
    if (valueEnd === valueAt || bytes[valueEnd - 1] === SPACE)
      return failureAt(bytes, valueEnd, maxEnd);
    if (bytes[valueEnd] !== CR) return failureAt(bytes, valueEnd, maxEnd);
    if (bytes[valueEnd + 1] !== LF) return failureAt(bytes, valueEnd + 1, maxEnd);
    HEADER_OFFSETS[count++] = at;
    HEADER_OFFSETS[count++] = nameEnd;
    HEADER_OFFSETS[count++] = valueAt;
    HEADER_OFFSETS[count++] = valueEnd;
    at = valueEnd + 2;
  }
  if (bytes[at + 1] !== LF) return failureAt(bytes, at + 1, maxEnd);
  if (at + 2 > maxEnd) return NOT_PLAIN;
  HEADER_OFFSETS[count++] = at + 2;
  return count;
}

/** The headers by lower-case name; undefined if one of them is not plain. */
function readHeaders(
  text: string,
  from: number,
  count: number,
): RequestHead['headers'] | undefined {
  const headers: Record<string, string> = Object.create(null);
  for (let n = 0; n < count; n += 4) {
    const name = text.slice(HEADER_OFFSETS[n] - from, HEADER_OFFSETS[n + 1] - from).toLowerCase();
    const value = text.slice(HEADER_OFFSETS[n + 2] - from, HEADER_OFFSETS[n + 3] - from);
    if (headers[name] !== undefined || UNSUPPORTED_HEADERS.has(name)) return undefined;
    if (name === 'connection' && value.toLowerCase() !== 'keep-alive') return undefined;
    headers[name] = value;
  }
  return headers.host === undefined ? undefined : headers;
}

/** The offset of the first byte outside a class. */
function endOfClass(bytes: Buffer, from: number, byteClass: number): number {
  let at = from;
  while (at < bytes.length && (BYTE_CLASSES[bytes[at]] & byteClass) !== 0) at++;
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

/** Encodes responses as Node does: the same headers in the same order. */
export class ResponseWriter {
  #second = Number.NaN;
  #idleMs = Number.NaN;
  /** Date, Connection and Keep-Alive: the same for all responses of one second. */
  #commonHeaders = '';

  /** One character per byte. `idleMs`: the idle timeout to announce; 0: none. */
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
