/**
 * The line protocol: a tag and a newline in, three bytes out.
 *
 *     alice\n   ──▶  OK\n     serve it
 *     alice\n   ──▶  NO\n     throttle it
 *
 * Any number of questions on a connection, as many at once as one likes; answers come in their order.
 * A tag is any bytes but a newline; a carriage return before the newline is not part of it.
 */

import type { Conversation, Converse } from '../../server/protocol-handler.ts';
import type { Answers } from '../../server/response-queue.ts';

const NEWLINE = 10;
const RETURN = 13;

const OK = Buffer.from('OK\n');
const NO = Buffer.from('NO\n');
const ANSWER_BYTES = OK.length;

/** Whether one call may happen for the tag between these places. */
export type IsAllowed = (bytes: Buffer, from: number, to: number) => boolean | Promise<boolean>;

const encode = (isAllowed: boolean): Buffer => (isAllowed ? OK : NO);

/** Answers of one chunk are gathered here; a chunk is answered before the next one is heard. */
let gathered = Buffer.allocUnsafe(65_536 * ANSWER_BYTES);

/** Makes the line protocol. A tag of more than `lineMax` bytes ends the connection. */
export const lineProtocol =
  (isAllowed: IsAllowed, lineMax: () => number): Converse =>
  (answers) =>
    new LineConversation(answers, isAllowed, lineMax());

class LineConversation implements Conversation {
  readonly #answers: Answers;
  readonly #isAllowed: IsAllowed;
  readonly #lineMax: number;
  /** The beginning of a line whose end has not come yet, or all that is kept for later. */
  #begun: Buffer | undefined;
  isBehind = false;

  constructor(answers: Answers, isAllowed: IsAllowed, lineMax: number) {
    this.#answers = answers;
    this.#isAllowed = isAllowed;
    this.#lineMax = lineMax;
  }

  hear(chunk: Buffer): boolean {
    const bytes = this.#begun ? Buffer.concat([this.#begun, chunk]) : chunk;
    let at = this.isBehind ? 0 : (this.#begun?.length ?? 0); // up to there somebody has looked already
    this.#begun = undefined;
    this.isBehind = false;
    if (gathered.length < bytes.length * ANSWER_BYTES) {
      gathered = Buffer.allocUnsafe(bytes.length * ANSWER_BYTES);
    }
    let from = 0;
    let length = 0;
    let isFine = true;
    for (; at < bytes.length; at++) {
      if (bytes[at] !== NEWLINE) continue;
      const to = at > from && bytes[at - 1] === RETURN ? at - 1 : at;
      isFine = to - from <= this.#lineMax;
      if (!isFine) break;
      const answer = this.#isAllowed(bytes, from, to);
      from = at + 1;
      if (typeof answer !== 'boolean') {
        this.#give(length);
        length = 0;
        this.#answers.owe(answer.then(encode));
        if (this.#answers.isFull) {
          this.isBehind = from < bytes.length;
          break;
        }
        continue;
      }
      gathered[length] = answer ? 0x4f : 0x4e; // O or N
      gathered[length + 1] = answer ? 0x4b : 0x4f; // K or O
      gathered[length + 2] = NEWLINE;
      length += ANSWER_BYTES;
    }
    this.#give(length);
    if (from < bytes.length) this.#begun = Buffer.from(bytes.subarray(from));
    if (this.isBehind) return true;
    // One more than the bound may be a carriage return.
    return isFine && bytes.length - from <= this.#lineMax + 1;
  }

  #give(length: number): void {
    if (length === 0) return;
    const isOne = length === ANSWER_BYTES; // the usual one, and nothing to copy for it
    this.#answers.give(
      isOne ? encode(gathered[0] === 0x4f) : Buffer.from(gathered.subarray(0, length)),
    );
  }
}
