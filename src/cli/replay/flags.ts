import { parseDuration } from '../../core/duration.ts';
import { OptionReader } from '../../core/options.ts';
import {
  CommandError,
  integerUpTo,
  LIST,
  parseFlagValue,
  rangeFlag,
  type readFlags,
  SWITCH,
  TEXT,
} from '../framework/command.ts';
import { parseCondition } from './condition.ts';
import { parseTemplate } from './key-expression.ts';
import { FORMAT_NAMES } from './line-format.ts';
import type { ReadOptions } from './read-calls.ts';
import { parseZone } from './times.ts';

export const READ_FLAGS = {
  key: TEXT,
  format: TEXT,
  time: TEXT,
  zone: TEXT,
  cost: TEXT,
  where: LIST,
  reorder: TEXT,
  'max-keys': TEXT,
  'max-bad': TEXT,
  top: TEXT,
  json: SWITCH,
};

export const READ_FLAGS_HELP = `  --key KEY        what is limited: a field (ip, user, a JSON path, a column),
                   the first of several (user|ip), a template ({ip}:{path}),
                   or * for one key in all; default ip
  --format NAME    combined (nginx and Apache, also common), json (one object
                   per line) or csv; default: found from the first lines
  --time FIELD     field of the time in json and csv; default: time, timestamp,
                   @timestamp, ts and others; ISO 8601 or Unix time
  --zone OFFSET    zone of times that have none: --zone=-07:00 (default UTC)
  --cost FIELD     field with the cost of a call (default: each costs 1)
  --where COND     only lines with FIELD=VALUE or FIELD!=VALUE, * is anything;
                   repeatable, all must hold: --where 'path=/api/*'
  --reorder TIME   lines up to so far out of order are sorted (default 10s)
  --max-keys N     most keys (default 1000000); calls of further keys are
                   left out and counted
  --max-bad N|P%   exit code 1 if more lines cannot be read (default 50%)
  --top N          keys in the table (default 10)`;

type ReadFlags = ReturnType<typeof readFlags<typeof READ_FLAGS>>;

const DEFAULT_MAX_KEYS = 1_000_000;
const MAX_KEYS = 50_000_000;
const DEFAULT_REORDER_MS = 10_000;
const DEFAULT_MAX_BAD = '50%';

/** @throws {CommandError} */
export function readOptions(flags: ReadFlags): ReadOptions {
  const { format, key = 'ip', time, cost, where = [] } = flags;
  return {
    format:
      format === undefined
        ? undefined
        : new OptionReader('', { '--format': format }).oneOf('--format', FORMAT_NAMES),
    key: parseTemplate(key, 'key'),
    time,
    cost,
    conditions: where.map(parseCondition),
    zoneMinutes: zoneOf(flags.zone),
    reorderMs: reorderOf(flags.reorder),
  };
}

function zoneOf(text: string | undefined): number {
  const zone = text === undefined ? 0 : parseZone(text);
  if (zone !== undefined) return zone;
  throw new CommandError(`expected \`--zone\` to be an offset such as +02:00 or Z, got "${text}"`);
}

function reorderOf(text: string | undefined): number {
  const ms = text === undefined ? DEFAULT_REORDER_MS : parseDuration(parseFlagValue(text));
  if (ms !== undefined && ms >= 0) return ms;
  throw new CommandError(`expected \`--reorder\` to be a time such as 10s, got "${text}"`);
}

export const maxKeysOf = (flags: ReadFlags): number =>
  rangeFlag(flags, 'max-keys', DEFAULT_MAX_KEYS, integerUpTo(MAX_KEYS));

export const topOf = (flags: ReadFlags, fallback = 10): number =>
  rangeFlag(flags, 'top', fallback, integerUpTo(MAX_KEYS));

/** A bound on a part of a whole: a number, or a percentage. */
export interface Bound {
  readonly text: string;
  isExceeded(part: number, whole: number): boolean;
}

/** @throws {CommandError} */
export function boundOf(name: string, text: string): Bound {
  const [, digits, percent] = /^(\d+(?:\.\d+)?)\s*(%?)$/.exec(text.trim()) ?? [];
  const value = Number(digits ?? Number.NaN);
  const isValid = percent ? value <= 100 : Number.isInteger(value);
  if (!isValid)
    throw new CommandError(
      `expected \`--${name}\` to be a whole number or a percentage such as 1%, got "${text}"`,
    );
  const isExceeded = (part: number, whole: number): boolean =>
    percent ? part * 100 > value * whole : part > value;
  return { text: percent ? `${value} %` : String(value), isExceeded };
}

export const maxBadOf = (flags: ReadFlags): Bound =>
  boundOf('max-bad', flags['max-bad'] ?? DEFAULT_MAX_BAD);
