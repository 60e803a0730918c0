#!/usr/bin/env node
/** The executable `sluice`: runs a command with the arguments and the terminal of the process. */

import { readFileSync, writeSync } from 'node:fs';
import { toPrintable } from '../core/printable.ts';
import { bestEffortLog } from './framework/best-effort-log.ts';
import { holdHangup } from './framework/hangup.ts';

const STDOUT = 1;
const STDERR = 2;

/** A daemon goes on serving without a reader of its output. */
const isDaemon = process.argv[2] === 'serve';
if (isDaemon) holdHangup();

// Loaded only now: that takes much longer than all before it.
const { EXIT_CANNOT_RUN, EXIT_OK } = await import('./framework/command.ts');
const { openScreen } = await import('./framework/screen.ts');
const { run } = await import('./run.ts');

/** Lines may hold names and replies of other hosts. */
function writeLine(fd: number, line: string): void {
  writeAll(fd, `${toPrintable(line)}\n`);
}

function writeAll(fd: number, text: string): void {
  let rest = Buffer.from(text);
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(fd, rest));
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'EPIPE' && isDaemon) return;
      if (code === 'EPIPE') process.exit(EXIT_OK); // the reader has closed the pipe, such as `| head`
      if (code !== 'EAGAIN') exitOnWriteError(fd, error as Error);
    }
  }
}

/** Standard output cannot be written, most likely for a full disk: reports it on standard error. */
function exitOnWriteError(fd: number, error: Error): never {
  if (fd !== STDERR) writeLine(STDERR, `sluice: cannot write: ${error.message}`);
  process.exit(EXIT_CANNOT_RUN);
}

/** Returns to the start of the line and erases it. */
const CLEAR_LINE = '\r\x1b[K';

const { stdin, stdout } = process;
const isInteractive = stdin.isTTY && stdout.isTTY;
const hasColours = !process.env.NO_COLOR;
const writeOut = (text: string): void => writeAll(STDOUT, text);

process.exitCode = await run(process.argv.slice(2), {
  print: (line) => writeLine(STDOUT, line),
  error: (line) => writeLine(STDERR, line),
  log: bestEffortLog((bytes) => writeSync(STDERR, bytes)),
  progress: process.stderr.isTTY ? (words) => writeAll(STDERR, CLEAR_LINE + words) : undefined,
  columns: stdout.columns ?? 100,
  openScreen: isInteractive ? () => openScreen(stdin, stdout, writeOut, hasColours) : undefined,
  version: JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')).version,
});
