/**
 * The offsets of a time zone as a table of changes, read once from the time zone data of the runtime.
 *
 *     Europe/Berlin     starts    2000-01-01   2000-03-26T01:00Z   2000-10-29T01:00Z   …
 *                       offsets   +1 h         +2 h                +1 h                …
 *
 * `Intl` takes microseconds for one instant, and Redis has no time zone data. From this table both languages compute
 * periods by arithmetic. The data is that of the runtime: a change of law needs an update of Node and a restart.
 */

import type { Millis } from '../core/clock.ts';

export interface TimeZone {
  readonly name: string;
  /** When each offset begins, ascending; the first also holds before. */
  readonly starts: readonly Millis[];
  /** Local time minus UTC. */
  readonly offsets: readonly Millis[];
}

const MINUTE_MS = 60_000;

/** Offsets never change twice in this time: the shortest known stretch of summer time, before a Ramadan, is a week. */
const SCAN_MS = 6 * 86_400_000;

/** Most changes come 52 or 53 weeks after that of the last year. */
const YEARS_MS: readonly Millis[] = [52 * 7 * 86_400_000, 53 * 7 * 86_400_000];

/** Before and after, the first and the last offset hold. */
const FROM: Millis = Date.UTC(2000, 0, 1);
const UNTIL: Millis = Date.UTC(2060, 0, 1);

const UTC: TimeZone = { name: 'UTC', starts: [FROM], offsets: [0] };

/** Tables that are kept; the runtime knows about 420 zones. */
const MAX_ZONES = 64;
const zones = new Map<string, TimeZone>([[UTC.name, UTC]]);

/** The time zone of a name such as `Europe/Berlin`; undefined if the runtime does not know it. */
export function timeZoneOf(name: string): TimeZone | undefined {
  const known = zones.get(name);
  if (known) return known;
  let format: Intl.DateTimeFormat;
  try {
    format = new Intl.DateTimeFormat('en-US', { timeZone: name, ...FIELDS });
  } catch {
    return undefined;
  }
  const zone = { name: format.resolvedOptions().timeZone, ...changesOf(format) };
  if (zones.size < MAX_ZONES) zones.set(name, zone);
  return zone;
}

const FIELDS = {
  hourCycle: 'h23',
  year: 'numeric',
  month: 'numeric',
  day: 'numeric',
  hour: 'numeric',
  minute: 'numeric',
  second: 'numeric',
} as const;

/** Scans the whole range for changes. */
function changesOf(format: Intl.DateTimeFormat): Pick<TimeZone, 'starts' | 'offsets'> {
  const starts = [FROM];
  const offsets = [offsetAt(format, FROM)];
  for (let from = FROM; from < UNTIL; from += SCAN_MS) {
    const before = offsets[offsets.length - 1];
    const after = offsetAt(format, from + SCAN_MS);
    if (after === before) continue;
    const lastYear = starts[starts.length - 2] ?? FROM;
    const isChange = (at: Millis): boolean =>
      at > from &&
      at <= from + SCAN_MS &&
      offsetAt(format, at) === after &&
      offsetAt(format, at - MINUTE_MS) === before;
    const likely = YEARS_MS.map((year) => lastYear + year).find(isChange);
    starts.push(likely ?? findChange(format, from, before));
    offsets.push(after);
  }
  return { starts, offsets };
}

/** Finds the minute of a change by bisection. */
function findChange(format: Intl.DateTimeFormat, from: Millis, before: Millis): Millis {
  let [low, high] = [from / MINUTE_MS, (from + SCAN_MS) / MINUTE_MS];
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (offsetAt(format, middle * MINUTE_MS) === before) low = middle;
    else high = middle;
  }
  return high * MINUTE_MS;
}

function offsetAt(format: Intl.DateTimeFormat, at: Millis): Millis {
  const [month, day, year, hour, minute, second] = (format.format(at).match(/\d+/g) ?? []).map(
    Number,
  );
  return Date.UTC(year, month - 1, day, hour, minute, second) - at;
}
