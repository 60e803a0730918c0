/**
 * The snapshot file: the state of all keys, so that a restart grants no fresh bursts.
 *
 *     sluice snapshot 1 ⏎
 *     n + m numbers of the first part, of the second, …      (64-bit floats, little endian)
 *     {"savedAt":…,"seed":[…],"parts":[{"name":…,"fingerprint":…,"limit":…,"entries":n,"freshAt":m},…]}
 *     bytes of that description, CRC-32 of everything before (4 bytes each)
 *
 * The numbers are written while the daemon decides, in slices without a pause of more than about a millisecond. How
 * many there are is known afterwards, so the description is at the end. A part is therefore not of one instant, but
 * each key of it is.
 *
 * A write is atomic, and a file of another user is not read: `files/state-file.ts`. A file that is truncated, corrupt,
 * too old or of another version is ignored. One from the future is used: the clock has been set back.
 */

import type { FileHandle } from 'node:fs/promises';
import { crc32 } from 'node:zlib';
import type { TableSnapshot } from '../backends/backend.ts';
import type { TableSlices } from '../backends/table-slices.ts';
import { type Millis, onImmediate, systemClock } from '../core/clock.ts';
import type { HashSeed } from '../core/hash.ts';
import { isRecord } from '../core/options.ts';
import { readStateFile, type Unreadable, writeAtomically } from './files/state-file.ts';

export interface SnapshotPart {
  readonly name: string;
  /** The rule's: the numbers of another rule have another meaning. */
  readonly fingerprint: string;
  /** The rule as it was written, to convert the keys if it has changed. */
  readonly limit?: unknown;
  readonly table: TableSnapshot;
}

/** A part that is still to be read, in slices. */
export interface SnapshotSource extends Omit<SnapshotPart, 'table'> {
  slices(): TableSlices;
}

export interface Snapshot {
  /** Unix time. */
  readonly savedAt: Millis;
  /** Keys are stored as hashes with this seed. */
  readonly seed: HashSeed;
  readonly parts: readonly SnapshotPart[];
  /** Controls that operators set at run time, validated by their reader. */
  readonly controls?: unknown;
}

const VERSION = 1;
const MAGIC = `sluice snapshot ${VERSION}\n`;
const FLOAT_BYTES = 8;
const LENGTH_BYTES = 4;
const CRC_BYTES = 4;

/** The most that Node reads at once: about eighty million keys. */
const MAX_SNAPSHOT_BYTES = 2 ** 31 - 1;

/** Serialises writes: two at once would write into the same unfinished file. */
let lastWrite: Promise<unknown> = Promise.resolve();

/** A snapshot that is still to be read. */
export interface SnapshotSources extends Omit<Snapshot, 'parts'> {
  readonly sources: Iterable<SnapshotSource>;
}

/**
 * Writes after all earlier writes, so that the last requested snapshot is the one that stays. Reads the sources slice
 * by slice, and lets the event loop turn at least every `SLICE_MS`.
 */
export function writeSnapshot(file: string, snapshot: SnapshotSources): Promise<number> {
  const write = (handle: FileHandle) => writeSlices(new ChunkWriter(handle), snapshot);
  const done = lastWrite.then(() => writeAtomically(file, write));
  lastWrite = done.catch(() => undefined);
  return done;
}

async function writeSlices(writer: ChunkWriter, snapshot: SnapshotSources): Promise<number> {
  const { savedAt, seed, sources, controls } = snapshot;
  const parts: SnapshotHeader['parts'][number][] = [];
  writer.add(Buffer.from(MAGIC));
  for (const { slices, ...part } of sources) {
    const reading = slices();
    let entries = 0;
    let slice = reading.next();
    for (; !slice.done; slice = reading.next()) {
      entries += slice.value.length;
      writer.add(bytesOf(slice.value));
      if (writer.isDue) await writer.flush();
    }
    const debtUntil = slice.value;
    if (debtUntil) writer.add(bytesOf(debtUntil));
    parts.push({ ...part, entries, freshAt: debtUntil?.length ?? 0 });
    if (writer.isDue) await writer.flush();
  }
  const head = Buffer.from(JSON.stringify({ savedAt, seed, parts, controls }));
  writer.add(head);
  writer.add(uint32(head.length));
  return writer.end();
}

/** How long slices are read before they are written, and how many bytes of them are held at most. */
const SLICE_MS: Millis = 0.5;
const MAX_HELD_BYTES = 1_048_576;

class ChunkWriter {
  readonly #handle: FileHandle;
  #held: Buffer[] = [];
  #heldBytes = 0;
  #bytes = 0;
  #check = 0;
  #sliceEndsAt = systemClock.now() + SLICE_MS;

  constructor(handle: FileHandle) {
    this.#handle = handle;
  }

  add(chunk: Buffer): void {
    if (chunk.length > 0) this.#check = crc32(chunk, this.#check); // zlib's CRC of no bytes starts again from 0
    this.#held.push(chunk);
    this.#heldBytes += chunk.length;
  }

  get isDue(): boolean {
    return this.#heldBytes >= MAX_HELD_BYTES || systemClock.now() >= this.#sliceEndsAt;
  }

  /** Ends the slice: the event loop turns while the system writes. */
  async flush(): Promise<void> {
    const chunks = this.#held;
    this.#bytes += this.#heldBytes;
    this.#held = [];
    this.#heldBytes = 0;
    if (chunks.length > 0) await this.#handle.writev(chunks);
    else await new Promise<void>((resolve) => onImmediate(resolve));
    this.#sliceEndsAt = systemClock.now() + SLICE_MS;
  }

  async end(): Promise<number> {
    this.add(uint32(this.#check));
    await this.flush();
    return this.#bytes;
  }
}

function uint32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

const bytesOf = (floats: Float64Array): Buffer =>
  Buffer.from(floats.buffer, floats.byteOffset, floats.byteLength);

/** The snapshot, or the reason why it is not used. */
export type SnapshotReadResult =
  | { readonly snapshot: Snapshot }
  | (Unreadable & {
      /** The controls of a snapshot that is too old for counts: bans and overrides have their own expiry. */
      readonly controlsOnly?: Snapshot;
    });

export async function readSnapshot(
  file: string,
  now: Millis,
  maxAgeMs: Millis,
): Promise<SnapshotReadResult> {
  const read = await readStateFile(file, MAX_SNAPSHOT_BYTES);
  return Buffer.isBuffer(read) ? parseSnapshot(read, now, maxAgeMs) : read;
}

function parseSnapshot(bytes: Buffer, now: Millis, maxAgeMs: Millis): SnapshotReadResult {
  const magic = bytes.toString('latin1', 0, MAGIC.length);
  if (magic !== MAGIC) return { reason: versionProblem(bytes) };
  const end = bytes.length - CRC_BYTES;
  const found = findHead(bytes, end);
  if (!found || crc32(bytes.subarray(0, end)) !== bytes.readUInt32LE(end)) {
    return { reason: 'it is corrupt' };
  }
  const head: unknown = JSON.parse(bytes.toString('utf8', found.from, found.to));
  if (!isSnapshotHeader(head)) return { reason: 'its header is invalid' };
  const { savedAt, seed, controls } = head;
  const reason = ageProblem(savedAt, now, maxAgeMs);
  if (reason !== undefined)
    return controls ? { reason, controlsOnly: { savedAt, seed, parts: [], controls } } : { reason };
  let at = MAGIC.length;
  const floats = head.parts.reduce((sum, { entries, freshAt }) => sum + entries + freshAt, 0);
  if (at + floats * FLOAT_BYTES !== found.from) return { reason: 'it is corrupt' };
  const take = (count: number): Float64Array => {
    const taken = new Float64Array(count);
    bytesOf(taken).set(bytes.subarray(at, at + count * FLOAT_BYTES));
    at += count * FLOAT_BYTES;
    return taken;
  };
  const parts = head.parts.map(({ name, fingerprint, limit, entries, freshAt }) => ({
    name,
    fingerprint,
    limit,
    table: { entries: take(entries), debtUntil: freshAt > 0 ? take(freshAt) : undefined },
  }));
  return { snapshot: { savedAt, seed, parts, controls } };
}

function ageProblem(savedAt: Millis, now: Millis, maxAgeMs: Millis): string | undefined {
  const ageMs = now - savedAt;
  return ageMs > maxAgeMs ? `it is ${Math.round(ageMs / 1000)} s old` : undefined;
}

/** Where the description is: behind the numbers. */
function findHead(bytes: Buffer, end: number): { from: number; to: number } | undefined {
  const to = end - LENGTH_BYTES;
  if (to < MAGIC.length) return undefined;
  const from = to - bytes.readUInt32LE(to);
  return from < MAGIC.length ? undefined : { from, to };
}

/** Why the first bytes are not those of this version. */
function versionProblem(bytes: Buffer): string {
  const version = /^sluice snapshot (\d{1,9})\n/.exec(bytes.toString('latin1', 0, 64))?.[1];
  return version === undefined
    ? 'it is not a snapshot'
    : `it is of version ${version}, and this daemon reads version ${VERSION}: all keys start anew`;
}

/** The description as stored: `freshAt` is the length of `debtUntil`. */
interface SnapshotHeader {
  readonly controls?: unknown;
  readonly savedAt: Millis;
  readonly seed: HashSeed;
  readonly parts: readonly {
    readonly name: string;
    readonly fingerprint: string;
    readonly limit?: unknown;
    readonly entries: number;
    readonly freshAt: number;
  }[];
}

const isSnapshotHeader = (value: unknown): value is SnapshotHeader =>
  isRecord(value) &&
  Number.isFinite(value.savedAt) &&
  Array.isArray(value.seed) &&
  value.seed.length === 4 &&
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
