/** The command line of `npm run bench:compare`. */

import { parseArgs } from 'node:util';
import { CONFIDENCE, MIN_RATIO } from './statistics.mjs';

export const GROUPS = ['local', 'daemon', 'redis', 'http'];

export class UsageError extends Error {}

export const HELP = `usage: npm run bench:compare -- BASE [options]

Compares the speed of this checkout, with its uncommitted changes, with a commit or tag BASE. BASE is built in a
temporary folder, which later runs with the same commit use again. Both builds run in turn, round by round.

options:
  --only GROUP[,GROUP]   ${GROUPS.join(', ')}; default all
  --rows TEXT            only rows with this text in their name, such as "line" or "8 × 256"
  --short                5 rounds, less than 4 minutes in all; default 11 longer rounds, about 12 minutes
  --write                writes the table to bench/RESULTS.md; not with --short, --only or --rows, nor on a busy machine
  --help                 prints this text

groups:
  local    calls of the library in one process
  daemon   checks over the line protocol, RESP (CL.THROTTLE) and HTTP, connections × pipeline depth
  redis    checks through a Redis, by calls in flight
  http     requests to a server with the middleware

How to read the table:
  ratio        CPU time per call in BASE, divided by that of this checkout: above 1 is faster. It is the median of the
               ratios of all rounds, then their spread: a confidence interval of ${CONFIDENCE * 100} % for the median. CPU time is that
               of the server (daemon, http) or of the calling process (local, redis), so that other load and the load
               generator affect it little.
  throughput   calls per second of this checkout, divided by those of BASE. It has no part in the verdict.
  slower       the whole spread is below ${MIN_RATIO}. Repeat such a row: --only daemon --rows "line 8 × 1"
  not in BASE  the row cannot run on BASE

Tools: redis-benchmark (package redis-tools), redis-server, wrk, cc (gcc) and taskset (util-linux). Without one of them a
slower generator is used or a group is left out, and the output says so.

exit codes: 0 no row is slower, 1 a row is slower, 2 nothing was compared

examples:
  npm run bench:compare -- HEAD --short            uncommitted changes
  npm run bench:compare -- main --only daemon
  npm run bench:compare -- v0.1.0 --write`;

const FLAG = { type: 'boolean', default: false };
const TEXT = { type: 'string' };
const OPTIONS = { only: TEXT, rows: TEXT, short: FLAG, write: FLAG, help: FLAG };

/** @throws {UsageError} */
export function readArguments(words) {
  const { values, positionals } = parse(words);
  const { only, rows = '', short: isShort, write: isToWrite, help: isHelp } = values;
  if (isHelp) return { isHelp };
  if (positionals.length !== 1)
    throw new UsageError(
      `expected one commit or tag to compare with, got ${positionals.length === 0 ? 'none' : positionals.join(' ')}; --help explains`,
    );
  const groups = only?.split(',') ?? GROUPS;
  const unknown = groups.find((group) => !GROUPS.includes(group));
  if (unknown !== undefined)
    throw new UsageError(`expected --only with groups of ${GROUPS.join(', ')}, got "${unknown}"`);
  if (isToWrite && (isShort || only !== undefined || rows !== ''))
    throw new UsageError(
      'expected a full run with --write, got a shortened one; nothing was started',
    );
  return { isHelp, base: positionals[0], groups, rows, isShort, isToWrite };
}

function parse(words) {
  try {
    return parseArgs({ args: words, options: OPTIONS, allowPositionals: true });
  } catch (error) {
    if (!error.code?.startsWith('ERR_PARSE_ARGS')) throw error;
    throw new UsageError(error.message);
  }
}
