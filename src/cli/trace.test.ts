import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { sluice } from '../../test/support/terminal.ts';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'sluice-trace-'));
});
afterAll(() => rmSync(folder, { recursive: true }));

/** Writes a trace file and runs it. */
function trace(content: unknown, ...flags: string[]) {
  const file = join(folder, 'trace.json');
  writeFileSync(file, typeof content === 'string' ? content : JSON.stringify(content));
  return sluice('trace', file, ...flags);
}

const linesOf = (content: unknown): unknown[] => {
  const { code, out, err } = trace(content, '--json');
  expect({ code, err }).toEqual({ code: 0, err: '' });
  return out.split('\n').map((line) => JSON.parse(line));
};

const ramp = { min: 10, max: 110, over: '10s', mode: 'only-if-used', threshold: 100 };

describe('sluice trace', () => {
  test('lockout: failures lock, and a success of the attempt that locked opens again', () => {
    const limit = { lockout: { after: 2, lock: '1m' } };
    const calls = [
      { at: 0, check: 1, id: 'a' },
      { at: 0, settle: { id: 'a', attempt: 'failure' } },
      { at: 10, check: 1, id: 'b' },
      { at: 20, check: 1 },
      { at: 30, settle: { id: 'b', attempt: 'success' } },
    ];
    expect(linesOf({ limit, calls })).toMatchObject([
      { verdict: 'allow', remaining: 1 },
      { remaining: 1 },
      { verdict: 'allow', remaining: 0 },
      { verdict: 'deny', retryAfterMs: 59_990 },
      { remaining: 2 },
    ]);
  });

  test('ramp: a member of a pool of two takes its part and gives some back', () => {
    const calls = [
      { at: 0, update: { poolSize: 2 } },
      { at: 0, takeUpTo: 7 },
      { at: 0, giveBack: 2 },
      { at: 1000, takeUpTo: 'all' },
      { at: 2000, takeUpTo: 'all' },
      { at: 2000, takeUpTo: 'all' },
    ];
    expect(linesOf({ limit: { ramp }, calls })).toEqual([
      { at: 0, remaining: 5, level: 10 },
      { at: 0, verdict: 'allow', granted: 5, remaining: 0, level: 10 },
      { at: 0, remaining: 2, level: 10 },
      { at: 1000, verdict: 'allow', granted: 5, remaining: 0, level: 10 }, // 3 of 5 were used
      { at: 2000, verdict: 'allow', granted: 10, remaining: 0, level: 20 },
      { at: 2000, verdict: 'deny', granted: 0, remaining: 0, retryAfterMs: 1000, level: 20 },
    ]);
  });

  test('ramp: without a rank a part is rounded down; with a rank the remainder rotates', () => {
    const scheduled = { ramp: { ...ramp, mode: 'scheduled' } };
    const calls = [0, 1000, 2000].map((at) => ({ at, takeUpTo: 'all' }));
    const granted = (update: object) =>
      linesOf({ limit: scheduled, calls: [{ at: 0, update }, ...calls] })
        .slice(1)
        .map((line) => (line as Granted).granted);
    expect(granted({ poolSize: 3 })).toEqual([3, 6, 10]);
    const ranks = [0, 1, 2].map((rank) => granted({ poolSize: 3, rank }));
    expect(ranks.map((parts) => parts[0])).toEqual([4, 3, 3]);
    const sums = [0, 1, 2].map((n) => ranks.reduce((sum, parts) => sum + parts[n], 0));
    expect(sums).toEqual([10, 20, 30]);
  });

  test('ramp: the pool size may change during the trace', () => {
    const calls = [
      { at: 0, takeUpTo: 'all' },
      { at: 1000, update: { poolSize: 4 } },
      { at: 1000, takeUpTo: 'all' },
    ];
    expect(linesOf({ limit: { ramp }, calls })).toEqual([
      { at: 0, verdict: 'allow', granted: 10, remaining: 0, level: 10 },
      { at: 1000, remaining: 5, level: 20 },
      { at: 1000, verdict: 'allow', granted: 5, remaining: 0, level: 20 },
    ]);
  });

  test('bucket: hits served elsewhere become debt', () => {
    const calls = [
      { at: 100, check: 10 },
      { at: 5100, update: { hits: 8 } },
      { at: 5200, check: 1 },
      { at: 9100, check: 1 },
      { at: 9100, check: 11 },
    ];
    expect(linesOf({ limit: { bucket: { rate: 1, burst: 10 } }, calls })).toEqual([
      { at: 100, verdict: 'allow', granted: 10, remaining: 0 },
      { at: 5100, remaining: -3 },
      { at: 5200, verdict: 'deny', granted: 0, remaining: -3, retryAfterMs: 3900 },
      { at: 9100, verdict: 'allow', granted: 1, remaining: 0 },
      { at: 9100, verdict: 'deny', granted: 0, remaining: 0, retryAfterMs: null },
    ]);
  });

  test('spacing: a reservation is made, returned, and another one expires', () => {
    const limit = { spacing: { every: '6s', reserve: 2, expire: '1s' } };
    const calls = [
      { at: 0, check: 1 },
      { at: 1000, check: 1, id: 'a' },
      { at: 1000, check: 1, id: 'b' },
      { at: 1000, check: 1 },
      { at: 1500, takeUpTo: 1 }, // takes nothing and makes no reservation
      { at: 2000, settle: { id: 'b', outcome: 'ignored' } },
      { at: 2000, check: 1 },
      { at: 7200, settle: { id: 'a', rttMs: 100 } },
    ];
    expect(linesOf({ limit, calls })).toEqual([
      { at: 0, verdict: 'allow', granted: 1, remaining: 0 },
      { at: 1000, verdict: 'wait', granted: 1, remaining: 0, waitMs: 5000 },
      { at: 1000, verdict: 'wait', granted: 1, remaining: 0, waitMs: 11000 },
      { at: 1000, verdict: 'deny', granted: 0, remaining: 0, retryAfterMs: 5000 },
      { at: 1500, verdict: 'deny', granted: 0, remaining: 0, retryAfterMs: 4500 },
      { at: 2000, remaining: 0 },
      { at: 2000, verdict: 'wait', granted: 1, remaining: 0, waitMs: 10000 },
      { at: 7200, verdict: 'expired', remaining: 0 },
    ]);
  });

  test('adaptive: learns from settled calls', () => {
    const calls = [
      { at: 0, check: 1, id: 1 },
      { at: 0, check: 1, id: 2 },
      { at: 1000, settle: { id: 1, rttMs: 1000 } },
      { at: 1000, settle: { id: 2 } }, // denied: nothing to settle
      { at: 1000, check: 1, id: 3 },
      { at: 2000, settle: { id: 3, rttMs: 1000, outcome: 'ok' } },
      { at: 2000, check: 2, id: 4 },
      { at: 3000, settle: { id: 4, rttMs: 1000, outcome: 'busy' } },
    ];
    expect(linesOf({ limit: { adaptive: { rule: 'aimd' } }, calls })).toEqual([
      { at: 0, verdict: 'allow', granted: 1, remaining: 0, limit: 1 },
      { at: 0, verdict: 'deny', granted: 0, remaining: 0, retryAfterMs: 0, limit: 1 },
      { at: 1000, remaining: 1, limit: 1 },
      { at: 1000, remaining: 1, limit: 1 },
      { at: 1000, verdict: 'allow', granted: 1, remaining: 0, limit: 1 },
      { at: 2000, remaining: 2, limit: 2 },
      { at: 2000, verdict: 'allow', granted: 2, remaining: 0, limit: 2 },
      { at: 3000, remaining: 1, limit: 1 },
    ]);
  });

  test('all: busy replies halve the rate, and the strictest part decides', () => {
    const limit = { all: [{ busy: {} }, { bucket: { rate: 100, burst: 100 } }] };
    const calls = [
      { at: 0, takeUpTo: 'all', id: 'x' },
      { at: 900, settle: { id: 'x', outcome: 'busy' } },
      { at: 1000, takeUpTo: 'all' },
    ];
    expect(linesOf({ limit, calls })).toEqual([
      { at: 0, verdict: 'allow', granted: 100, remaining: 0, limit: 9_999_999 },
      { at: 900, remaining: 50, limit: 50 },
      { at: 1000, verdict: 'allow', granted: 50, remaining: 0, limit: 50 },
    ]);
  });

  test('spacing: an expired permit is lost and delays no other call', () => {
    const limit = { all: [{ spacing: { every: 100, expire: 50 } }, { concurrency: 1 }] };
    const calls = [
      { at: 0, check: 1, id: 'late' },
      { at: 300, settle: { id: 'late', rttMs: 10 } },
      { at: 300, check: 1, id: 'next' },
    ];
    expect(linesOf({ limit, calls })).toEqual([
      { at: 0, verdict: 'allow', granted: 1, remaining: 0, limit: 1 },
      { at: 300, verdict: 'expired', remaining: 1, limit: 1 },
      { at: 300, verdict: 'allow', granted: 1, remaining: 0, limit: 1 },
    ]);
  });

  test('prints large numbers in full', () => {
    const calls = [{ at: 0, check: 1 }];
    const limit = { bucket: { rate: 1, burst: 320_033_089_549 } };
    expect(linesOf({ limit, calls })).toEqual([
      { at: 0, verdict: 'allow', granted: 1, remaining: 320_033_089_548 },
    ]);
  });

  test('prints a row for each call of a long trace', () => {
    const calls = Array.from({ length: 150_000 }, (_, at) => ({ at, check: 0 }));
    const { code, out } = trace({ limit: { bucket: { rate: 1 } }, calls });
    expect(code).toBe(0);
    expect(out.split('\n').length).toBe(150_001);
  });

  test('prints a table without --json', () => {
    const calls = [
      { at: 0, check: 2 },
      { at: 5, check: 2 },
      { at: 5, check: 9 },
    ];
    const { out } = trace({ limit: { bucket: { rate: '10/s', burst: 3 } }, calls });
    expect(out.split('\n')).toEqual([
      'at ms  call     decision',
      '    0  check 2  allow 2 · 1 left',
      '    5  check 2  deny · retry in 95 ms · 1 left',
      '    5  check 9  deny · never · 1 left',
    ]);
  });

  test('an invalid operation is an error that names its field', () => {
    const limit = { bucket: { rate: 1, burst: 10 } };
    const errorOf = (call: object) => trace({ limit, calls: [{ at: 0, ...call }] }).err;
    expect(errorOf({ check: -1 })).toMatch(/`calls\[0\]\.check` to be a number of at least 0/);
    expect(errorOf({ takeUpTo: 0.5 })).toMatch(/`calls\[0\]\.takeUpTo` to be a whole number/);
    expect(errorOf({ update: 1 })).toMatch(
      /`calls\[0\]\.update` to be an object with hits or poolSize/,
    );
    for (const call of [{ take: 1 }, { check: 1, giveBack: 1 }])
      expect(errorOf(call)).toMatch(/exactly one of check, takeUpTo/);
  });

  const bucket = { bucket: { rate: 1 } };
  test.each([
    ['not JSON', '{"limit":', /^sluice trace: .*trace\.json is not JSON: /],
    ['a list', [], /: expected an object with a limit and calls, got \[\]$/],
    ['no limit', { calls: [] }, /`limit` to be an object with one key out of bucket, spacing/],
    [
      'two limits',
      { limit: { bucket: {}, busy: {} }, calls: [] },
      /`limit` to be an object with one key/,
    ],
    [
      'a bad field',
      { limit: { ramp: { min: 20, max: 10, over: '1s' } }, calls: [] },
      /`limit\.ramp\.min` to be at most `max` \(min 20 exceeds max 10\), got 20/,
    ],
    [
      'an unknown mode',
      { limit: { ramp: { ...ramp, mode: 'wild' } }, calls: [] },
      /`limit\.ramp\.mode` to be one of scheduled, .* got "wild"/,
    ],
    [
      'a bad part',
      { limit: { all: [bucket, { spacing: {} }] }, calls: [] },
      /`limit\.all\[1\]\.spacing\.every`/,
    ],
    ['no calls', { limit: bucket }, /`calls` to be a list of calls, got undefined/],
    ['a call that is none', { limit: bucket, calls: [5] }, /`calls\[0\]` to be an object, got 5/],
    [
      'no time',
      { limit: bucket, calls: [{ check: 1 }] },
      /`calls\[0\]\.at` to be a number of at least 0, got undefined/,
    ],
    [
      'time running back',
      {
        limit: bucket,
        calls: [
          { at: 5, check: 1 },
          { at: 4, check: 1 },
        ],
      },
      /`calls\[1\]\.at` to be a number of at least 5, got 4/,
    ],
    [
      'no verb',
      { limit: bucket, calls: [{ at: 5 }] },
      /`calls\[0\]` to be a call with exactly one of check, takeUpTo/,
    ],
    [
      'two verbs',
      { limit: bucket, calls: [{ at: 5, check: 1, giveBack: 1 }] },
      /exactly one of check, takeUpTo/,
    ],
    [
      'a stray field',
      { limit: bucket, calls: [{ at: 5, check: 1, cost: 1 }] },
      /`calls\[0\]\.cost`/,
    ],
    ['a stray field above', { limit: bucket, calls: [], seed: 1 }, /`seed` to be one of/],
    [
      'a negative check',
      { limit: bucket, calls: [{ at: 5, check: -1 }] },
      /`calls\[0\]\.check` to be a number of at least 0, got -1/,
    ],
    [
      'half a token',
      { limit: bucket, calls: [{ at: 5, takeUpTo: 0.5 }] },
      /`calls\[0\]\.takeUpTo` to be a whole number of at least 0, or "all"/,
    ],
    [
      'an unknown id',
      { limit: bucket, calls: [{ at: 5, settle: { id: 9 } }] },
      /`calls\[0\]\.settle\.id` to be the id of an earlier call/,
    ],
    [
      'an unknown outcome',
      {
        limit: bucket,
        calls: [
          { at: 5, check: 1, id: 9 },
          { at: 5, settle: { id: 9, outcome: 'fine' } },
        ],
      },
      /`calls\[1\]\.settle\.outcome` to be one of ok, busy/,
    ],
    [
      'an id that is in use',
      {
        limit: bucket,
        calls: [
          { at: 5, check: 1, id: 9 },
          { at: 5, check: 1, id: 9 },
        ],
      },
      /`calls\[1\]\.id` to be a string or number that no unsettled call has, got 9/,
    ],
    [
      'an id of another type',
      { limit: bucket, calls: [{ at: 5, check: 1, id: {} }] },
      /`calls\[0\]\.id` to be a string or number that no unsettled call has, got \{\}/,
    ],
    [
      'a name that would break the line',
      { limit: { bucket: { rate: 1, 'a\nb': 1 } }, calls: [] },
      /`limit\.bucket\["a\\nb"\]` to be one of rate, burst, maxDebt/,
    ],
    [
      'a pool for a bucket',
      { limit: bucket, calls: [{ at: 0, update: { poolSize: 2 } }] },
      /`calls\[0\]\.update` to be left out: this limit is not divided/,
    ],
    [
      'an empty pool',
      { limit: { ramp }, calls: [{ at: 0, update: { poolSize: 0 } }] },
      /`calls\[0\]\.update\.poolSize` to be a whole number of at least 1, got 0/,
    ],
    [
      'a rank outside',
      { limit: { ramp }, calls: [{ at: 0, update: { poolSize: 2, rank: 2 } }] },
      /`calls\[0\]\.update\.rank` to be a whole number of at least 0 and at most 1, got 2/,
    ],
    [
      'an empty update',
      { limit: bucket, calls: [{ at: 0, update: 1 }] },
      /`calls\[0\]\.update` to be an object with hits or poolSize, got 1/,
    ],
    [
      'hits and a size at once',
      { limit: { ramp }, calls: [{ at: 0, update: { hits: 1, poolSize: 2 } }] },
      /`calls\[0\]\.update\.poolSize` to be one of hits/,
    ],
    [
      'hits for adaptive',
      { limit: { adaptive: {} }, calls: [{ at: 0, update: { hits: 1 } }] },
      /`calls\[0\]\.update` to be left out: this limit counts no hits/,
    ],
  ])('%s: one line that names the field, exit code 2', (_what, content, message) => {
    const { code, out, err } = trace(content);
    expect(err).toMatch(message);
    expect(err.split('\n').length).toBe(1);
    expect({ code, out }).toEqual({ code: 2, out: '' });
  });

  test('reports a missing file, exit code 2', () => {
    const { code, err } = sluice('trace', join(folder, 'nowhere.json'));
    expect(code).toBe(2);
    expect(err).toMatch(/^sluice trace: cannot read .*nowhere\.json: ENOENT/);
  });
});

interface Granted {
  readonly granted: number;
}
