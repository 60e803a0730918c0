/**
 * Encoding of peer messages.
 *
 *     ┌─────────┬──────┬──────┬──────┬─────────────┬───────────────────────────
 *     │ version │ kind │ from │ to   │ datagramSeq │ body, by kind
 *     └─ 1 ─────┴─ 1 ──┴─ 6 ──┴─ 6 ──┴─ 6 ─────────┴───────────────────────────
 *
 * A node id has 48 random bits, new at each start; `to` is 0 for a broadcast. `datagramSeq` is a sequence number over
 * all datagrams of a node, for the replay window (`replay-window.ts`). A key is sent as its 64-bit hash: every node of a
 * fleet hashes alike. Integers are varints (seven bits per byte), so a key with a few hits takes nine bytes.
 *
 * `decode` returns undefined for malformed input and for unknown versions.
 */

import type { Millis } from '../../core/clock.ts';
import { MAX_DATAGRAM_BYTES, Reader, Writer, writeU48 } from './bytes.ts';
import {
  BROADCAST,
  ENTRY_WIDTH,
  type Entries,
  type KeyRefillTimes,
  MAX_NACK_RANGES,
  type Message,
  type MessageKind,
  type MessageOf,
  type NodeId,
} from './messages.ts';

export const VERSION = 2;

const TO_OFFSET = 8;
const DATAGRAM_SEQ_OFFSET = 14;
const HEADER_BYTES = 20;

/** The index is the kind on the wire: the order never changes. */
const KINDS: readonly MessageKind[] = [
  'hello',
  'hello-ack',
  'report',
  'heartbeat',
  'nack',
  'evicted',
  'state-request',
  'state',
  'levels-request',
  'levels',
];

/** Bytes before a page of keys at most: nonce, limit, two cursors, buckets. */
const PAGE_HEADER_BYTES = 6 + 4 + 8 + 8 + 1;

/** Bytes of one entry at most: limit, count, hash, amount. */
const MAX_ENTRY_BYTES = 4 + 1 + 8 + 9;

export function encode(message: Message): Uint8Array {
  const writer = new Writer();
  writer.byte(VERSION);
  writer.byte(KINDS.indexOf(message.kind));
  writer.u48(message.from);
  writer.u48(message.to);
  writer.u48(message.datagramSeq);
  switch (message.kind) {
    case 'hello':
      writer.u48(message.nonce);
      writer.varint(message.ageMs);
      break;
    case 'hello-ack':
      writer.u48(message.nonce);
      writer.varint(message.seq);
      writer.varint(message.first);
      writer.varint(message.ageMs);
      writer.text(message.name);
      break;
    case 'report':
      writer.u16(message.agoMs);
      writer.varint(message.seq);
      writeEntries(writer, message.entries, 0);
      break;
    case 'heartbeat':
    case 'evicted':
      writer.varint(message.seq);
      break;
    case 'nack':
      writer.byte(message.ranges.length / 2);
      for (const number of message.ranges) writer.varint(number);
      break;
    case 'state-request':
      writer.u48(message.nonce);
      writer.u32(message.limit);
      writer.varint(message.cursor);
      break;
    case 'state':
      writer.u48(message.nonce);
      writer.u32(message.limit);
      writer.varint(message.cursor);
      writer.varint(message.next);
      writer.byte(message.buckets);
      writeRefillTimes(writer, message.refillTimes, message.buckets);
      break;
    case 'levels-request':
      writer.u48(message.nonce);
      writeEntries(writer, message.entries, 0);
      break;
    case 'levels':
      writer.u48(message.nonce);
      writer.varint(message.seq);
      writer.varint(message.receivedSeq);
      writeEntries(writer, message.entries, 0);
      break;
  }
  return writer.finish();
}

/** Older reports are sent with this age: they count for a little more than they should, never for less. */
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
  writeU48(copyView, DATAGRAM_SEQ_OFFSET, datagramSeq);
  copyView.setUint16(HEADER_BYTES, Math.min(Math.floor(agoMs), MAX_AGO_MS));
  return copy;
}

/**
 * How many entries, from index `from` on, fit into one datagram. Entries of one limit are adjacent, so the limit
 * id is written once for all of them.
 */
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

/** How many keys fit into one datagram, whatever their state. */
export const keysPerPage = (buckets: number): number =>
  Math.floor((MAX_DATAGRAM_BYTES - HEADER_BYTES - PAGE_HEADER_BYTES) / (8 + 9 * buckets));

function amountBytes(value: number): number {
  if (!Number.isSafeInteger(value)) return 9;
  let bytes = 1;
  for (let rest = value; rest >= 128; rest = Math.floor(rest / 128)) bytes++;
  return bytes;
}

function writeEntries(writer: Writer, entries: Entries, from: number): void {
  for (let at = from; at < entries.length; ) {
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

function writeRefillTimes(writer: Writer, refillTimes: KeyRefillTimes, buckets: number): void {
  for (let at = 0; at < refillTimes.length; ) {
    writer.u32(refillTimes[at++]);
    writer.u32(refillTimes[at++]);
    for (let n = 0; n < buckets; n++) writer.amount(refillTimes[at++]);
  }
}

/** Undefined for malformed input. */
export function decode(bytes: Uint8Array): Message | undefined {
  const reader = new Reader(bytes);
  if (reader.byte() !== VERSION) return undefined;
  const kind = KINDS[reader.byte()];
  const from = reader.u48();
  const to = reader.u48();
  const datagramSeq = reader.u48();
  if (kind === undefined || !reader.isValid || from === BROADCAST) return undefined;
  const message = { from, to, datagramSeq, ...decodeBody(kind, reader) } as Message;
  return reader.isValid && reader.isAtEnd ? message : undefined;
}

function decodeBody(kind: MessageKind, reader: Reader): object {
  switch (kind) {
    case 'hello':
      return { kind, nonce: reader.u48(), ageMs: reader.varint() };
    case 'hello-ack':
      return {
        kind,
        nonce: reader.u48(),
        seq: reader.varint(),
        first: reader.varint(),
        ageMs: reader.varint(),
        name: reader.text(),
      };
    case 'report':
      return {
        kind,
        agoMs: reader.u16(),
        seq: reader.varint(),
        entries: readEntries(reader),
      };
    case 'heartbeat':
    case 'evicted':
      return { kind, seq: reader.varint() };
    case 'nack':
      return { kind, ranges: readRanges(reader) };
    case 'state-request':
      return { kind, nonce: reader.u48(), limit: reader.u32(), cursor: reader.varint() };
    case 'state':
      return {
        kind,
        nonce: reader.u48(),
        limit: reader.u32(),
        cursor: reader.varint(),
        next: reader.varint(),
        ...readRefillTimes(reader),
      };
    case 'levels-request':
      return { kind, nonce: reader.u48(), entries: readEntries(reader) };
    case 'levels':
      return {
        kind,
        nonce: reader.u48(),
        seq: reader.varint(),
        receivedSeq: reader.varint(),
        entries: readEntries(reader),
      };
  }
}

function readEntries(reader: Reader): Entries {
  const entries: number[] = [];
  while (reader.isValid && !reader.isAtEnd) {
    const limit = reader.u32();
    const count = reader.varint();
    for (let n = 0; n < count && reader.isValid; n++) {
      entries.push(limit, reader.u32() | 0, reader.u32() | 0, reader.hits());
    }
  }
  return entries;
}

function readRefillTimes(reader: Reader): Pick<MessageOf<'state'>, 'buckets' | 'refillTimes'> {
  const buckets = reader.byte();
  const refillTimes: number[] = [];
  while (reader.isValid && !reader.isAtEnd) {
    refillTimes.push(reader.u32() | 0, reader.u32() | 0);
    for (let n = 0; n < buckets && reader.isValid; n++) refillTimes.push(reader.amount());
  }
  return { buckets, refillTimes };
}

function readRanges(reader: Reader): readonly number[] {
  const count = reader.byte();
  if (count > MAX_NACK_RANGES) reader.isValid = false;
  const ranges: number[] = [];
  for (let n = 0; n < count * 2 && reader.isValid; n++) ranges.push(reader.varint());
  return ranges;
}
