import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';
import { runBench } from './support/run-bench.ts';
import { etcdServer, redisServer } from './support/services.ts';

/** A watchdog: a normal run is much shorter. */
const MAX_RUN_MS = 120_000;

/** Less than 30 s together; the longer scenarios are left to the command. */
const SHORT: readonly string[] = [
  'give-back-node-redis',
  'in-flight-reply-lost',
  'close-while-connecting-ioredis',
  'etcd-await-3',
  'give-back-ioredis-defaults',
  'give-back-after-refill-local',
  'give-back-after-refill-redis',
  'first-call-node-redis',
  'close-while-connecting-node-redis',
];

interface Figure {
  readonly name: string;
  readonly bound: number;
  readonly unit: string;
  readonly holds: boolean;
  readonly worst: number | null;
}

/** A busy machine makes only figures in ms worse, up to this much more than their bound. */
const SLOWER = 3;

describe.skipIf(redisServer() === undefined || etcdServer() === undefined)('soak: faults', () => {
  test(
    'scenarios of the short form stay within their bounds',
    async () => {
      const words = ['--only', SHORT.join(), '--runs', '1', '--seed', '1'];
      const figures = await runBench<Figure[]>(MAX_RUN_MS, 'soak/faults.mjs', ...words);
      expect([...new Set(figures.map(({ name }) => name))].toSorted()).toEqual(SHORT.toSorted());
      const isOnlySlow = ({ unit, bound, worst }: Figure) =>
        unit === 'ms' && (worst ?? Infinity) <= SLOWER * bound;
      expect(figures.filter((each) => !each.holds && !isOnlySlow(each))).toEqual([]);
    },
    MAX_RUN_MS,
  );
});

const SCRIPT = 'bench/soak/faults.mjs';

describe('soak: faults, command line', () => {
  test('--list names every scenario of the short form', () => {
    const listed = execFileSync(process.execPath, [SCRIPT, '--list'], { encoding: 'utf8' });
    expect(JSON.parse(listed)).toEqual(expect.arrayContaining([...SHORT]));
  });

  test('--help states every bound with its reason', () => {
    const help = execFileSync(process.execPath, [SCRIPT, '--help'], { encoding: 'utf8' });
    expect(help).toContain('peak in flight ≤ 4 calls: the limit');
    expect(help.match(/ ≤ /g)?.length).toBeGreaterThan(SHORT.length);
  });

  test.each([
    [['--only', 'unknown'], /^expected --only to name give-back.*, got "unknown"/],
    [['--runs', '0'], /^expected --runs to be a whole number from 1, got "0"/],
    [['--often'], /'--often'/],
  ])('rejects %j with exit code 2', (words, message) => {
    const { status, stderr } = spawnSync(process.execPath, [SCRIPT, ...words], {
      encoding: 'utf8',
    });
    expect({ status, stderr }).toEqual({ status: 2, stderr: expect.stringMatching(message) });
  });
});

interface Call {
  readonly cost?: number;
}

interface Checker {
  readCalls(files: readonly string[]): Call[];
  overshootOf(calls: Call[], limit: { burst: number; perSecond: number }): number;
  peakInFlight(calls: Call[]): number;
  longestIdle(calls: Call[], most: number, until: number): number;
  longestStall(calls: Call[], limit: { burst: number; perSecond: number }, until: number): number;
  peakPerSecond(calls: Call[]): number;
  spacingOf(calls: Call[], everyMs: number): { tooClose: number; early: number; unused: number };
  tokensOutOfOrder(calls: Call[]): number;
  slowestDecision(calls: Call[]): number;
}

describe('soak: faults, checker', async () => {
  const checker: Checker = await import(resolve('bench/soak/faults/checker.mjs'));
  const folder = mkdtempSync(join(tmpdir(), 'sluice-checker-'));
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  /** Events as `[n, type, at, more]`; the wall clock is the same. */
  const callsOf = (...events: [number, string, number, object?][]): Call[] => {
    const file = join(folder, 'records.jsonl');
    const lines = events.map(([n, type, at, more]) =>
      JSON.stringify({ n, type, at, wall: at, ...more }),
    );
    writeFileSync(file, `${lines.join('\n')}\n`);
    return checker.readCalls([file]);
  };
  const taken = (n: number, at: number, cost: number): [number, string, number, object?][] => [
    [n, 'call', at],
    [n, 'grant', at + 1, { cost, dueAt: at }],
  ];

  test('overshoot: counts what exceeds burst + rate × span, without what was given back', () => {
    const limit = { burst: 10, perSecond: 10 };
    const back: [number, string, number, object?] = [0, 'back', 5, { cost: 5 }];
    const twice = callsOf(...taken(0, 0, 10), back, ...taken(1, 9, 10));
    expect(checker.overshootOf(twice, limit)).toBeCloseTo(5 - 0.1, 6);
    const once = callsOf(...taken(0, 0, 10), back, ...taken(1, 9, 5));
    expect(checker.overshootOf(once, limit)).toBe(0);
  });

  test('overshoot: a call that may have been decided outside of a span does not count in it', () => {
    const slow = callsOf([0, 'call', 0], ...taken(1, 900, 10), [0, 'grant', 1000, { cost: 10 }]);
    expect(checker.overshootOf(slow, { burst: 10, perSecond: 10 })).toBe(0);
  });

  test('peak in flight: counts from grant to settlement', () => {
    const calls = callsOf(
      ...taken(0, 0, 1),
      ...taken(1, 5, 2),
      [0, 'settle', 8],
      ...taken(2, 9, 1),
    );
    expect(checker.peakInFlight(calls)).toBe(3);
  });

  test('idle: the longest time with a free place beside a waiting call, up to the end', () => {
    const calls = callsOf(...taken(0, 0, 1), [1, 'call', 2], [0, 'settle', 100]);
    expect(checker.longestIdle(calls, 1, 350)).toBe(250);
    expect(checker.longestIdle(calls, 2, 350)).toBe(348); // from the second call on
  });

  test('stall: the longest time without a grant although a call waits and a token is there', () => {
    const limit = { burst: 2, perSecond: 10 };
    const empty = callsOf(...taken(0, 0, 2), [1, 'call', 10]);
    expect(checker.longestStall(empty, limit, 90)).toBeLessThan(15); // the next token comes after 100 ms
    expect(checker.longestStall(empty, limit, 600)).toBeGreaterThan(490);
    const served = callsOf(...taken(0, 0, 2), [1, 'call', 10], [1, 'grant', 110, { cost: 1 }]);
    expect(checker.longestStall(served, limit, 600)).toBeLessThan(15);
  });

  test('peak in a second: a call across the border of two seconds counts in neither', () => {
    const calls = callsOf(...taken(0, 100, 4), ...taken(1, 900, 3), ...taken(2, 999, 5));
    expect(checker.peakPerSecond(calls)).toBe(7);
  });

  test('spacing: counts permits that are too close, and the unused share', () => {
    const calls = callsOf(...taken(0, 0, 1), ...taken(1, 100, 1), ...taken(2, 190, 1));
    expect(checker.spacingOf(calls, 100).tooClose).toBe(1);
    const sparse = callsOf(...taken(0, 0, 1), ...taken(1, 200, 1));
    expect(checker.spacingOf(sparse, 100).unused).toBeCloseTo(0.5, 6);
  });

  test('spacing: counts permits that were handed out before they were due', () => {
    const calls = callsOf(...taken(0, 0, 1), [1, 'call', 50], [1, 'grant', 60, { dueAt: 100 }]);
    expect(checker.spacingOf(calls, 100)).toMatchObject({ tooClose: 0, early: 1 });
  });

  test('fencing tokens: counts pairs that do not grow, and permits without one', () => {
    const withToken = (n: number, at: number, fencingToken?: number) => [
      [n, 'call', at] as [number, string, number],
      [n, 'grant', at + 1, { cost: 1, fencingToken }] as [number, string, number, object],
    ];
    const growing = callsOf(...withToken(0, 0, 1), ...withToken(1, 10, 2));
    expect(checker.tokensOutOfOrder(growing)).toBe(0);
    const equal = callsOf(...withToken(0, 0, 1), ...withToken(1, 10, 1));
    expect(checker.tokensOutOfOrder(equal)).toBe(1);
    const missing = callsOf(...withToken(0, 0, 1), ...withToken(1, 10));
    expect(checker.tokensOutOfOrder(missing)).toBe(1);
  });

  test('slowest decision: a call without a decision never ends', () => {
    expect(checker.slowestDecision(callsOf(...taken(0, 0, 1)))).toBe(1);
    expect(checker.slowestDecision(callsOf(...taken(0, 0, 1), [1, 'call', 5]))).toBe(Infinity);
  });
});
