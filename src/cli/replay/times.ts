/**
 *     10/Oct/2000:13:55:36 -0700        nginx and Apache
 *     2000-10-10T13:55:36.123-07:00     ISO 8601; a space for the T, and a comma for the dot, are accepted
 *     971211336.123                     Unix time: seconds, or milliseconds, microseconds, nanoseconds by size
 *
 * A time without a zone is UTC, or in the zone that the reader was created with. Daylight saving time needs no
 * rule: every line has its own offset, and times are compared in UTC.
 */

import type { Millis } from '../../core/clock.ts';

const MONTHS = ['Jan', 'Feb', 'Mar', 'Apr', 'May', 'Jun', 'Jul', 'Aug', 'Sep', 'Oct', 'Nov', 'Dec'];

/** Length of `10/Oct/2000:13:55:36 -0700`. */
export const CLF_BYTES = 26;

const CLF = /^(\d\d)\/([A-Z][a-z][a-z])\/(\d{4}):(\d\d):(\d\d):(\d\d) ([+-])(\d\d)(\d\d)$/;
const ISO =
  /^(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s*(?:(Z|UTC)|([+-])(\d\d):?(\d\d))?$/i;
const UNIX = /^\d{1,19}(?:\.\d{1,9})?$/;

/** A number from each bound on is in the next smaller unit: 1e11 seconds are in the year 5138. */
const UNIX_UNITS: readonly (readonly [below: number, unitMs: number])[] = [
  [1e11, 1000],
  [1e14, 1],
  [1e17, 1e-3],
  [Infinity, 1e-6],
];

const ZONE = /^(?:(Z|UTC)|([+-])(\d\d):?(\d\d))$/i;

const zoneMinutesOf = (sign: string, hours: string, minutes: string): number =>
  (sign === '-' ? -1 : 1) * (Number(hours) * 60 + Number(minutes));

/** `+02:00` in minutes; undefined if it is no offset. */
export function parseZone(text: string): number | undefined {
  const [match, utc, sign, hours, minutes] = ZONE.exec(text) ?? [];
  if (match === undefined) return undefined;
  return utc ? 0 : zoneMinutesOf(sign, hours, minutes);
}

/** `-07:00`. */
export function formatZone(zoneMinutes: number): string {
  const pad = (value: number): string => String(value).padStart(2, '0');
  const minutes = Math.abs(zoneMinutes);
  return `${zoneMinutes < 0 ? '-' : '+'}${pad(Math.floor(minutes / 60))}:${pad(minutes % 60)}`;
}

/** `2000-10-10 13:55:36`, in a zone. */
export const formatTime = (at: Millis, zoneMinutes: number): string =>
  isoOf(at, zoneMinutes).slice(0, 19).replace('T', ' ');

/** ISO 8601 with the zone, as JSON has it. */
export const isoTime = (at: Millis, zoneMinutes: number): string =>
  `${isoOf(at, zoneMinutes).slice(0, -1)}${formatZone(zoneMinutes)}`;

const isoOf = (at: Millis, zoneMinutes: number): string =>
  new Date(at + zoneMinutes * 60_000).toISOString();

/** The result of a read is in two fields: a pair would be allocated for every line. */
export class TimeReader {
  at: Millis = 0;
  zoneMinutes = 0;
  readonly #defaultZone: number;
  /** The last time in bytes: most lines have that of the line before. */
  readonly #last = Buffer.alloc(CLF_BYTES);

  constructor(defaultZone = 0) {
    this.#defaultZone = defaultZone;
  }

  /** The time of nginx and Apache, in `CLF_BYTES` bytes. */
  readClf(bytes: Buffer, from: number): boolean {
    const to = from + CLF_BYTES;
    const last = this.#last;
    let n = CLF_BYTES - 1;
    while (n >= 0 && bytes[from + n] === last[n]) n--;
    if (n < 0) return true;
    if (!this.#readClfText(bytes.toString('latin1', from, to))) {
      last[0] = 0; // `at` may have changed
      return false;
    }
    bytes.copy(last, 0, from, to);
    return true;
  }

  /** Any of the formats. */
  read(value: unknown): boolean {
    if (typeof value === 'number') return this.#readUnix(value);
    if (typeof value !== 'string') return false;
    const text = value.trim();
    if (UNIX.test(text)) return this.#readUnix(Number(text));
    this.#last[0] = 0;
    return this.#readIso(text) || this.#readClfText(text);
  }

  #readUnix(value: number): boolean {
    if (!(value >= 0)) return false;
    const [, unitMs] = UNIX_UNITS.find(([below]) => value < below) ?? [0, Number.NaN];
    return this.#set(value * unitMs, 0);
  }

  #readIso(text: string): boolean {
    const [match, year, month, day, hour, minute, second, fraction = '', utc, sign, zh, zm] =
      ISO.exec(text) ?? [];
    if (match === undefined) return false;
    const known = utc ? 0 : this.#defaultZone;
    const zone = sign === undefined ? known : zoneMinutesOf(sign, zh, zm);
    const ms = Number(`0.${fraction}0`) * 1000;
    return this.#setCivil(year, Number(month) - 1, day, hour, minute, second, ms, zone);
  }

  #readClfText(text: string): boolean {
    const [match, day, month, year, hour, minute, second, sign, zh, zm] = CLF.exec(text) ?? [];
    if (match === undefined) return false;
    const zone = zoneMinutesOf(sign, zh, zm);
    return this.#setCivil(year, MONTHS.indexOf(month), day, hour, minute, second, 0, zone);
  }

  #setCivil(
    year: string,
    month: number,
    day: string,
    hour: string,
    minute: string,
    second: string,
    ms: number,
    zone: number,
  ): boolean {
    const date = Number(day);
    const isValid = month >= 0 && month < 12 && date >= 1 && date <= 31;
    // A leap second is 60.
    if (!isValid || Number(hour) > 23 || Number(minute) > 59 || Number(second) > 60) return false;
    const local = Date.UTC(Number(year), month, date, Number(hour), Number(minute), Number(second));
    return this.#set(local + ms - zone * 60_000, zone);
  }

  #set(at: Millis, zoneMinutes: number): boolean {
    if (!(at >= 0 && at <= MAX_TIME)) return false;
    this.at = at;
    this.zoneMinutes = zoneMinutes;
    return true;
  }
}

/** The last time that `Date` can print, less a day for zones. */
const MAX_TIME: Millis = 8.64e15 - 86_400_000;
