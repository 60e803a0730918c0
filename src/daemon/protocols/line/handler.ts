/**
 * The line protocol (DThrottle): a key and a newline in, three bytes out.
 *
 *     alice\n   ──▶  OK\n     allowed
 *     alice\n   ──▶  NO\n     denied
 *
 * Requests may be pipelined without bound; responses keep their order. A key is any bytes except a newline;
 * a carriage return before the newline is not part of it. A connection that begins like an HTTP request or a TLS
 * handshake is closed: a web page may have made a browser send it.
 */

import type { ProtocolFactory, ProtocolHandler } from '../../server/protocol-handler.ts';
import { copyOf } from '../../server/read-buffer.ts';
import type { ResponseQueue } from '../../server/response-queue.ts';
import { BYTES_PER_LOOK, ENDLESS_SLICE, type Slice } from '../../server/turns.ts';

const NEWLINE = 10;
const RETURN = 13;

const OK = Buffer.from('OK\n');
const NO = Buffer.from('NO\n');
const REPLY_BYTES = OK.length;

const HTTP_REQUEST = /^[A-Z]{3,16} \S+ HTTP\/\d\.\d\r?$/;

/** How a TLS handshake begins. A server that a page chose may have put lines into the session ticket that it carries. */
const TLS_HANDSHAKE = Buffer.from([0x16, 0x03]);

/** Checks the key between two offsets, cost 1. */
export type IsAllowed = (bytes: Buffer, from: number, to: number) => boolean | Promise<boolean>;

const encode = (isAllowed: boolean): Buffer => (isAllowed ? OK : NO);

/** Collects the responses of one chunk. Shared: a chunk is processed before the next is read. */
let replyBuffer = Buffer.allocUnsafe(65_536 * REPLY_BYTES);

/** The memory of the last chunk, usually that of the shared read buffer. */
let lastWords: DataView = new DataView(replyBuffer.buffer);

function wordsOf({ buffer }: Buffer): DataView {
  if (lastWords.buffer !== buffer) lastWords = new DataView(buffer);
  return lastWords;
}

/** The first newline; `end` if there is none. Four bytes at once: this loop was a quarter of a check. */
function indexOfNewline(words: DataView, from: number, end: number): number {
  let at = from;
  for (; at + 4 <= end; at += 4) {
    const zeros = words.getInt32(at, true) ^ 0x0a0a0a0a; // where a newline is
    const found = (zeros - 0x01010101) & ~zeros & 0x80808080; // the lowest bit is that of the first
    if (found !== 0) return at + ((31 - Math.clz32(found & -found)) >>> 3);
  }
  while (at < end && words.getUint8(at) !== NEWLINE) at++;
  return at;
}

/** A key of more than `maxLine` bytes ends the connection. */
export const lineProtocol =
  (isAllowed: IsAllowed, maxLine: () => number): ProtocolFactory =>
  (responses, slice = ENDLESS_SLICE) =>
    new LineProtocolHandler(responses, slice, isAllowed, maxLine());

class LineProtocolHandler implements ProtocolHandler {
  readonly #responses: ResponseQueue;
  readonly #slice: Slice;
  readonly #isAllowed: IsAllowed;
  readonly #maxLine: number;
  /** An incomplete line, or the backlog. */
  #partial: Buffer | undefined;
  hasBacklog = false;
  #hasFirstLine = false;
  #lastIncomplete = 0;

  constructor(responses: ResponseQueue, slice: Slice, isAllowed: IsAllowed, maxLine: number) {
    this.#responses = responses;
    this.#slice = slice;
    this.#isAllowed = isAllowed;
    this.#maxLine = maxLine;
  }

  get incompleteRequest(): number {
    return this.#partial && !this.hasBacklog ? this.#lastIncomplete : 0;
  }

  get heldBytes(): number {
    return this.#partial?.length ?? 0;
  }

  /** The protocol has no reply for errors. */
  refuse(): void {
    this.#partial = undefined;
    this.hasBacklog = false;
  }

  onData(chunk: Buffer): boolean {
    const bytes = this.#joinPartial(chunk);
    if (!this.#hasFirstLine && this.#isFromBrowser(bytes)) return false;
    let at = this.hasBacklog ? 0 : (this.#partial?.length ?? 0); // the incomplete line has no newline
    this.#partial = undefined;
    this.hasBacklog = false;
    if (replyBuffer.length < bytes.length * REPLY_BYTES) {
      replyBuffer = Buffer.allocUnsafe(bytes.length * REPLY_BYTES);
    }
    let from = 0;
    let length = 0;
    let lookAt = BYTES_PER_LOOK;
    let isValid = true;
    const isAllowed = this.#isAllowed;
    const replies = replyBuffer;
    const words = wordsOf(bytes);
    const offset = bytes.byteOffset;
    const end = bytes.length;
    for (; ; at++) {
      at = indexOfNewline(words, offset + at, offset + end) - offset;
      if (at === end) break;
      const to = at > from && bytes[at - 1] === RETURN ? at - 1 : at;
      isValid = to - from <= this.#maxLine;
      if (!isValid) break;
      const result = isAllowed(bytes, from, to);
      from = at + 1;
      if (typeof result !== 'boolean') {
        this.#flush(length);
        length = 0;
        this.#responses.writeLater(result.then(encode));
        if (this.#responses.isFull) {
          this.hasBacklog = from < bytes.length;
          break;
        }
        continue;
      }
      replies[length] = result ? 0x4f : 0x4e; // O or N
      replies[length + 1] = result ? 0x4b : 0x4f; // K or O
      replies[length + 2] = NEWLINE;
      length += REPLY_BYTES;
      if (from < lookAt) continue;
      lookAt = from + BYTES_PER_LOOK;
      if (this.#slice.isOver && from < bytes.length) {
        this.hasBacklog = true;
        break;
      }
    }
    this.#flush(length);
    if (from < bytes.length) {
      const rest = bytes.subarray(from);
      this.#partial = this.hasBacklog && bytes !== chunk ? rest : copyOf(rest);
      if (from > 0 || bytes === chunk) this.#lastIncomplete++;
    }
    if (this.hasBacklog) return true;
    // One byte beyond the bound may be a carriage return.
    return isValid && bytes.length - from <= this.#maxLine + 1;
  }

  /** True if the first line is that of an HTTP request, or a TLS handshake. */
  #isFromBrowser(bytes: Buffer): boolean {
    if (bytes.length > 1 && bytes[0] === TLS_HANDSHAKE[0] && bytes[1] === TLS_HANDSHAKE[1])
      return true;
    const end = bytes.indexOf(NEWLINE);
    this.#hasFirstLine = end >= 0;
    return end >= 0 && end <= this.#maxLine && HTTP_REQUEST.test(bytes.toString('latin1', 0, end));
  }

  #joinPartial(chunk: Buffer): Buffer {
    if (!this.#partial) return chunk;
    return chunk.length === 0 ? this.#partial : Buffer.concat([this.#partial, chunk]);
  }

  #flush(length: number): void {
    if (length === 0) return;
    const isSingle = length === REPLY_BYTES; // the usual case: a constant, no copy
    this.#responses.write(
      isSingle ? encode(replyBuffer[0] === 0x4f) : Buffer.from(replyBuffer.subarray(0, length)),
    );
  }
}
