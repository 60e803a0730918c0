#!/usr/bin/env node
/** The command `sluice`: hands the process's words and terminal to `run`. */

import { writeSync } from 'node:fs';
import { run } from './run.ts';

const STDOUT = 1;
const STDERR = 2;

/** Writes all of a line, also into a pipe that takes it in pieces. */
function write(fd: number, line: string): void {
  let rest = Buffer.from(`${line}\n`);
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(fd, rest));
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      if (code === 'EPIPE') process.exit(0); // whoever read us has seen enough: | head
      if (code !== 'EAGAIN') throw error;
    }
  }
}

process.exitCode = run(process.argv.slice(2), {
  print: (line) => write(STDOUT, line),
  complain: (line) => write(STDERR, line),
  columns: process.stdout.columns ?? 100,
});
