/**
 * Encoding of peer messages.
 *
 *     ┌─────────┬──────┬──────┬──────┬────────┬─────────────┬───────────────────────────
 *     │ version │ kind │ from │ to   │ newest │ datagramSeq │ body, by kind
 *     └─ 1 ─────┴─ 1 ──┴─ 6 ──┴─ 6 ──┴─ 1 ────┴─ 5 ─────────┴───────────────────────────
 *
 * `newest` is the newest version that the sender speaks (`wire-versions.ts`); 0 stands for the version of the datagram.
 * A node id has 48 random bits, new at each start; `to` is 0 for a broadcast. `datagramSeq` is a sequence number over
 * all datagrams of a node, for the replay window (`replay-window.ts`). A key is sent as its 64-bit hash: all nodes hash
 * with one seed, which depends on the fleet's key. Integers are varints (7 bits per byte): a key with few hits takes 9
 * bytes.
 *
 * `decode` returns undefined for malformed input and for versions that this node does not speak.
 */

import type { Millis } from '../../core/clock.ts';
import { MAX_DATAGRAM_BYTES, Reader, Writer, writeU48 } from './bytes.ts';
import {
  type IncludedReports,
  MAX_MISSING_RANGES,
  MAX_ORIGINS,
  type ReportSet,
} from './included-reports.ts';
import {
  BROADCAST,
  ENTRY_WIDTH,
  type Entries,
  type Envelope,
  FIELD_SINCE,
  type KeyRefillTimes,
  MAX_NACK_RANGES,
  MESSAGE_FIELDS,
  type Message,
  type MessageFields,
  type MessageKind,
  type NodeId,
  type OtherVersion,
  type OutgoingMessage,
} from './messages.ts';
import { canRead, WIRE_VERSIONS, type WireVersions } from './wire-versions.ts';

const TO_OFFSET = 8;
const NEWEST_OFFSET = 14;
const HEADER_BYTES = 20;

/** The byte above a sequence number is the newest version. A node sends fewer datagrams: 10,000/s for 3 years. */
const SEQ_LIMIT = 2 ** 40;

const KINDS = Object.keys(MESSAGE_FIELDS) as MessageKind[];

/** The most bytes before a page of keys: nonce, limit, two cursors, buckets. */
const PAGE_HEADER_BYTES = 6 + 4 + 8 + 8 + 1;

/** The most bytes of one entry: limit, count, hash, amount. */
const MAX_ENTRY_BYTES = 4 + 1 + 8 + 9;

type Fields = readonly (keyof MessageFields)[];

const firstVersionOf = (field: keyof MessageFields): number =>
  field in FIELD_SINCE ? FIELD_SINCE[field as keyof typeof FIELD_SINCE] : 0;

/** Fields by version, which is one byte. */
const fieldsByVersion: Readonly<Record<MessageKind, Fields>>[] = [];

function fieldsOf(kind: MessageKind, version: number): Fields {
  fieldsByVersion[version] ??= fieldsInVersion(version);
  return fieldsByVersion[version][kind];
}

function fieldsInVersion(version: number): Record<MessageKind, Fields> {
  const fields = {} as Record<MessageKind, Fields>;
  for (const kind of KINDS)
    fields[kind] = MESSAGE_FIELDS[kind].filter(
      (field: keyof MessageFields) => version >= firstVersionOf(field),
    );
  return fields;
}

/** `newest` is the newest version that the sender speaks. */
export function encode(
  message: OutgoingMessage,
  version = WIRE_VERSIONS.newest,
  newest = version,
): Uint8Array {
  const writer = new Writer();
  writer.byte(version);
  writer.byte(KINDS.indexOf(message.kind));
  writer.u48(message.from);
  writer.u48(message.to);
  writer.u48(newest * SEQ_LIMIT + message.datagramSeq);
  for (const field of fieldsOf(message.kind, version)) {
    FIELD_CODECS[field].write(writer, message[field as never], message);
  }
  return writer.finish();
}

/** Older reports are sent with this age: they count slightly too much, never too little. */
const MAX_AGO_MS = 2 ** 16 - 1;

/** A copy of a report for one node, with its age and a new datagram sequence number. */
export function retransmitCopyOf(
  report: Uint8Array,
  to: NodeId,
  datagramSeq: number,
  agoMs: Millis,
): Uint8Array {
  const copy = report.slice();
  const copyView = new DataView(copy.buffer);
  writeU48(copyView, TO_OFFSET, to);
  writeU48(copyView, NEWEST_OFFSET, copy[NEWEST_OFFSET] * SEQ_LIMIT + datagramSeq);
  copyView.setUint16(HEADER_BYTES, Math.min(Math.floor(agoMs), MAX_AGO_MS));
  return copy;
}

/** The number of entries from index `from` that fit into one datagram. Adjacent entries of one limit share its id. */
export function entriesThatFit(entries: Entries, from: number): number {
  let freeBytes = MAX_DATAGRAM_BYTES - HEADER_BYTES - 3 * 8 - MAX_ENTRY_BYTES;
  let at = from;
  let limit = -1;
  while (at < entries.length) {
    if (entries[at] !== limit) freeBytes -= 6;
    limit = entries[at];
    freeBytes -= 8 + amountBytes(entries[at + 3]);
    if (freeBytes < 0) break;
    at += ENTRY_WIDTH;
  }
  return Math.max(1, (at - from) / ENTRY_WIDTH);
}

const PAGE_BYTES = MAX_DATAGRAM_BYTES - HEADER_BYTES - PAGE_HEADER_BYTES;

const maxKeyBytes = (buckets: number): number => 8 + 9 * buckets;

/** The number of keys in any state that fit into one datagram, besides a list of included reports. */
export const keysPerPage = (buckets: number, included?: IncludedReports): number =>
  Math.floor((PAGE_BYTES - (included ? includedBytes(included) : 0)) / maxKeyBytes(buckets));

/** The first sets that fit into a page: at most half of it, and always besides at least one key. */
export function setsThatFit(sets: readonly ReportSet[], buckets: number): IncludedReports {
  let freeBytes =
    Math.min(PAGE_BYTES / 2, PAGE_BYTES - maxKeyBytes(buckets)) - INCLUDED_HEADER_BYTES;
  let count = 0;
  for (; count < Math.min(sets.length, MAX_ORIGINS); count++) {
    freeBytes -= setBytes(sets[count]);
    if (freeBytes < 0) break;
  }
  return { isComplete: count === sets.length, sets: sets.slice(0, count) };
}

/** Whether all origins are listed, and the number of listed origins. */
const INCLUDED_HEADER_BYTES = 2;

const includedBytes = ({ sets }: IncludedReports): number =>
  sets.reduce((sum, set) => sum + setBytes(set), INCLUDED_HEADER_BYTES);

const setBytes = ({ highest, missing }: ReportSet): number =>
  missing.reduce((sum, number) => sum + varintBytes(number), 6 + varintBytes(highest) + 1);

const amountBytes = (value: number): number =>
  Number.isSafeInteger(value) ? varintBytes(value) : 9;

function varintBytes(value: number): number {
  let bytes = 1;
  for (let rest = value; rest >= 128; rest = Math.floor(rest / 128)) bytes++;
  return bytes;
}

export function decode(bytes: Uint8Array, versions = WIRE_VERSIONS): Message | undefined {
  const reader = new Reader(bytes);
  const header = readHeader(reader);
  const { kind } = header;
  if (kind === undefined || !reader.isValid || header.from === BROADCAST) return undefined;
  if (!canRead(versions, header.version)) return undefined;
  const message = header as object as Record<string, unknown>;
  for (const field of fieldsOf(kind, header.version)) {
    message[field] = FIELD_CODECS[field].read(reader, message as object as PageFields);
  }
  return reader.isValid && reader.isAtEnd ? (message as unknown as Message) : undefined;
}

/** The header of a datagram of another version; undefined for any other datagram. */
export function otherVersionOf(
  bytes: Uint8Array,
  versions: WireVersions,
): OtherVersion | undefined {
  if (canRead(versions, bytes[0])) return undefined;
  const reader = new Reader(bytes);
  const { kind, ...header } = readHeader(reader);
  if (!reader.isValid || header.from === BROADCAST) return undefined;
  return { ...header, isHello: kind === 'hello' };
}

function readHeader(reader: Reader): Envelope & { readonly kind: MessageKind | undefined } {
  const version = reader.byte();
  const kind = KINDS[reader.byte()];
  const from = reader.u48();
  const to = reader.u48();
  const seq = reader.u48();
  const newest = Math.max(version, Math.floor(seq / SEQ_LIMIT));
  return { from, to, datagramSeq: seq % SEQ_LIMIT, version, newest, kind };
}

/** Fields of a page that must be read before its keys. */
type PageFields = Pick<MessageFields, 'buckets'>;

interface FieldCodec<T> {
  write(writer: Writer, value: T, message: object): void;
  read(reader: Reader, message: PageFields): T;
}

const numberCodec = (type: 'byte' | 'u16' | 'u32' | 'u48' | 'varint'): FieldCodec<number> => ({
  write: (writer, value) => writer[type](value),
  read: (reader) => reader[type](),
});

const FIELD_CODECS: { readonly [F in keyof MessageFields]: FieldCodec<MessageFields[F]> } = {
  nonce: numberCodec('u48'),
  ageMs: numberCodec('varint'),
  seq: numberCodec('varint'),
  first: numberCodec('varint'),
  receivedSeq: numberCodec('varint'),
  agoMs: numberCodec('u16'),
  limit: numberCodec('u32'),
  cursor: numberCodec('varint'),
  next: numberCodec('varint'),
  buckets: numberCodec('byte'),
  name: { write: (writer, name) => writer.text(name), read: (reader) => reader.text() },
  text: { write: (writer, text) => writer.longText(text), read: (reader) => reader.longText() },
  entries: { write: writeEntries, read: readEntries },
  ranges: {
    write: writeRanges,
    read: (reader) => readRanges(reader, MAX_NACK_RANGES),
  },
  included: { write: writeIncluded, read: readIncluded },
  refillTimes: {
    write: (writer, times, message) =>
      writeRefillTimes(writer, times, (message as PageFields).buckets),
    read: (reader, { buckets }) => readRefillTimes(reader, buckets),
  },
};

function writeEntries(writer: Writer, entries: Entries): void {
  for (let at = 0; at < entries.length; ) {
    let end = at;
    while (end < entries.length && entries[end] === entries[at]) end += ENTRY_WIDTH;
    writer.u32(entries[at]);
    writer.varint((end - at) / ENTRY_WIDTH);
    for (; at < end; at += ENTRY_WIDTH) {
      writer.u32(entries[at + 1]);
      writer.u32(entries[at + 2]);
      writer.hits(entries[at + 3]);
    }
  }
}

function readEntries(reader: Reader): Entries {
  const entries: number[] = [];
  while (reader.isValid && !reader.isAtEnd) {
    const limit = reader.u32();
    const count = reader.varint();
    for (let n = 0; n < count && reader.isValid; n++) {
      entries.push(limit, ...readHash(reader), reader.hits());
    }
  }
  return entries;
}

/** Reads a hash. All zeros marks an empty slot of a key table: such a key would be counted and never found. */
function readHash(reader: Reader): [low: number, high: number] {
  const low = reader.u32() | 0;
  const high = reader.u32() | 0;
  if (low === 0 && high === 0) reader.isValid = false;
  return [low, high];
}

function writeRefillTimes(writer: Writer, refillTimes: KeyRefillTimes, buckets: number): void {
  for (let at = 0; at < refillTimes.length; ) {
    writer.u32(refillTimes[at++]);
    writer.u32(refillTimes[at++]);
    for (let n = 0; n < buckets; n++) writer.amount(refillTimes[at++]);
  }
}

function readRefillTimes(reader: Reader, buckets: number): KeyRefillTimes {
  const refillTimes: number[] = [];
  while (reader.isValid && !reader.isAtEnd) {
    refillTimes.push(...readHash(reader));
    for (let n = 0; n < buckets && reader.isValid; n++) refillTimes.push(reader.amount());
  }
  return refillTimes;
}

function writeRanges(writer: Writer, ranges: readonly number[]): void {
  writer.byte(ranges.length / 2);
  for (const number of ranges) writer.varint(number);
}

function writeIncluded(writer: Writer, included: IncludedReports | undefined): void {
  const { isComplete, sets } = included ?? { isComplete: false, sets: [] };
  writer.byte(isComplete ? 1 : 0);
  writer.byte(sets.length);
  for (const { origin, highest, missing } of sets) {
    writer.u48(origin);
    writer.varint(highest);
    writeRanges(writer, missing);
  }
}

function readIncluded(reader: Reader): IncludedReports {
  const isComplete = reader.byte();
  const count = reader.byte();
  if (isComplete > 1 || count > MAX_ORIGINS) reader.isValid = false;
  const sets: ReportSet[] = [];
  for (let n = 0; n < count && reader.isValid; n++) {
    const [origin, highest] = [reader.u48(), reader.varint()];
    sets.push({ origin, highest, missing: readRanges(reader, MAX_MISSING_RANGES) });
  }
  return { isComplete: isComplete === 1, sets };
}

function readRanges(reader: Reader, max: number): readonly number[] {
  const count = reader.byte();
  if (count > max) reader.isValid = false;
  const ranges: number[] = [];
  for (let n = 0; n < count * 2 && reader.isValid; n++) ranges.push(reader.varint());
  return ranges;
}
