/**
 * The messages of peers as bytes.
 *
 *     ┌─────────┬──────┬──────┬──────┬───────┬───────────────────────────────
 *     │ version │ kind │ from │ to   │ count │ what it says, by its kind
 *     └─ 1 ─────┴─ 1 ──┴─ 6 ──┴─ 6 ──┴─ 6 ───┴───────────────────────────────
 *
 * A node's name in the fleet is 48 bits, made anew each time it starts; `to` is 0 for everybody. `count` is one
 * more in each datagram that a node sends, to whomever: nobody counts one twice (`replay-window.ts`). A key is
 * its 64-bit hash: all of a fleet hash alike, so nobody has to send it as text. Numbers are as short as
 * they are small (seven bits a byte), so that a key with a few hits takes nine bytes.
 *
 * Whatever cannot be understood is not: `decode` gives undefined, also for a version yet to come.
 */

import type { Millis } from '../../core/clock.ts';
import { DATAGRAM_BYTES_MAX, Reader, Writer, writeId } from './bytes.ts';
import {
  ALL,
  ENTRY,
  type Entries,
  type Kind,
  type Message,
  type MessageOf,
  type NodeId,
  type Standings,
} from './messages.ts';

export const VERSION = 2;

const TO_AT = 8;
const COUNT_AT = 14;
const HEADER_BYTES = 20;

/** In the order of their numbers on the wire, which never changes. */
const KINDS: readonly Kind[] = [
  'hello',
  'welcome',
  'report',
  'beat',
  'missing',
  'gone',
  'ask-state',
  'state',
  'ask-levels',
  'levels',
];

const RANGES_MAX = 64;

/** The most bytes that come before a page of keys: nonce, limit, two cursors, how many buckets. */
const PAGE_BYTES = 6 + 4 + 8 + 8 + 1;

/** The most bytes one entry can take: a limit, how many of it, a hash, an amount. */
const ENTRY_BYTES_MAX = 4 + 1 + 8 + 9;

export function encode(message: Message): Uint8Array {
  const writer = new Writer();
  writer.byte(VERSION);
  writer.byte(KINDS.indexOf(message.kind));
  writer.id(message.from);
  writer.id(message.to);
  writer.id(message.count);
  switch (message.kind) {
    case 'hello':
      writer.id(message.nonce);
      writer.whole(message.ageMs);
      break;
    case 'welcome':
      writer.id(message.nonce);
      writer.whole(message.seq);
      writer.whole(message.first);
      writer.whole(message.ageMs);
      writer.text(message.name);
      break;
    case 'report':
      writer.u16(message.agoMs);
      writer.whole(message.seq);
      writeEntries(writer, message.entries, 0);
      break;
    case 'beat':
    case 'gone':
      writer.whole(message.seq);
      break;
    case 'missing':
      writer.byte(message.ranges.length / 2);
      for (const number of message.ranges) writer.whole(number);
      break;
    case 'ask-state':
      writer.id(message.nonce);
      writer.u32(message.limit);
      writer.whole(message.cursor);
      break;
    case 'state':
      writer.id(message.nonce);
      writer.u32(message.limit);
      writer.whole(message.cursor);
      writer.whole(message.next);
      writer.byte(message.buckets);
      writeStandings(writer, message.standings, message.buckets);
      break;
    case 'ask-levels':
      writer.id(message.nonce);
      writeEntries(writer, message.entries, 0);
      break;
    case 'levels':
      writer.id(message.nonce);
      writer.whole(message.seq);
      writer.whole(message.heard);
      writeEntries(writer, message.entries, 0);
      break;
  }
  return writer.done();
}

/** What is longer ago is not told as such: a report counts the more, the younger it is. */
const AGO_MS_MAX = 2 ** 16 - 1;

/** A report once more, so long after it was made, for one node alone and in a datagram of its own. */
export function again(report: Uint8Array, to: NodeId, count: number, agoMs: Millis): Uint8Array {
  const copy = report.slice();
  const copyView = new DataView(copy.buffer);
  writeId(copyView, TO_AT, to);
  writeId(copyView, COUNT_AT, count);
  copyView.setUint16(HEADER_BYTES, Math.min(Math.floor(agoMs), AGO_MS_MAX));
  return copy;
}

/**
 * How many of these entries, from `from` on, fit into one datagram. Entries of one limit stand together,
 * so a limit is named once for all of them.
 */
export function fitting(entries: Entries, from: number): number {
  let room = DATAGRAM_BYTES_MAX - HEADER_BYTES - 3 * 8 - ENTRY_BYTES_MAX;
  let at = from;
  let limit = -1;
  while (at < entries.length) {
    if (entries[at] !== limit) room -= 6;
    limit = entries[at];
    room -= 8 + amountBytes(entries[at + 3]);
    if (room < 0) break;
    at += ENTRY;
  }
  return Math.max(1, (at - from) / ENTRY);
}

/** How many keys of so many buckets each fit into one datagram, however they stand. */
export const keysPerPage = (buckets: number): number =>
  Math.floor((DATAGRAM_BYTES_MAX - HEADER_BYTES - PAGE_BYTES) / (8 + 9 * buckets));

function amountBytes(value: number): number {
  if (!Number.isSafeInteger(value)) return 9;
  let bytes = 1;
  for (let rest = value; rest >= 128; rest = Math.floor(rest / 128)) bytes++;
  return bytes;
}

function writeEntries(writer: Writer, entries: Entries, from: number): void {
  for (let at = from; at < entries.length; ) {
    let end = at;
    while (end < entries.length && entries[end] === entries[at]) end += ENTRY;
    writer.u32(entries[at]);
    writer.whole((end - at) / ENTRY);
    for (; at < end; at += ENTRY) {
      writer.u32(entries[at + 1]);
      writer.u32(entries[at + 2]);
      writer.hits(entries[at + 3]);
    }
  }
}

function writeStandings(writer: Writer, standings: Standings, buckets: number): void {
  for (let at = 0; at < standings.length; ) {
    writer.u32(standings[at++]);
    writer.u32(standings[at++]);
    for (let n = 0; n < buckets; n++) writer.amount(standings[at++]);
  }
}

/** What was said; undefined if it cannot be understood. */
export function decode(bytes: Uint8Array): Message | undefined {
  const reader = new Reader(bytes);
  if (reader.byte() !== VERSION) return undefined;
  const kind = KINDS[reader.byte()];
  const from = reader.id();
  const to = reader.id();
  const count = reader.id();
  if (kind === undefined || !reader.isFine || from === ALL) return undefined;
  const message = { from, to, count, ...bodyOf(kind, reader) } as Message;
  return reader.isFine && reader.isAtEnd ? message : undefined;
}

function bodyOf(kind: Kind, reader: Reader): object {
  switch (kind) {
    case 'hello':
      return { kind, nonce: reader.id(), ageMs: reader.whole() };
    case 'welcome':
      return {
        kind,
        nonce: reader.id(),
        seq: reader.whole(),
        first: reader.whole(),
        ageMs: reader.whole(),
        name: reader.text(),
      };
    case 'report':
      return {
        kind,
        agoMs: reader.u16(),
        seq: reader.whole(),
        entries: readEntries(reader),
      };
    case 'beat':
    case 'gone':
      return { kind, seq: reader.whole() };
    case 'missing':
      return { kind, ranges: readRanges(reader) };
    case 'ask-state':
      return { kind, nonce: reader.id(), limit: reader.u32(), cursor: reader.whole() };
    case 'state':
      return {
        kind,
        nonce: reader.id(),
        limit: reader.u32(),
        cursor: reader.whole(),
        next: reader.whole(),
        ...readStandings(reader),
      };
    case 'ask-levels':
      return { kind, nonce: reader.id(), entries: readEntries(reader) };
    case 'levels':
      return {
        kind,
        nonce: reader.id(),
        seq: reader.whole(),
        heard: reader.whole(),
        entries: readEntries(reader),
      };
  }
}

function readEntries(reader: Reader): Entries {
  const entries: number[] = [];
  while (reader.isFine && !reader.isAtEnd) {
    const limit = reader.u32();
    const count = reader.whole();
    for (let n = 0; n < count && reader.isFine; n++) {
      entries.push(limit, reader.u32() | 0, reader.u32() | 0, reader.hits());
    }
  }
  return entries;
}

function readStandings(reader: Reader): Pick<MessageOf<'state'>, 'buckets' | 'standings'> {
  const buckets = reader.byte();
  const standings: number[] = [];
  while (reader.isFine && !reader.isAtEnd) {
    standings.push(reader.u32() | 0, reader.u32() | 0);
    for (let n = 0; n < buckets && reader.isFine; n++) standings.push(reader.amount());
  }
  return { buckets, standings };
}

function readRanges(reader: Reader): readonly number[] {
  const count = reader.byte();
  if (count > RANGES_MAX) reader.isFine = false;
  const ranges: number[] = [];
  for (let n = 0; n < count * 2 && reader.isFine; n++) ranges.push(reader.whole());
  return ranges;
}
