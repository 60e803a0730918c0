/** The comparison of two builds: its statistics, its verdict and its command line. Nothing is measured here. */

import { execFileSync } from 'node:child_process';
import { describe, expect, test } from 'vitest';
import { GROUPS, HELP, readArguments, UsageError } from '../bench/compare/arguments.mjs';
import { compareRow, MIN_RATIO, meanOf, orderOf, summaryOf } from '../bench/compare/statistics.mjs';

const upTo = (count: number): number[] => Array.from({ length: count }, (_, n) => n + 1);

/** Pairs of rounds with these ratios of CPU time. */
const rounds = (...ratios: number[]) =>
  ratios.map((ratio) => ({
    base: { cpuUs: 2, perSecond: 1000 },
    own: { cpuUs: 2 / ratio, perSecond: 1000 },
  }));

describe('summary of ratios', () => {
  test.each([
    [1, 1, 1],
    [3, 1, 3],
    [5, 1, 5], // misses the median with 2 · 1/32
    [7, 1, 7], // one value less on each side: 2 · 8/128, too often
    [8, 2, 7], // 2 · 9/256
    [11, 3, 9], // 2 · 67/2048
    [20, 6, 15], // 2 · 21,700/2^20
  ])('%i values: the interval is from value %i to value %i', (count, low, high) => {
    expect(summaryOf(upTo(count).toReversed())).toEqual({ median: (count + 1) / 2, low, high });
  });

  test('a higher confidence leaves out fewer values', () => {
    expect(summaryOf(upTo(11), 0.98)).toEqual({ median: 6, low: 2, high: 10 });
  });

  test('the interval contains the true median at least as often as the confidence says', () => {
    let seed = 1;
    const random = () => {
      seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
      return seed / 2 ** 32;
    };
    const TRIALS = 2000;
    for (const count of [5, 11]) {
      const hits = Array.from({ length: TRIALS }, () => {
        const { low, high } = summaryOf(Array.from({ length: count }, () => random() ** 3));
        return low <= 0.125 && high >= 0.125;
      }).filter(Boolean).length;
      expect(hits / TRIALS).toBeGreaterThan(0.9);
    }
  });
});

describe('turns of a round', () => {
  test('the builds alternate, and the next round begins with the other one', () => {
    expect([1, 2].map((round) => orderOf(['a', 'b'], round).join(''))).toEqual(['ab', 'ba']);
    expect([1, 2].map((round) => orderOf(['a', 'b'], round, 2).join(''))).toEqual(['abba', 'baab']);
  });

  test('a round has the mean of its turns', () => {
    const turns = [
      { cpuUs: 1, perSecond: 100 },
      { cpuUs: 2, perSecond: 300 },
    ];
    expect(meanOf(turns)).toEqual({ cpuUs: 1.5, perSecond: 200 });
  });
});

describe('verdict on a row', () => {
  test('slower: all rounds of a short run are below the least ratio', () => {
    expect(compareRow(rounds(0.9, 0.92, 0.94, 0.95, 0.96)).verdict).toBe('slower');
  });

  test('same: the median is below the least ratio, but not the whole interval', () => {
    expect(compareRow(rounds(0.9, 0.92, 0.94, 0.95, 0.98)).verdict).toBe('same');
  });

  test('same: slower than BASE, but not below the least ratio', () => {
    expect(compareRow(rounds(0.97, 0.98, 0.98, 0.98, 0.99)).verdict).toBe('same');
  });

  test('slower: with 11 rounds, two outliers do not hide it', () => {
    const ratios = [...Array(9).fill(MIN_RATIO - 0.01), 1.5, 2];
    expect(compareRow(rounds(...ratios)).verdict).toBe('slower');
    expect(compareRow(rounds(...ratios.slice(1), 1.2)).verdict).toBe('same');
  });

  test('faster: the whole interval is above 1', () => {
    expect(compareRow(rounds(1.01, 1.1, 1.1, 1.2, 1.3)).verdict).toBe('faster');
  });

  test('not in BASE: a row without measurements', () => {
    expect(compareRow([])).toEqual({ verdict: 'not in BASE' });
  });

  test('ratios above 1 are faster: less CPU time, more calls per second', () => {
    const pair = { base: { cpuUs: 3, perSecond: 100 }, own: { cpuUs: 2, perSecond: 200 } };
    expect(compareRow([pair])).toMatchObject({
      ratio: { median: 1.5 },
      throughput: { median: 2 },
      baseUs: 3,
      ownUs: 2,
    });
  });
});

describe('command line', () => {
  test('a commit alone: all groups and rows, a full run', () => {
    expect(readArguments(['v1'])).toEqual({
      isHelp: false,
      base: 'v1',
      groups: GROUPS,
      rows: '',
      isShort: false,
      isToWrite: false,
    });
  });

  test('options before and after the commit', () => {
    expect(readArguments(['--short', 'v1', '--only', 'local,http', '--rows', 'hot'])).toMatchObject(
      { base: 'v1', groups: ['local', 'http'], rows: 'hot', isShort: true },
    );
  });

  test.each([
    [[], /^expected one commit or tag to compare with, got none; --help explains$/],
    [['v1', 'v2'], /got v1 v2/],
    [['v1', '--only', 'local,disk'], /groups of local, daemon, redis, http, got "disk"/],
    [['v1', '--fast'], /--fast/],
    [['v1', '--write', '--short'], /^expected a full run with --write/],
    [['v1', '--write', '--only', 'local'], /^expected a full run with --write/],
  ])('%j is rejected', (words, message) => {
    expect(() => readArguments(words)).toThrow(UsageError);
    expect(() => readArguments(words)).toThrow(message);
  });

  test('exit code 2 for an unknown commit, before anything is built', () => {
    const run = () =>
      execFileSync(process.execPath, ['bench/compare/run.mjs', 'no-such-commit'], {
        encoding: 'utf8',
        stdio: 'pipe',
      });
    expect(run).toThrow(
      expect.objectContaining({
        status: 2,
        stderr: 'expected a commit or tag of this repository, got "no-such-commit"\n',
      }),
    );
  });

  test('--help explains every option and every group', () => {
    expect(readArguments(['--help'])).toEqual({ isHelp: true });
    for (const word of ['BASE', '--only', '--rows', '--short', '--write', ...GROUPS])
      expect(HELP).toContain(word);
  });
});
