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
import type { TableSnapshot } from '../backends/backend.ts';
import type { Millis } from '../core/clock.ts';
import { errorMessageOf } from '../core/errors.ts';
import type { HashSeed } from '../core/hash.ts';
import { isRecord } from '../core/options.ts';

/** The keys of one rule. */
export interface SnapshotPart {
  readonly name: string;
  /** Another rule's numbers mean something else. */
  readonly fingerprint: string;
  readonly table: TableSnapshot;
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
const CRC_BYTES = 4;

/** A clock may have been set back a little since; more than this is another time. */
const MAX_CLOCK_SKEW_MS: Millis = 5_000;

/** As much as Node reads in one piece: some eighty million keys. */
const MAX_SNAPSHOT_BYTES = 2 ** 31 - 1;

/** Nobody else needs to know how keys are hashed. */
const OWNER_ONLY_MODE = 0o600;

/** The one being written: two at once would write into the same unfinished file. */
let lastWrite: Promise<unknown> = Promise.resolve();

/** Writes one when those before it are done, so that the last one asked for is the one that stays. */
export function writeSnapshot(file: string, snapshot: Snapshot): Promise<number> {
  const done = lastWrite.then(() => writeAtomically(file, snapshot));
  lastWrite = done.catch(() => undefined);
  return done;
}

async function writeAtomically(file: string, snapshot: Snapshot): Promise<number> {
  const unfinished = `${file}.${process.pid}.unfinished`;
  const handle = await open(
    unfinished,
    constants.O_CREAT | constants.O_TRUNC | constants.O_WRONLY,
    OWNER_ONLY_MODE,
  );
  try {
    const bytes = await writeWithChecksum(handle, chunksOf(snapshot));
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

async function writeWithChecksum(handle: FileHandle, chunks: Iterable<Buffer>): Promise<number> {
  let check = 0;
  let bytes = 0;
  for (const chunk of chunks) {
    check = crc32(chunk, check);
    await handle.writeFile(chunk);
    bytes += chunk.length;
  }
  const end = Buffer.alloc(CRC_BYTES);
  end.writeUInt32LE(check);
  await handle.writeFile(end);
  return bytes + CRC_BYTES;
}

function* chunksOf({ savedAt, seed, parts }: Snapshot): Iterable<Buffer> {
  const described = parts.map(({ name, fingerprint, table }) => ({
    name,
    fingerprint,
    entries: table.entries.length,
    freshAt: table.debtUntil?.length ?? 0,
  }));
  yield Buffer.from(`${MAGIC}${JSON.stringify({ savedAt, seed, parts: described })}\n`);
  for (const { table } of parts) {
    // Nothing is never handed out: of no bytes at all, zlib's CRC begins anew.
    if (table.entries.length > 0) yield bytesOf(table.entries);
    if (table.debtUntil) yield bytesOf(table.debtUntil);
  }
}

const bytesOf = (floats: Float64Array): Buffer =>
  Buffer.from(floats.buffer, floats.byteOffset, floats.byteLength);

/** What was read, or why there is nothing to use. */
export type SnapshotReadResult =
  | { readonly snapshot: Snapshot }
  | { readonly reason: string; readonly isMissing?: boolean };

export async function readSnapshot(
  file: string,
  now: Millis,
  maxAgeMs: Millis,
): Promise<SnapshotReadResult> {
  try {
    const read = await readRegularFile(file);
    return typeof read === 'string' ? { reason: read } : parseSnapshot(read, now, maxAgeMs);
  } catch (error) {
    const isMissing = (error as NodeJS.ErrnoException).code === 'ENOENT';
    return { reason: errorMessageOf(error), isMissing };
  }
}

/** Its bytes, or why they are not worth reading: what has no end would never have been read. */
async function readRegularFile(file: string): Promise<Buffer | string> {
  // Without waiting, as a pipe would keep whoever opens it until somebody else does.
  const handle = await open(file, constants.O_RDONLY | constants.O_NONBLOCK);
  try {
    const found = await handle.stat();
    if (!found.isFile()) return 'it is no regular file';
    if (found.size === 0) return 'it is empty'; // or says so, as what the system makes up does
    if (found.size > MAX_SNAPSHOT_BYTES) return `it has more than ${MAX_SNAPSHOT_BYTES} bytes`;
    return await handle.readFile();
  } finally {
    await handle.close();
  }
}

function parseSnapshot(bytes: Buffer, now: Millis, maxAgeMs: Millis): SnapshotReadResult {
  if (!bytes.subarray(0, MAGIC.length).equals(Buffer.from(MAGIC))) {
    return { reason: 'it is no snapshot of this version' };
  }
  const end = bytes.length - CRC_BYTES;
  const headEnd = bytes.indexOf('\n', MAGIC.length);
  if (headEnd < 0 || headEnd > end || crc32(bytes.subarray(0, end)) !== bytes.readUInt32LE(end)) {
    return { reason: 'it is torn' };
  }
  const head: unknown = JSON.parse(bytes.toString('utf8', MAGIC.length, headEnd));
  if (!isSnapshotHeader(head)) return { reason: 'it makes no sense' };
  const { savedAt, seed } = head;
  if (savedAt > now + MAX_CLOCK_SKEW_MS) return { reason: 'it is from the future' };
  if (now - savedAt > maxAgeMs) {
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
    table: { entries: take(entries), debtUntil: freshAt > 0 ? take(freshAt) : undefined },
  }));
  return { snapshot: { savedAt, seed, parts } };
}

/** As it stands in files: `freshAt` is how many of `debtUntil` there are. */
interface SnapshotHeader {
  readonly savedAt: Millis;
  readonly seed: HashSeed;
  readonly parts: readonly {
    readonly name: string;
    readonly fingerprint: string;
    readonly entries: number;
    readonly freshAt: number;
  }[];
}

const isSnapshotHeader = (value: unknown): value is SnapshotHeader =>
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
