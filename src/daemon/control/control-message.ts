/** Controls as texts for peers: JSON arrays of records, each of which fits into one datagram. */

import type { ControlRecord } from './control-record.ts';

/** The records of a message. A datagram has some bytes more, for the rest of the message. */
const MAX_MESSAGE_BYTES = 1000;

interface ControlMessage {
  readonly text: string;
  /** Records that it has, and those before them that are too long for any message. */
  readonly taken: number;
}

/** Records from an index on as messages, at most so many. Records that are too long are left out. */
export function messagesOf(
  records: readonly ControlRecord[],
  { from = 0, most = Infinity } = {},
): ControlMessage[] {
  const messages: ControlMessage[] = [];
  let batch = '';
  let bytes = 0;
  let taken = 0;
  const finish = (): void => {
    messages.push({ text: `[${batch}]`, taken });
    batch = '';
    bytes = 0;
    taken = 0;
  };
  for (let n = from; n < records.length && messages.length < most; n++) {
    const text = JSON.stringify(records[n]);
    const size = Buffer.byteLength(text);
    const isLong = size > MAX_MESSAGE_BYTES;
    if (!isLong && bytes + size > MAX_MESSAGE_BYTES) {
      finish();
      if (messages.length === most) return messages;
    }
    taken++;
    if (isLong) continue;
    batch += batch === '' ? text : `,${text}`;
    bytes += size + 1;
  }
  if (batch !== '') finish();
  return messages;
}

/** Why peers do not get a record; undefined if they do. */
export function sharingProblemOf(record: ControlRecord): string | undefined {
  const size = Buffer.byteLength(JSON.stringify(record));
  if (size <= MAX_MESSAGE_BYTES) return undefined;
  return `it has ${size} bytes, and peers take at most ${MAX_MESSAGE_BYTES}: shorten the key, the note or the rule, or set it on every daemon`;
}
