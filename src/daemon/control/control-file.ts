/**
 * The file of the control journal: an append-only log of lines, each with its CRC-32.
 *
 *     sluice controls 1⏎
 *     9a0364b9 {"at":…,"lines":n}⏎         written anew with the n lines that follow: all controls at that instant
 *     f81deb2c {"at":…,"records":[…]}⏎
 *     0c5d3e01 {"at":…,"records":[…]}⏎     appended: what has changed since
 *     77b1                                 a write that a crash has interrupted: ignored
 *
 * The last one of several records with the same id counts. `at` never goes back, so it tells whether a snapshot is later.
 */

import type { FileHandle } from 'node:fs/promises';
import { crc32 } from 'node:zlib';
import type { Millis } from '../../core/clock.ts';
import { tryParseJson } from '../../core/json.ts';
import { isRecord } from '../../core/options.ts';
import { runInSlices, type Steps } from '../../core/steps.ts';
import {
  appendSynced,
  readStateFile,
  type Unreadable,
  writeAtomically,
} from '../files/state-file.ts';
import { type ControlRecord, idOf, isControlRecord } from './control-record.ts';

const MAGIC = 'sluice controls 1\n';

/** A damaged line costs its records; a line for each would cost 30 bytes more. */
const RECORDS_PER_LINE = 20;

/** Lines that are encoded before they are written: the event loop turns after them. */
const MAX_HELD_CHARS = 65_536;

/** A file may have grown by this, or to twice its size, before it is written anew. */
const MAX_APPENDED_BYTES = 262_144;

/** The most that Node reads at once. */
const MAX_FILE_BYTES = 2 ** 31 - 1;

export const controlFileOf = (snapshotFile: string): string => `${snapshotFile}.controls`;

/** A file that this process writes. */
export class ControlFile {
  readonly path: string;
  #size = 0;
  #sizeWhenNew = 0;

  constructor(path: string) {
    this.path = path;
  }

  /** True if most of it is out of date. */
  get isLong(): boolean {
    return this.#size - this.#sizeWhenNew > Math.max(MAX_APPENDED_BYTES, this.#sizeWhenNew);
  }

  /** Replaces the file by one that has these records only. */
  async write(records: readonly ControlRecord[], at: Millis): Promise<void> {
    this.#size = await writeAtomically(this.path, (handle) => writeLines(handle, records, at));
    this.#sizeWhenNew = this.#size;
  }

  /** False if the file is not as this process has left it. */
  async append(records: readonly ControlRecord[], at: Millis): Promise<boolean> {
    const bytes = await runInSlices(encodeLines(records, at));
    if (!(await appendSynced(this.path, this.#size, bytes))) return false;
    this.#size += bytes.length;
    return true;
  }
}

async function writeLines(
  handle: FileHandle,
  records: readonly ControlRecord[],
  at: Millis,
): Promise<number> {
  const lines = Math.ceil(records.length / RECORDS_PER_LINE);
  let held = MAGIC + encodeLine({ at, lines });
  let size = 0;
  const flush = async (): Promise<void> => {
    const bytes = Buffer.from(held);
    held = '';
    size += bytes.length;
    await handle.appendFile(bytes);
  };
  for (const line of recordLines(records, at)) {
    held += line;
    if (held.length > MAX_HELD_CHARS) await flush();
  }
  await flush();
  return size;
}

function* encodeLines(records: readonly ControlRecord[], at: Millis): Steps<Buffer> {
  const lines: Buffer[] = [];
  for (const line of recordLines(records, at)) {
    lines.push(Buffer.from(line));
    yield;
  }
  return Buffer.concat(lines);
}

function* recordLines(records: readonly ControlRecord[], at: Millis): Generator<string> {
  for (let n = 0; n < records.length; n += RECORDS_PER_LINE)
    yield encodeLine({ at, records: records.slice(n, n + RECORDS_PER_LINE) });
}

const encodeLine = (value: object): string => {
  const json = JSON.stringify(value);
  return `${checksum(json)} ${json}\n`;
};

const checksum = (text: string | Buffer): string => crc32(text).toString(16).padStart(8, '0');

export interface StoredControls {
  /** Instant of the last change. */
  readonly at: Millis;
  /** Bans, overrides and removals, by id. */
  readonly records: readonly ControlRecord[];
  readonly resets: readonly ControlRecord[];
  /** Lines that are damaged or missing. */
  readonly damagedLines: number;
}

export async function readControlFile(path: string): Promise<StoredControls | Unreadable> {
  const read = await readStateFile(path, MAX_FILE_BYTES);
  return Buffer.isBuffer(read) ? parseControls(read) : read;
}

function parseControls(bytes: Buffer): StoredControls | Unreadable {
  if (bytes.toString('latin1', 0, MAGIC.length) !== MAGIC) return { reason: magicProblem(bytes) };
  const byId = new Map<string, ControlRecord>();
  let at = 0;
  let damagedLines = 0;
  let missingLines = 0;
  for (const [n, line] of completeLines(bytes, MAGIC.length)) {
    const entry = decodeLine(line);
    if (!entry) {
      damagedLines++;
      continue;
    }
    at = Math.max(at, entry.at);
    if (n === 0) missingLines = entry.lines;
    else missingLines--;
    for (const record of entry.records.filter(isControlRecord)) byId.set(idOf(record), record);
  }
  damagedLines = Math.max(damagedLines, missingLines, at === 0 ? 1 : 0);
  const all = [...byId.values()];
  const resets = all.filter(({ kind }) => kind === 'reset');
  const records = all.filter(({ kind }) => kind !== 'reset');
  return { at, records, resets, damagedLines };
}

/** With their numbers; without a last one that has no end. */
function* completeLines(bytes: Buffer, start: number): Generator<readonly [number, Buffer]> {
  let from = start;
  for (let n = 0; ; n++) {
    const to = bytes.indexOf('\n', from);
    if (to < 0) return;
    yield [n, bytes.subarray(from, to)];
    from = to + 1;
  }
}

interface Entry {
  readonly at: Millis;
  readonly lines: number;
  readonly records: readonly unknown[];
}

function decodeLine(line: Buffer): Entry | undefined {
  const json = line.subarray(9);
  if (`${checksum(json)} ` !== line.toString('latin1', 0, 9)) return undefined;
  const value = tryParseJson(json.toString());
  if (!isRecord(value) || !Number.isFinite(value.at)) return undefined;
  const { at, lines, records = [] } = value;
  if (!Array.isArray(records)) return undefined;
  return { at: Number(at), lines: Number.isSafeInteger(lines) ? Number(lines) : 0, records };
}

function magicProblem(bytes: Buffer): string {
  const version = /^sluice controls (\d{1,9})\n/.exec(bytes.toString('latin1', 0, 64))?.[1];
  return version === undefined
    ? 'it is not a journal of controls'
    : `it is of version ${version}, and this daemon reads version 1`;
}
