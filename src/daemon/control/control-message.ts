/**
 * Controls as texts for peers: JSON arrays of records, each of which fits into one datagram.
 *
 * A message has the time of its sender. The receiver moves the end of each record by the difference of the clocks, so a
 * control lasts as long on every daemon. When it was set stays as it is: that is its version.
 */

import type { Millis } from '../../core/clock.ts';
import { isRecord } from '../../core/options.ts';
import type { SharingRules } from './control-auth.ts';
import type { ControlRecord } from './control-record.ts';

/** Clocks that differ by less count as equal, and so do a clock and one behind a slow network: all daemons show the same end. */
const MIN_DIFFERENCE_MS: Millis = 500;

/** The records of a message. A datagram has some bytes more, for the rest of the message. */
const MAX_MESSAGE_BYTES = 1000;

interface ControlMessage {
  readonly text: string;
  /** Records that it has, and those before them that are too long for any message. */
  readonly taken: number;
}

/** Encodes records from an index on, as at most `most` messages. Leaves out records that are too long, or not for peers. */
export function messagesOf(
  records: readonly ControlRecord[],
  rules: SharingRules,
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
    const isLeftOut = sharingProblemOf(records[n], rules) !== undefined;
    const text = isLeftOut ? '' : textOf(records[n]);
    const size = Buffer.byteLength(text);
    if (!isLeftOut && bytes + size > MAX_MESSAGE_BYTES) {
      finish();
      if (messages.length === most) return messages;
    }
    taken++;
    if (isLeftOut) continue;
    batch += batch === '' ? text : `,${text}`;
    bytes += size + 1;
  }
  if (batch !== '') finish();
  return messages;
}

const textOf = (record: ControlRecord): string =>
  JSON.stringify({ ...record, by: undefined, isFromPeer: undefined });

/** Why peers do not get a record; undefined if they do. */
export function sharingProblemOf(
  record: ControlRecord,
  { operator, sharedLimits }: SharingRules,
): string | undefined {
  const { limit, by } = record;
  const id = operator()?.id;
  if (id === undefined)
    return 'peers accept controls only with the admin token, and there is none: set the same admin.token on all daemons';
  if (by !== id) return 'it was set under another admin token';
  if (limit !== undefined && !sharedLimits().has(limit))
    return `peers do not share limit ${limit}: set it on every daemon`;
  const size = Buffer.byteLength(textOf(record));
  if (size <= MAX_MESSAGE_BYTES) return undefined;
  return `it has ${size} bytes, and peers take at most ${MAX_MESSAGE_BYTES}: shorten the key, the note or the rule, or set it on every daemon`;
}

/** The records of a message for all daemons, after the time of this one. */
export const timedMessage = (records: string, now: Millis): string =>
  `[{"now":${Math.round(now)}},${records.slice(1)}`;

/** The records of such a message, their ends on the local clock. */
export function recordsOf(message: readonly unknown[], now: Millis): readonly unknown[] {
  const [first, ...rest] = message;
  const isTimed = isRecord(first) && 'now' in first;
  return isTimed ? onLocalClock(rest, first.now, now) : message;
}

/** How far the local clock is ahead of the sender's; 0 if the sender did not say its time. */
export function clockDifference(sentAt: unknown, now: Millis): Millis {
  const ms = typeof sentAt === 'number' ? Math.round(now - sentAt) : 0;
  return Number.isFinite(ms) && Math.abs(ms) >= MIN_DIFFERENCE_MS ? ms : 0;
}

/** Records of a message, their ends on the local clock. */
export function onLocalClock(
  records: readonly unknown[],
  sentAt: unknown,
  now: Millis,
): readonly unknown[] {
  const ms = clockDifference(sentAt, now);
  if (ms === 0) return records;
  const moved = (end: unknown): unknown => (typeof end === 'number' ? end + ms : end);
  return records.map((record) => {
    if (!isRecord(record)) return record;
    const { until, coversUntil, ...rest } = record;
    const covers = coversUntil === undefined ? {} : { coversUntil: moved(coversUntil) };
    return { ...rest, until: moved(until), ...covers };
  });
}
