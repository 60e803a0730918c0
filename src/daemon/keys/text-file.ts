/**
 * Reads text files of bounded size, and lists with one entry a line.
 *
 *     # blocked since March
 *     10.0.0.0/8            # a comment begins with # after a space, or at the start of a line
 *     mallory
 */

import { closeSync, openSync, readSync, statSync } from 'node:fs';
import { resolve } from 'node:path';
import { ConfigError, errorMessageOf } from '../../core/errors.ts';
import type { Steps } from '../../core/steps.ts';

/** Reads every entry of a list; `path` is the option that names the file. @throws {ConfigError} */
export type ReadLines = <T>(
  file: string,
  path: string,
  read: (line: string) => T,
) => Steps<readonly T[]>;

const MAX_LIST_BYTES = 16 * 1024 * 1024;
const MAX_LIST_LINES = 500_000;

/** Lines that are read before other work may run. */
const LINES_PER_STEP = 16;

const COMMENT = /(?:^|\s)#.*$/s;

/** Files are relative to the directory. */
export const lineReader = (directory: string): ReadLines =>
  function* <T>(file: string, path: string, read: (line: string) => T) {
    const text = readList(resolve(directory, file), path);
    const mistakes: string[] = [];
    const entries: T[] = [];
    let number = 0;
    for (const line of linesOf(text)) {
      if (++number > MAX_LIST_LINES)
        throw new ConfigError(path, `a file of at most ${MAX_LIST_LINES} lines`, file);
      if (number % LINES_PER_STEP === 0) yield;
      const entry = (line.includes('#') ? line.replace(COMMENT, '') : line).trim();
      if (entry === '') continue;
      try {
        entries.push(read(entry));
      } catch (error) {
        if (!(error instanceof ConfigError)) throw error;
        mistakes.push(`${file}:${number}: ${error.message}`);
      }
    }
    if (mistakes.length === 0) return entries;
    const others = mistakes.length > 1 ? `; and ${mistakes.length - 1} more lines` : '';
    throw new ConfigError(path, 'a file with one entry a line', file, [], mistakes[0] + others);
  };

/** One at a time: an array of them takes longer than a step may. */
function* linesOf(text: string): Generator<string> {
  for (let from = 0; from <= text.length; ) {
    const end = text.indexOf('\n', from);
    yield text.slice(from, end < 0 ? undefined : end);
    from = end < 0 ? text.length + 1 : end + 1;
  }
}

function readList(file: string, path: string): string {
  try {
    return readRegularFile(file, MAX_LIST_BYTES);
  } catch (error) {
    throw new ConfigError(path, `a file that can be read (${errorMessageOf(error)})`, file);
  }
}

/** A pipe would block the daemon, and a device may have no end. @throws {Error} */
export function requireRegularFile(path: string): void {
  if (!statSync(path).isFile()) throw new Error('not a regular file');
}

/** @throws {Error} why it cannot be read */
export function readRegularFile(path: string, maxBytes: number): string {
  requireRegularFile(path);
  const text = readBounded(path, maxBytes);
  if (text === undefined) throw new Error(`more than ${maxBytes} bytes`);
  return text;
}

/** The text of a file; undefined if it has too many bytes, as a device without end has. */
export function readBounded(file: string, maxBytes: number): string | undefined {
  const bytes = Buffer.allocUnsafe(maxBytes + 1);
  const descriptor = openSync(file, 'r');
  let length = 0;
  try {
    for (let read = 1; read > 0 && length < bytes.length; length += read)
      read = readSync(descriptor, bytes, length, bytes.length - length, null);
  } finally {
    closeSync(descriptor);
  }
  return length > maxBytes ? undefined : bytes.toString('utf8', 0, length);
}
