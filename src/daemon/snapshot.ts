/**
 * A snapshot: what a daemon knows of its keys, laid down for its successor, so that a restart hands
 * out no fresh bursts.
 *
 *     sluice snapshot 1 ⏎
 *     {"savedAt":…,"seed":[…],"parts":[{"name":…,"fingerprint":…,"entries":n,"freshAt":m},…]} ⏎
 *     n + m numbers of the first part, of the second, …      (64-bit floats, little endian)
 *     CRC-32 of everything before                            (4 bytes)
 *
 * It appears under its name only when it is whole and on the disk. One that is torn, from the future,
 * too old or of another version is not used, and that is all that happens.
 */

import { constants } from 'node:fs';
import { type FileHandle, open, rename, unlink } from 'node:fs/promises';
import { crc32 } from 'node:zlib';
import type { TableCopy } from '../backends/backend.ts';
import type { Millis } from '../core/clock.ts';
import { reasonOf } from '../core/errors.ts';
import type { HashSeed } from '../core/hash.ts';
import { isRecord } from '../core/options.ts';

/** The keys of one rule. */
export interface SnapshotPart {
  readonly name: string;
  /** Another rule's numbers mean something else. */
  readonly fingerprint: string;
  readonly copy: TableCopy;
}

export interface Snapshot {
  /** On the system's clock. */
  readonly savedAt: Millis;
  /** The keys are hashes, and mean nothing without it. */
  readonly seed: HashSeed;
  readonly parts: readonly SnapshotPart[];
}

const MAGIC = 'sluice snapshot 1\n';
const FLOAT_BYTES = 8;
const CHECK_BYTES = 4;

/** A clock may have been set back a little since; more than this is another time. */
const AHEAD_MS_MAX: Millis = 5_000;

/** As much as Node reads in one piece: some eighty million keys. */
const SNAPSHOT_BYTES_MAX = 2 ** 31 - 1;

/** Nobody else needs to know how keys are hashed. */
const OWNER_ONLY = 0o600;

/** The one being written: two at once would write into the same unfinished file. */
let last: Promise<unknown> = Promise.resolve();

/** Writes one when those before it are done, so that the last one asked for is the one that stays. */
export function writeSnapshot(file: string, snapshot: Snapshot): Promise<number> {
  const done = last.then(() => write(file, snapshot));
  last = done.catch(() => undefined);
  return done;
}

async function write(file: string, snapshot: Snapshot): Promise<number> {
  const unfinished = `${file}.${process.pid}.unfinished`;
  const handle = await open(
    unfinished,
    constants.O_CREAT | constants.O_TRUNC | constants.O_WRONLY,
    OWNER_ONLY,
  );
  try {
    const bytes = await writeAll(handle, piecesOf(snapshot));
    await handle.sync();
    await handle.close();
    await rename(unfinished, file);
    return bytes;
  } catch (error) {
    await handle.close().catch(() => undefined);
    await unlink(unfinished).catch(() => undefined);
    throw error;
  }
}

async function writeAll(handle: FileHandle, pieces: Iterable<Buffer>): Promise<number> {
  let check = 0;
  let bytes = 0;
  for (const piece of pieces) {
    check = crc32(piece, check);
    await handle.writeFile(piece);
    bytes += piece.length;
  }
  const end = Buffer.alloc(CHECK_BYTES);
  end.writeUInt32LE(check);
  await handle.writeFile(end);
  return bytes + CHECK_BYTES;
}

function* piecesOf({ savedAt, seed, parts }: Snapshot): Iterable<Buffer> {
  const described = parts.map(({ name, fingerprint, copy }) => ({
    name,
    fingerprint,
    entries: copy.entries.length,
    freshAt: copy.freshAt?.length ?? 0,
  }));
  yield Buffer.from(`${MAGIC}${JSON.stringify({ savedAt, seed, parts: described })}\n`);
  for (const { copy } of parts) {
    // Nothing is never handed out: of no bytes at all, zlib's CRC begins anew.
    if (copy.entries.length > 0) yield bytesOf(copy.entries);
    if (copy.freshAt) yield bytesOf(copy.freshAt);
  }
}

const bytesOf = (floats: Float64Array): Buffer =>
  Buffer.from(floats.buffer, floats.byteOffset, floats.byteLength);

/** What was read, or why there is nothing to use. */
export type ReadSnapshot =
  | { readonly snapshot: Snapshot }
  | { readonly reason: string; readonly isMissing?: boolean };

export async function readSnapshot(
  file: string,
  now: Millis,
  ageMsMax: Millis,
): Promise<ReadSnapshot> {
  try {
    const read = await readWhole(file);
    return typeof read === 'string' ? { reason: read } : parse(read, now, ageMsMax);
  } catch (error) {
    const isMissing = (error as NodeJS.ErrnoException).code === 'ENOENT';
    return { reason: reasonOf(error), isMissing };
  }
}

/** Its bytes, or why they are not worth reading: what has no end would never have been read. */
async function readWhole(file: string): Promise<Buffer | string> {
  // Without waiting, as a pipe would keep whoever opens it until somebody else does.
  const handle = await open(file, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    const found = await handle.stat();
    if (!found.isFile()) return 'it is no regular file';
    if (found.size === 0) return 'it is empty'; // or says so, as what the system makes up does
    if (found.size > SNAPSHOT_BYTES_MAX) return `it has more than ${SNAPSHOT_BYTES_MAX} bytes`;
    return await handle.readFile();
  } finally {
    await handle.close();
  }
}

function parse(bytes: Buffer, now: Millis, ageMsMax: Millis): ReadSnapshot {
  if (!bytes.subarray(0, MAGIC.length).equals(Buffer.from(MAGIC))) {
    return { reason: 'it is no snapshot of this version' };
  }
  const end = bytes.length - CHECK_BYTES;
  const headEnd = bytes.indexOf('\n', MAGIC.length);
  if (headEnd < 0 || headEnd > end || crc32(bytes.subarray(0, end)) !== bytes.readUInt32LE(end)) {
    return { reason: 'it is torn' };
  }
  const head: unknown = JSON.parse(bytes.toString('utf8', MAGIC.length, headEnd));
  if (!isHead(head)) return { reason: 'it makes no sense' };
  const { savedAt, seed } = head;
  if (savedAt > now + AHEAD_MS_MAX) return { reason: 'it is from the future' };
  if (now - savedAt > ageMsMax) {
    return { reason: `it is ${Math.round((now - savedAt) / 1000)} s old` };
  }
  let at = headEnd + 1;
  const floats = head.parts.reduce((sum, { entries, freshAt }) => sum + entries + freshAt, 0);
  if (at + floats * FLOAT_BYTES !== end) return { reason: 'it is torn' };
  const take = (count: number): Float64Array => {
    const taken = new Float64Array(count);
    bytesOf(taken).set(bytes.subarray(at, at + count * FLOAT_BYTES));
    at += count * FLOAT_BYTES;
    return taken;
  };
  const parts = head.parts.map(({ name, fingerprint, entries, freshAt }) => ({
    name,
    fingerprint,
    copy: { entries: take(entries), freshAt: freshAt > 0 ? take(freshAt) : undefined },
  }));
  return { snapshot: { savedAt, seed, parts } };
}

interface Head {
  readonly savedAt: Millis;
  readonly seed: HashSeed;
  readonly parts: readonly {
    readonly name: string;
    readonly fingerprint: string;
    readonly entries: number;
    readonly freshAt: number;
  }[];
}

const isHead = (value: unknown): value is Head =>
  isRecord(value) &&
  Number.isFinite(value.savedAt) &&
  Array.isArray(value.seed) &&
  value.seed.length === 2 &&
  value.seed.every(Number.isInteger) &&
  Array.isArray(value.parts) &&
  value.parts.every(
    (part) =>
      isRecord(part) &&
      typeof part.name === 'string' &&
      typeof part.fingerprint === 'string' &&
      isCount(part.entries) &&
      isCount(part.freshAt),
  );

const isCount = (value: unknown): boolean => Number.isSafeInteger(value) && Number(value) >= 0;
