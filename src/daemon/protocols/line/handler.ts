/**
 * The line protocol: a tag and a newline in, three bytes out.
 *
 *     alice\n   ──▶  OK\n     serve it
 *     alice\n   ──▶  NO\n     throttle it
 *
 * Any number of questions on a connection, as many at once as one likes; answers come in their order.
 * A tag is any bytes but a newline; a carriage return before the newline is not part of it.
 */

import type { ProtocolFactory, ProtocolHandler } from '../../server/protocol-handler.ts';
import type { ResponseQueue } from '../../server/response-queue.ts';

const NEWLINE = 10;
const RETURN = 13;

const OK = Buffer.from('OK\n');
const NO = Buffer.from('NO\n');
const REPLY_BYTES = OK.length;

/** Whether one call may happen for the tag between these places. */
export type IsAllowed = (bytes: Buffer, from: number, to: number) => boolean | Promise<boolean>;

const encode = (isAllowed: boolean): Buffer => (isAllowed ? OK : NO);

/** Answers of one chunk are gathered here; a chunk is answered before the next one is heard. */
let replyBuffer = Buffer.allocUnsafe(65_536 * REPLY_BYTES);

/** Makes the line protocol. A tag of more than `maxLine` bytes ends the connection. */
export const lineProtocol =
  (isAllowed: IsAllowed, maxLine: () => number): ProtocolFactory =>
  (responses) =>
    new LineProtocolHandler(responses, isAllowed, maxLine());

class LineProtocolHandler implements ProtocolHandler {
  readonly #responses: ResponseQueue;
  readonly #isAllowed: IsAllowed;
  readonly #maxLine: number;
  /** The beginning of a line whose end has not come yet, or all that is kept for later. */
  #partial: Buffer | undefined;
  hasBacklog = false;

  constructor(responses: ResponseQueue, isAllowed: IsAllowed, maxLine: number) {
    this.#responses = responses;
    this.#isAllowed = isAllowed;
    this.#maxLine = maxLine;
  }

  onData(chunk: Buffer): boolean {
    const bytes = this.#partial ? Buffer.concat([this.#partial, chunk]) : chunk;
    let at = this.hasBacklog ? 0 : (this.#partial?.length ?? 0); // up to there somebody has looked already
    this.#partial = undefined;
    this.hasBacklog = false;
    if (replyBuffer.length < bytes.length * REPLY_BYTES) {
      replyBuffer = Buffer.allocUnsafe(bytes.length * REPLY_BYTES);
    }
    let from = 0;
    let length = 0;
    let isFine = true;
    for (; at < bytes.length; at++) {
      if (bytes[at] !== NEWLINE) continue;
      const to = at > from && bytes[at - 1] === RETURN ? at - 1 : at;
      isFine = to - from <= this.#maxLine;
      if (!isFine) break;
      const answer = this.#isAllowed(bytes, from, to);
      from = at + 1;
      if (typeof answer !== 'boolean') {
        this.#flush(length);
        length = 0;
        this.#responses.writeLater(answer.then(encode));
        if (this.#responses.isFull) {
          this.hasBacklog = from < bytes.length;
          break;
        }
        continue;
      }
      replyBuffer[length] = answer ? 0x4f : 0x4e; // O or N
      replyBuffer[length + 1] = answer ? 0x4b : 0x4f; // K or O
      replyBuffer[length + 2] = NEWLINE;
      length += REPLY_BYTES;
    }
    this.#flush(length);
    if (from < bytes.length) this.#partial = Buffer.from(bytes.subarray(from));
    if (this.hasBacklog) return true;
    // One more than the bound may be a carriage return.
    return isFine && bytes.length - from <= this.#maxLine + 1;
  }

  #flush(length: number): void {
    if (length === 0) return;
    const isOne = length === REPLY_BYTES; // the usual one, and nothing to copy for it
    this.#responses.write(
      isOne ? encode(replyBuffer[0] === 0x4f) : Buffer.from(replyBuffer.subarray(0, length)),
    );
  }
}
