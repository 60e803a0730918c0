import { expect, test, vi } from 'vitest';
import { quota } from './quota.ts';
import { timeZoneOf } from './time-zone.ts';

const DAY_MS = 86_400_000;
const FIRST = Date.UTC(2000, 0, 1, 12);
const LAST = Date.UTC(2059, 11, 31);

/** Days on which the table has another offset than the runtime. */
function wrongDays(name: string): string[] {
  const zone = timeZoneOf(name);
  if (!zone) throw new Error(`${name} is unknown`);
  const format = new Intl.DateTimeFormat('en-US', {
    timeZone: name,
    hourCycle: 'h23',
    dateStyle: 'short',
    timeStyle: 'medium',
  });
  const days: string[] = [];
  let n = 0;
  for (let at = FIRST; at < LAST; at += DAY_MS) {
    while (zone.starts[n + 1] <= at) n++;
    const [month, day, , hour, minute, second] = (format.format(at).match(/\d+/g) ?? []).map(
      Number,
    );
    const local = new Date(at + zone.offsets[n]);
    const given = [local.getUTCMonth() + 1, local.getUTCDate(), local.getUTCHours()];
    const isSame = [month, day, hour].every((part, field) => part === given[field]);
    if (!isSame || minute !== local.getUTCMinutes() || second !== 0)
      days.push(new Date(at).toISOString());
  }
  return days;
}

test.each([
  'Europe/Berlin',
  'America/Sao_Paulo',
  'Australia/Lord_Howe',
  'Africa/Casablanca', // summer time pauses in Ramadan
  'Africa/El_Aaiun',
  'Asia/Gaza', // summer time of a week before Ramadan
  'Pacific/Apia', // skipped a day
])('%s: has the offsets of the runtime on every day', (name) => {
  expect(wrongDays(name)).toEqual([]);
});

test('time zone: creating a quota reads the zone, and a check of any period reads nothing', () => {
  const format = vi.spyOn(
    Intl.DateTimeFormat.prototype as { readonly format: unknown },
    'format',
    'get',
  );
  const policy = quota({ limit: 5, per: 'day', timeZone: 'Pacific/Chatham' });
  expect(format.mock.calls.length).toBeGreaterThan(0);
  format.mockClear();
  const state = new Float64Array(policy.width);
  policy.init(state, 0, 0);
  for (let at = 0; at < 4e12; at += 86_400_000 * 11) policy.check(state, 0, 1, at);
  quota({ limit: 9, per: 'month', timeZone: 'Pacific/Chatham' });
  expect(format).not.toHaveBeenCalled();
  format.mockRestore();
});
