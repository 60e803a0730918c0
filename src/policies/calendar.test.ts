import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { OptionReader } from '../core/options.ts';
import { periodEnd, periodStart } from './calendar.ts';
import { readPeriod } from './quota-period.ts';

const HOUR = 3_600_000;

/** The ends of `count` periods from an instant on, in UTC. */
function endsFrom(options: Record<string, unknown>, from: string, count: number): string[] {
  const { period, zone } = readPeriod(new OptionReader('quota', options))();
  const ends: string[] = [];
  let at = Date.parse(from);
  for (let n = 0; n < count; n++) {
    const end = periodEnd(period, zone, at);
    expect(end).toBeGreaterThan(at);
    // The whole period has this end and this start, whichever instant is asked for.
    const start = periodStart(period, zone, at);
    for (const inside of [start, (start + end) / 2, end - 1, end - 0.25]) {
      expect(periodEnd(period, zone, inside)).toBe(end);
      expect(periodStart(period, zone, inside)).toBe(start);
    }
    ends.push(new Date(end).toISOString().replace(/:00\.000Z$/, 'Z'));
    at = end;
  }
  return ends;
}

type Row = readonly [what: string, options: Record<string, unknown>, from: string, ends: string[]];

const DAYS: readonly Row[] = [
  [
    'UTC: midnight, also over a leap day',
    { per: 'day' },
    '2024-02-28T12:00Z',
    ['2024-02-29T00:00Z', '2024-03-01T00:00Z'],
  ],
  [
    'Berlin: a day of 23 hours in March',
    { per: 'day', timeZone: 'Europe/Berlin' },
    '2026-03-28T12:00Z',
    ['2026-03-28T23:00Z', '2026-03-29T22:00Z', '2026-03-30T22:00Z'],
  ],
  [
    'Berlin: a day of 25 hours in October',
    { per: 'day', timeZone: 'Europe/Berlin' },
    '2026-10-24T12:00Z',
    ['2026-10-24T22:00Z', '2026-10-25T23:00Z', '2026-10-26T23:00Z'],
  ],
  [
    'New York: 23 and 25 hours',
    { per: 'day', timeZone: 'America/New_York' },
    '2026-03-08T06:00Z',
    ['2026-03-09T04:00Z', '2026-03-10T04:00Z'],
  ],
  [
    'New York: the day on which clocks go back',
    { per: 'day', timeZone: 'America/New_York' },
    '2026-11-01T04:00Z',
    ['2026-11-02T05:00Z', '2026-11-03T05:00Z'],
  ],
  [
    'Kathmandu: an offset of 5:45',
    { per: 'day', timeZone: 'Asia/Kathmandu' },
    '2026-01-01T00:00Z',
    ['2026-01-01T18:15Z', '2026-01-02T18:15Z'],
  ],
  [
    'Lord Howe: 23.5 hours, then 24.5 hours',
    { per: 'day', timeZone: 'Australia/Lord_Howe' },
    '2026-10-03T13:30Z',
    ['2026-10-04T13:00Z', '2026-10-05T13:00Z'],
  ],
  [
    'Lord Howe: the day on which clocks go back by 30 minutes',
    { per: 'day', timeZone: 'Australia/Lord_Howe' },
    '2026-04-04T13:00Z',
    ['2026-04-05T13:30Z', '2026-04-06T13:30Z'],
  ],
  [
    'Sao Paulo 2018: midnight does not exist, the day begins at 01:00',
    { per: 'day', timeZone: 'America/Sao_Paulo' },
    '2018-11-03T12:00Z',
    ['2018-11-04T03:00Z', '2018-11-05T02:00Z'],
  ],
  [
    'Sao Paulo 2019: clocks go back at midnight, the day has 25 hours',
    { per: 'day', timeZone: 'America/Sao_Paulo' },
    '2019-02-16T12:00Z',
    ['2019-02-17T03:00Z', '2019-02-18T03:00Z'],
  ],
  [
    'Sao Paulo since 2019: no summer time',
    { per: 'day', timeZone: 'America/Sao_Paulo' },
    '2019-11-02T12:00Z',
    ['2019-11-03T03:00Z', '2019-11-04T03:00Z'],
  ],
  [
    'Apia: 2011-12-30 is skipped and has no period',
    { per: 'day', timeZone: 'Pacific/Apia' },
    '2011-12-29T12:00Z',
    ['2011-12-30T10:00Z', '2011-12-31T10:00Z'],
  ],
  [
    'Cairo: midnight does not exist in April',
    { per: 'day', timeZone: 'Africa/Cairo' },
    '2024-04-25T12:00Z',
    ['2024-04-25T22:00Z', '2024-04-26T21:00Z'],
  ],
  [
    'Asuncion 2023: midnight does not exist in October',
    { per: 'day', timeZone: 'America/Asuncion' },
    '2023-09-30T12:00Z',
    ['2023-10-01T04:00Z', '2023-10-02T03:00Z'],
  ],
  [
    'Havana: midnight comes twice and resets once',
    { per: 'day', timeZone: 'America/Havana' },
    '2026-10-31T12:00Z',
    ['2026-11-01T04:00Z', '2026-11-02T05:00Z'],
  ],
  [
    "St John's 2006: at 00:01 it is 23:01 again, and the day does not begin again",
    { per: 'day', timeZone: 'America/St_Johns' },
    '2006-10-28T12:00Z',
    ['2006-10-29T02:30Z', '2006-10-30T03:30Z'],
  ],
  [
    "St John's 2006: a key that begins when it is 23:15 for the second time has the day that began before",
    { per: 'day', timeZone: 'America/St_Johns' },
    '2006-10-29T02:45Z',
    ['2006-10-30T03:30Z'],
  ],
];

const SHORT: readonly Row[] = [
  [
    'Berlin: each of the repeated hours is a period',
    { per: 'hour', timeZone: 'Europe/Berlin' },
    '2026-10-24T23:30Z',
    ['2026-10-25T00:00Z', '2026-10-25T01:00Z', '2026-10-25T02:00Z', '2026-10-25T03:00Z'],
  ],
  [
    'Berlin: the skipped hour has no period',
    { per: 'hour', timeZone: 'Europe/Berlin' },
    '2026-03-29T00:30Z',
    ['2026-03-29T01:00Z', '2026-03-29T02:00Z'],
  ],
  [
    'Kathmandu: hours begin at 15 minutes past in UTC',
    { per: 'hour', timeZone: 'Asia/Kathmandu' },
    '2026-01-01T00:00Z',
    ['2026-01-01T00:15Z', '2026-01-01T01:15Z'],
  ],
  [
    'Lord Howe: the hour that clocks go back by 30 minutes has 90',
    { per: 'hour', timeZone: 'Australia/Lord_Howe' },
    '2026-04-04T14:00Z',
    ['2026-04-04T15:30Z', '2026-04-04T16:30Z'],
  ],
  [
    'Lord Howe: the hour of which the first half is skipped has 30 minutes',
    { per: 'hour', timeZone: 'Australia/Lord_Howe' },
    '2026-10-03T14:30Z',
    ['2026-10-03T15:30Z', '2026-10-03T16:00Z', '2026-10-03T17:00Z'],
  ],
  [
    'minutes go on in a repeated hour',
    { per: 'minute', timeZone: 'Europe/Berlin' },
    '2026-10-25T00:58:30Z',
    ['2026-10-25T00:59Z', '2026-10-25T01:00Z', '2026-10-25T01:01Z'],
  ],
  [
    '15 minutes are aligned to the hour',
    { per: '15m' },
    '2026-01-01T10:07Z',
    ['2026-01-01T10:15Z', '2026-01-01T10:30Z'],
  ],
  [
    'six hours: on the day of the change the first quarter has 5 hours',
    { per: '6h', timeZone: 'Europe/Berlin' },
    '2026-03-28T23:00Z',
    ['2026-03-29T04:00Z', '2026-03-29T10:00Z'],
  ],
  [
    '15 minutes with an anchor',
    { per: '15m', anchor: '2026-01-01T00:05' },
    '2026-01-01T10:07Z',
    ['2026-01-01T10:20Z', '2026-01-01T10:35Z'],
  ],
];

const LONG: readonly Row[] = [
  [
    'weeks begin on Monday',
    { per: 'week' },
    '2026-11-18T12:00Z',
    ['2026-11-23T00:00Z', '2026-11-30T00:00Z'],
  ],
  [
    'weeks that begin on Sunday, in local time',
    { per: 'week', weekStartsOn: 'sunday', timeZone: 'America/New_York' },
    '2026-10-28T12:00Z',
    ['2026-11-01T04:00Z', '2026-11-08T05:00Z'],
  ],
  [
    'weeks with an anchor',
    { per: 'week', anchor: '2026-11-18T06:00' },
    '2026-11-16T12:00Z',
    ['2026-11-18T06:00Z', '2026-11-25T06:00Z'],
  ],
  [
    'months of 28 to 31 days',
    { per: 'month' },
    '2026-01-15T00:00Z',
    ['2026-02-01T00:00Z', '2026-03-01T00:00Z', '2026-04-01T00:00Z', '2026-05-01T00:00Z'],
  ],
  [
    'months in Berlin, over both changes',
    { per: 'month', timeZone: 'Europe/Berlin' },
    '2026-03-15T00:00Z',
    ['2026-03-31T22:00Z', '2026-04-30T22:00Z'],
  ],
  [
    'an anchor on the 31st: shorter months begin on their last day',
    { per: 'month', anchor: 31 },
    '2026-01-30T00:00Z',
    ['2026-01-31T00:00Z', '2026-02-28T00:00Z', '2026-03-31T00:00Z', '2026-04-30T00:00Z'],
  ],
  [
    'an anchor on the 31st in a leap year',
    { per: 'month', anchor: 31 },
    '2028-02-01T00:00Z',
    ['2028-02-29T00:00Z', '2028-03-31T00:00Z'],
  ],
  [
    'a billing date with a time of day, in local time',
    { per: 'month', anchor: '2025-08-31T06:30', timeZone: 'Europe/Berlin' },
    '2026-02-01T00:00Z',
    ['2026-02-28T05:30Z', '2026-03-31T04:30Z', '2026-04-30T04:30Z'],
  ],
  [
    'a billing date that is an instant: 23:30 UTC is the 1st in Berlin',
    { per: 'month', anchor: '2026-01-31T23:30Z', timeZone: 'Europe/Berlin' },
    '2026-02-10T00:00Z',
    ['2026-02-28T23:30Z', '2026-03-31T22:30Z'],
  ],
  [
    'an anchor with an offset',
    { per: 'day', anchor: '2026-01-01T08:00+02:00' },
    '2026-05-01T00:00Z',
    ['2026-05-01T06:00Z', '2026-05-02T06:00Z'],
  ],
  [
    'years, also over a century that is no leap year',
    { per: 'year' },
    '2099-06-01T00:00Z',
    ['2100-01-01T00:00Z', '2101-01-01T00:00Z'],
  ],
  [
    'a fiscal year from April',
    { per: 'year', anchor: '2020-04-06' },
    '2026-04-05T23:00Z',
    ['2026-04-06T00:00Z', '2027-04-06T00:00Z'],
  ],
  [
    'a year from 29 February',
    { per: 'year', anchor: '2024-02-29' },
    '2026-01-01T00:00Z',
    ['2026-02-28T00:00Z', '2027-02-28T00:00Z', '2028-02-29T00:00Z'],
  ],
  [
    'before 1970',
    { per: 'month' },
    '1900-02-15T00:00Z',
    ['1900-03-01T00:00Z', '1900-04-01T00:00Z'],
  ],
];

describe('calendar', () => {
  test.each([...DAYS, ...SHORT, ...LONG])('%s', (_, options, from, ends) => {
    expect(endsFrom(options, from, ends.length)).toEqual(ends);
  });

  test('any time zone, any day from 2000 to 2059: a day ends where the date of Intl changes', () => {
    const zones = fc.constantFrom(...Intl.supportedValuesOf('timeZone'));
    const days = fc.integer({ min: Date.UTC(2000, 0, 3), max: Date.UTC(2059, 11, 1) });
    fc.assert(
      fc.property(zones, fc.array(days, { minLength: 20, maxLength: 20 }), (timeZone, instants) => {
        const { period, zone } = readPeriod(new OptionReader('quota', { per: 'day', timeZone }))();
        const format = new Intl.DateTimeFormat('sv', { timeZone, dateStyle: 'short' });
        // Around each change as well.
        const changes = zone.starts.filter((start) => start > instants[0]).slice(0, 4);
        for (const at of [...instants, ...changes, ...changes.map((start) => start - HOUR)]) {
          const end = periodEnd(period, zone, at);
          expect(format.format(end) > format.format(at)).toBe(true);
          expect(format.format(end) > format.format(end - 1)).toBe(true);
          expect(end - at).toBeLessThanOrEqual(26 * HOUR);
        }
      }),
      { numRuns: 40 },
    );
  });
});
