import { writeSync } from 'node:fs';
import { toPrintable } from '../../core/printable.ts';
import { readVersion } from '../../daemon/files/built-files.ts';
import { bestEffortLog } from './best-effort-log.ts';
import { EXIT_CANNOT_RUN, EXIT_OK, type Terminal } from './command.ts';
import { openScreen } from './screen.ts';

const STDOUT = 1;
const STDERR = 2;

/** Returns to the start of the line and erases it. */
const CLEAR_LINE = '\r\x1b[K';

/** `isDaemon`: goes on without a reader of its output. */
export function processTerminal(isDaemon: boolean): Terminal {
  const { stdin, stdout } = process;
  const isInteractive = stdin.isTTY && stdout.isTTY;
  const hasColours = !process.env.NO_COLOR;

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

  /** Lines may hold names and replies of other hosts. */
  const writeLine = (fd: number, line: string): void => writeAll(fd, `${toPrintable(line)}\n`);

  /** Standard output cannot be written, most likely for a full disk: reports it on standard error. */
  function exitOnWriteError(fd: number, error: Error): never {
    if (fd !== STDERR) writeLine(STDERR, `sluice: cannot write: ${error.message}`);
    process.exit(EXIT_CANNOT_RUN);
  }

  const writeOut = (text: string): void => writeAll(STDOUT, text);
  return {
    print: (line) => writeLine(STDOUT, line),
    error: (line) => writeLine(STDERR, line),
    log: bestEffortLog((bytes) => writeSync(STDERR, bytes)),
    progress: process.stderr.isTTY ? (words) => writeAll(STDERR, CLEAR_LINE + words) : undefined,
    columns: stdout.columns ?? 100,
    openScreen: isInteractive ? () => openScreen(stdin, stdout, writeOut, hasColours) : undefined,
    version: readVersion(),
  };
}
