#!/usr/bin/env node
/** The command `sluice`: hands the process's words and terminal to `run`. */

import { readFileSync, writeSync } from 'node:fs';
import { sideChannel } from './framework/best-effort-log.ts';
import { EXIT_OK, EXIT_USAGE } from './framework/command.ts';
import { run } from './run.ts';

const STDOUT = 1;
const STDERR = 2;

/** Writes all of a line, also into a pipe that takes it in pieces. */
function write(fd: number, line: string): void {
  writeRaw(fd, `${line}\n`);
}

function writeRaw(fd: number, text: string): void {
  let rest = Buffer.from(text);
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(fd, rest));
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'EPIPE') process.exit(EXIT_OK); // whoever read us has seen enough: | head
      if (code !== 'EAGAIN') giveUp(fd, error as Error);
    }
  }
}

/** Nothing can be written any more, a full disk most likely: say so where that is still possible. */
function giveUp(fd: number, error: Error): never {
  if (fd !== STDERR) write(STDERR, `sluice: cannot write: ${error.message}`);
  process.exit(EXIT_USAGE);
}

/** Back to the start of the line, and away with what stood there. */
const CLEAR_LINE = '\r\x1b[K';

process.exitCode = await run(process.argv.slice(2), {
  print: (line) => write(STDOUT, line),
  complain: (line) => write(STDERR, line),
  note: sideChannel((bytes) => writeSync(STDERR, bytes)),
  hint: process.stderr.isTTY ? (words) => writeRaw(STDERR, CLEAR_LINE + words) : undefined,
  columns: process.stdout.columns ?? 100,
  version: JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')).version,
});
