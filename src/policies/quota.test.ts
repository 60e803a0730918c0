import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { runScenarios, type Scenario } from '../../test/support/scenario.ts';
import { ConfigError } from '../core/errors.ts';
import { seededRandom } from '../core/random.ts';
import { converterBetween, type Policy } from './policy.ts';
import { type QuotaOptions, quota } from './quota.ts';

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const at = (iso: string): number => Date.parse(iso);

const TEN_A_DAY = { quota: { limit: 10, per: 'day' } } as const;

const scenarios: Record<string, Scenario> = {
  'quota: ten a day, all again at midnight': {
    limit: TEN_A_DAY,
    rows: [
      [at('2026-05-04T09:00Z'), 'check 4', 'allow, 6 left'],
      [at('2026-05-04T10:00Z'), 'check 7', `deny, retry in ${14 * HOUR}`],
      [at('2026-05-04T23:59:59.999Z'), 'check 6', 'allow, 0 left'],
      [at('2026-05-04T23:59:59.999Z'), 'check 1', 'deny, retry in 1'],
      [at('2026-05-05T00:00Z'), 'check 10', 'allow, 0 left'],
      [at('2026-05-09T00:00Z'), 'check 10', 'allow, 0 left'],
    ],
  },

  'quota: a month in Berlin ends at local midnight, an hour earlier in summer': {
    limit: { quota: { limit: 3, per: 'month', timeZone: 'Europe/Berlin' } },
    rows: [
      [at('2026-03-31T21:00Z'), 'check 3', 'allow, 0 left'],
      [at('2026-03-31T21:00Z'), 'check 1', `deny, retry in ${HOUR}`],
      [at('2026-03-31T22:00Z'), 'check 3', 'allow, 0 left'],
    ],
  },

  'quota: time that goes backwards does not open a period again': {
    limit: TEN_A_DAY,
    rows: [
      [at('2026-05-04T23:00Z'), 'check 10', 'allow, 0 left'],
      [at('2026-05-05T00:00Z'), 'check 8', 'allow, 2 left'],
      [at('2026-05-04T23:30Z'), 'check 3', `deny, retry in ${24.5 * HOUR}`],
      [at('2026-05-04T23:30Z'), 'check 2', 'allow, 0 left'],
      [at('2026-05-01T00:00Z'), 'check 1', `deny, retry in ${5 * DAY}`],
      [at('2026-05-05T12:00Z'), 'check 1', `deny, retry in ${12 * HOUR}`],
      [at('2026-05-06T00:00Z'), 'check 1', 'allow, 9 left'],
    ],
  },

  'quota: a cost above the limit never fits, and a cost of 0 always does': {
    limit: TEN_A_DAY,
    rows: [
      [at('2026-05-04T09:00Z'), 'check 11', 'deny, never'],
      [at('2026-05-04T09:00Z'), 'check 10', 'allow, 0 left'],
      [at('2026-05-04T09:00Z'), 'check 0', 'allow, 0 left'],
    ],
  },

  'quota: what was not used is returned within its period, and dropped after it': {
    limit: TEN_A_DAY,
    rows: [
      [at('2026-05-04T09:00Z'), 'check 10', 'allow, 0 left'],
      [at('2026-05-04T10:00Z'), `giveBack 4 due ${at('2026-05-04T09:00Z')}`],
      [at('2026-05-04T10:00Z'), 'check 4', 'allow, 0 left'],
      [at('2026-05-05T10:00Z'), 'check 10', 'allow, 0 left'],
      [at('2026-05-05T10:00Z'), `giveBack 4 due ${at('2026-05-04T10:00Z')}`],
      [at('2026-05-05T10:00Z'), 'check 1', `deny, retry in ${14 * HOUR}`],
    ],
  },

  'quota: use beyond the cost and hits elsewhere count up to the end of the period': {
    limit: TEN_A_DAY,
    rows: [
      [at('2026-05-04T09:00Z'), 'check 1', 'allow, 9 left'],
      [at('2026-05-04T09:00Z'), 'done ok cost 1 used 7'],
      [at('2026-05-04T09:00Z'), 'peek', 'remaining 3'],
      [at('2026-05-04T09:00Z'), 'update 5', 'applied'],
      [at('2026-05-04T09:00Z'), 'peek', 'remaining -2'],
      [at('2026-05-04T09:00Z'), 'check 1', `deny, retry in ${15 * HOUR}`],
      [at('2026-05-05T00:00Z'), 'peek', 'remaining 10'],
    ],
  },

  'quota: takes what is left': {
    limit: TEN_A_DAY,
    rows: [
      [at('2026-05-04T09:00Z'), 'takeUpTo 7', 'got 7'],
      [at('2026-05-04T09:00Z'), 'takeUpTo 7', 'got 3'],
      [at('2026-05-04T09:00Z'), 'takeUpTo all', 'got 0'],
    ],
  },

  'quota: within all, a refused call is not charged': {
    limit: { all: [{ quota: { limit: 3, per: 'day' } }, { bucket: { rate: '1/h', burst: 2 } }] },
    rows: [
      [at('2026-05-04T09:00Z'), 'check 2', 'allow, 0 left'],
      [at('2026-05-04T09:00Z'), 'check 1', `deny, retry in ${HOUR}`],
      [at('2026-05-04T11:00Z'), 'check 2', `deny, retry in ${13 * HOUR}`],
      [at('2026-05-04T11:00Z'), 'check 1', 'allow, 0 left'],
    ],
  },
};

runScenarios(scenarios);

const create = (options: unknown): Policy => quota(options as QuotaOptions);

describe('quota', () => {
  test('quota: the status tells the limit, the length of this period and its end', () => {
    const policy = create({ limit: 100, per: 'month', timeZone: 'Europe/Berlin' });
    const state = new Float64Array(policy.width);
    const now = at('2026-03-31T12:00Z');
    policy.init(state, 0, now);
    policy.check(state, 0, 30, now);
    expect(policy.ruleStatuses(state.slice(), 0, now)).toEqual([
      {
        kind: 'quota',
        quota: 100,
        windowMs: 31 * DAY - HOUR, // clocks went forward
        remaining: 70,
        freshInMs: 10 * HOUR,
        opensInMs: 0,
      },
    ]);
    expect(policy.keyState(state, 0, now)).toEqual({
      remaining: 70,
      resetsAt: at('2026-03-31T22:00Z'),
    });
  });

  test('quota: a new key tells the end of the period, too', () => {
    const policy = create({ limit: 100, per: 'day' });
    const state = new Float64Array(policy.width);
    policy.init(state, 0, 0);
    expect(policy.ruleStatuses(state, 0, HOUR)).toMatchObject([
      { remaining: 100, windowMs: DAY, freshInMs: 23 * HOUR, opensInMs: 0 },
    ]);
  });

  const conversions: readonly (readonly [string, unknown, unknown, string, number, string])[] = [
    ['a larger limit', { limit: 10, per: 'day' }, { limit: 20, per: 'day' }, 'T15:00Z', 12, 'day'],
    [
      'a day, then a month',
      { limit: 10, per: 'day' },
      { limit: 50, per: 'month' },
      'T15:00Z',
      42,
      'month',
    ],
    [
      'a month, then a day',
      { limit: 50, per: 'month' },
      { limit: 10, per: 'day' },
      'T15:00Z',
      2,
      'day',
    ],
    ['a smaller limit', { limit: 10, per: 'day' }, { limit: 5, per: 'day' }, 'T15:00Z', -3, 'day'],
  ];
  test.each(conversions)(
    'quota: %s: what was used stays used until the new period ends',
    (_, before, after, time, remaining, unit) => {
      const [from, to] = [create(before), create(after)];
      const [old, state] = [new Float64Array(from.width), new Float64Array(to.width)];
      const now = at(`2026-05-04${time}`);
      from.init(old, 0, now);
      from.check(old, 0, 8, now);
      converterBetween(from, to)?.(state, 0, old, 0, now);
      const resetsAt = at(unit === 'day' ? '2026-05-05T00:00Z' : '2026-06-01T00:00Z');
      expect(to.keyState(state, 0, now)).toEqual({ remaining, resetsAt });
      expect(to.freshAt(state, 0, false)).toBe(resetsAt);
      // The same without a converter: Redis keeps the numbers where they are.
      expect(to.check(old, 0, 0, now)).toMatchObject({ remaining: Math.max(0, remaining) });
      expect(to.keyState(old, 0, now)).toEqual({ remaining, resetsAt });
    },
  );

  test('quota: members of a pool have exactly the limit together in each period', () => {
    const traffic = fc.record({
      limit: fc.integer({ min: 1, max: 20 }),
      size: fc.integer({ min: 1, max: 7 }),
    });
    fc.assert(
      fc.property(traffic, ({ limit, size }) => {
        const whole = create({ limit, per: 'minute' });
        for (let minute = 0; minute < 10; minute++) {
          let taken = 0;
          for (let rank = 0; rank < size; rank++) {
            const member = whole.divide?.ofPool?.({ size, rank, since: -Infinity }, 0) as Policy;
            const state = new Float64Array(member.width);
            const now = minute * 60_000 + 5;
            member.init(state, 0, now);
            for (let n = 0; n < limit + 1; n++)
              if (member.check(state, 0, 1, now).verdict === 'allow') taken++;
          }
          expect(taken).toBe(limit);
        }
      }),
      { numRuns: 50 },
    );
  });

  test('quota: a member that has no part in this period is told the next one', () => {
    const { divide } = create({ limit: 1, per: 'minute' });
    const member = divide?.ofPool?.({ size: 2, rank: 0, since: 0 }, 0);
    const decisions = [0, 1].map((minute) => {
      const state = new Float64Array(3);
      member?.init(state, 0, minute * 60_000);
      return member?.check(state, 0, 1, minute * 60_000);
    });
    expect(decisions).toContainEqual({ verdict: 'allow', remaining: 0 });
    expect(decisions).toContainEqual({ verdict: 'deny', retryAfterMs: 60_000 });
  });

  test('quota: periods above an hour are not divided', () => {
    expect(create({ limit: 10, per: 'hour' }).divide).toBeDefined();
    expect(create({ limit: 10, per: '61m' }).divide).toBeUndefined();
    expect(create({ limit: 10, per: 'month' }).divide).toBeUndefined();
  });

  const invalid: readonly (readonly [Record<string, unknown>, string])[] = [
    [{ limit: 0, per: 'day' }, '`quota.limit` to be a whole number of at least 1, got 0'],
    [{ limit: 1 }, '`quota.per` to be one of second, minute, hour, day, week, month, year, or'],
    [{ limit: 1, per: 'mounth' }, 'got "mounth"; did you mean "month"?'],
    [{ limit: 1, per: '15' }, 'got "15"; did you mean "15s" or "15ms"?'],
    [{ limit: 1, per: 0.5 }, '`quota.per` to be one of'],
    [
      { limit: 1, per: 'day', timeZone: 'Berlin' },
      '`quota.timeZone` to be the name of a time zone, such as "Europe/Berlin" or "UTC", got "Berlin"',
    ],
    [{ limit: 1, per: 'day', timeZone: 1 }, '`quota.timeZone` to be the name of a time zone'],
    [
      { limit: 1, per: 'month', anchor: 32 },
      '`quota.anchor` to be a day of the month from 1 to 31, or a date such as "2026-01-31"',
    ],
    [{ limit: 1, per: 'day', anchor: 3 }, '`quota.anchor` to be a date such as "2026-01-31"'],
    [{ limit: 1, per: 'month', anchor: '2026-02-30' }, '`quota.anchor`'],
    [{ limit: 1, per: 'month', anchor: '2026-13-01' }, '`quota.anchor`'],
    [{ limit: 1, per: 'day', anchor: '2026-01-01T24:00' }, '`quota.anchor`'],
    [{ limit: 1, per: 'day', anchor: '2026-01-01T06:00+99:99' }, '`quota.anchor`'],
    [
      { limit: 1, per: 'day', weekStartsOn: 'monday' },
      '`quota.weekStartsOn` to be left out unless `per` is "week" and there is no `anchor`',
    ],
    [{ limit: 1, per: 'week', weekStartsOn: 'Monday' }, 'did you mean "monday"?'],
    [{ limit: 1, per: 'day', timezone: 'UTC' }, 'did you mean `timeZone`?'],
  ];
  test.each(invalid)('quota: %j is an error that names the option', (options, message) => {
    expect(() => create(options)).toThrow(ConfigError);
    expect(() => create(options)).toThrow(message);
  });

  test('quota: random use never exceeds the limit of a local day, whatever the zone', () => {
    const zones = fc.constantFrom(
      'Europe/Berlin',
      'America/Havana',
      'Pacific/Apia',
      'Africa/Cairo',
    );
    fc.assert(
      fc.property(zones, fc.integer({ min: 1, max: 1e6 }), (timeZone, seed) => {
        const policy = create({ limit: 5, per: 'day', timeZone });
        const format = new Intl.DateTimeFormat('sv', { timeZone, dateStyle: 'short' });
        const random = seededRandom(seed);
        const state = new Float64Array(policy.width);
        let now = at('2011-10-25T00:00Z') + random() * 300 * DAY;
        policy.init(state, 0, now);
        const perDay = new Map<string, number>();
        for (let n = 0; n < 100; n++) {
          now += random() * 5 * HOUR;
          if (policy.check(state, 0, 1, now).verdict !== 'allow') continue;
          const day = format.format(now);
          perDay.set(day, (perDay.get(day) ?? 0) + 1);
        }
        expect(Math.max(...perDay.values())).toBeLessThanOrEqual(5);
      }),
      { numRuns: 100 },
    );
  });
});
