import type { Millis } from '../core/clock.ts';
import { parseDuration, suggestDuration } from '../core/duration.ts';
import type { OptionReader } from '../core/options.ts';
import { suggestName } from '../core/suggestion.ts';
import {
  DAY_MS,
  firstDayOf,
  HOUR_MS,
  monthOf,
  offsetIndexAt,
  type PeriodTerms,
} from './calendar.ts';
import { type TimeZone, timeZoneOf } from './time-zone.ts';

export const QUOTA_PERIODS = ['second', 'minute', 'hour', 'day', 'week', 'month', 'year'] as const;

export const WEEKDAYS = [
  'sunday',
  'monday',
  'tuesday',
  'wednesday',
  'thursday',
  'friday',
  'saturday',
] as const;

/** 1970 began on a Thursday. */
const EPOCH_WEEKDAY = 4;

const LENGTHS: ReadonlyMap<unknown, Millis> = new Map([
  ['second', 1000],
  ['minute', 60_000],
  ['hour', HOUR_MS],
  ['day', DAY_MS],
  ['week', 7 * DAY_MS],
]);

const MONTHS: ReadonlyMap<unknown, number> = new Map([
  ['month', 1],
  ['year', 12],
]);

export interface Period {
  readonly period: PeriodTerms;
  readonly zone: TimeZone;
  readonly calendarId: number;
}

/** Reports invalid options to the reader. The period may be computed once the reader has finished without an error. */
export function readPeriod(reader: OptionReader): () => Period {
  const per = reader.get('per');
  const months = MONTHS.get(per) ?? 0;
  const length = months > 0 ? 0 : readLength(reader, per);
  const zone = readZone(reader);
  const anchor = readAnchor(reader, months === 1, zone);
  const isWeek = per === 'week' && !reader.has('anchor');
  if (reader.has('weekStartsOn') && !isWeek)
    reader.report('weekStartsOn', 'left out unless `per` is "week" and there is no `anchor`');
  const weekday = WEEKDAYS.indexOf(reader.oneOf('weekStartsOn', WEEKDAYS, 'monday'));
  const origin = isWeek ? (weekday - EPOCH_WEEKDAY) * DAY_MS : anchor.local;
  return () => {
    const { month, day, timeOfDay } = anchor;
    const period =
      months > 0
        ? { months, length: timeOfDay, origin: month, day }
        : { months, length, origin: origin % length, day: 1 };
    const { name } = zone;
    return { period, zone, calendarId: hashOf(JSON.stringify([name, period])) };
  };
}

function readLength(reader: OptionReader, per: unknown): Millis {
  const length = LENGTHS.get(per) ?? parseDuration(per) ?? Number.NaN;
  if (Number.isInteger(length) && length >= 1) return length;
  const names = `one of ${QUOTA_PERIODS.join(', ')}, or a duration in whole milliseconds such as "15m"`;
  const hint = suggestDuration(per) ?? suggestName(per, QUOTA_PERIODS, (close) => `"${close}"`);
  reader.report('per', names, hint);
  return Number.NaN;
}

const UTC_NAME = 'UTC';

function readZone(reader: OptionReader): TimeZone {
  const name = reader.valueOr('timeZone', UTC_NAME);
  const zone = typeof name === 'string' ? timeZoneOf(name) : undefined;
  if (zone) return zone;
  reader.report('timeZone', 'the name of a time zone, such as "Europe/Berlin" or "UTC"');
  return timeZoneOf(UTC_NAME) as TimeZone;
}

/** An instant of local time, and its parts. */
interface Anchor {
  readonly local: Millis;
  readonly month: number;
  readonly day: number;
  readonly timeOfDay: Millis;
}

const EPOCH: Anchor = { local: 0, month: 0, day: 1, timeOfDay: 0 };

const ISO_PATTERN =
  /^(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:\.(\d{3}))?)?(Z|[+-]\d\d:\d\d)?)?$/;

function readAnchor(reader: OptionReader, isMonthly: boolean, zone: TimeZone): Anchor {
  const value = reader.get('anchor');
  if (value === undefined) return EPOCH;
  if (isMonthly && Number.isInteger(value) && Number(value) >= 1 && Number(value) <= 31)
    return { ...EPOCH, day: Number(value) };
  const anchor = typeof value === 'string' ? parseAnchor(value, zone) : undefined;
  if (anchor) return anchor;
  const date = 'a date such as "2026-01-31" or "2026-01-31T06:00"';
  reader.report('anchor', isMonthly ? `a day of the month from 1 to 31, or ${date}` : date);
  return EPOCH;
}

/** A date in local time; with `Z` or an offset at its end, an instant. */
function parseAnchor(text: string, { starts, offsets }: TimeZone): Anchor | undefined {
  const match = ISO_PATTERN.exec(text);
  if (!match) return undefined;
  const [year, monthOfYear, day, hour, minute, second, ms] = match
    .slice(1, 8)
    .map((part = '0') => Number(part));
  const month = (year - 1970) * 12 + monthOfYear - 1;
  const days = firstDayOf(month + 1) - firstDayOf(month);
  const isDate = monthOfYear >= 1 && monthOfYear <= 12 && day >= 1 && day <= days;
  if (!isDate || hour > 23 || minute > 59 || second > 59) return undefined;
  const timeOfDay = ((hour * 60 + minute) * 60 + second) * 1000 + ms;
  const local = (firstDayOf(month) + day - 1) * DAY_MS + timeOfDay;
  const zone = match[8];
  if (zone === undefined) return { local, month, day, timeOfDay };
  const offsetMs = offsetOf(zone);
  if (offsetMs === undefined) return undefined;
  const utc = local - offsetMs;
  return partsOf(utc + offsets[offsetIndexAt(starts, utc)]);
}

/** `Z`, or `+01:00`; undefined for an offset that no place has. */
function offsetOf(zone: string): Millis | undefined {
  if (zone === 'Z') return 0;
  const [hours, minutes] = zone.slice(1).split(':').map(Number);
  if (hours > 14 || minutes > 59) return undefined;
  return (zone.startsWith('-') ? -1 : 1) * (hours * 60 + minutes) * 60_000;
}

function partsOf(local: Millis): Anchor {
  const days = Math.floor(local / DAY_MS);
  const month = monthOf(days);
  return { local, month, day: days - firstDayOf(month) + 1, timeOfDay: local - days * DAY_MS };
}

/** FNV-1a, 32 bits. */
function hashOf(text: string): number {
  let hash = 0x811c9dc5;
  for (let n = 0; n < text.length; n++)
    hash = Math.imul(hash ^ text.charCodeAt(n), 0x01000193) >>> 0;
  return hash;
}
