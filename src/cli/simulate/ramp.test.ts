import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { runCliAt } from '../../../test/support/terminal.ts';
import { RAMP_MODES } from '../../simulator/ramp.ts';

function type(words: string, columns = 80) {
  return runCliAt(columns, ['simulate', 'ramp', ...words.split(' ').filter(Boolean)]);
}

const seconds = (words: string) => type(`${words} --json`).out.map((line) => JSON.parse(line));

describe('sluice simulate ramp', () => {
  test('without flags draws four modes on the same traffic, with four different results', () => {
    const { code, out, err } = type('');
    expect({ code, err }).toEqual({ code: 0, err: [] });
    const titles = out.filter((line) => RAMP_MODES.some((mode) => line.startsWith(`${mode}: `)));
    expect(titles).toHaveLength(4);

    const pools = RAMP_MODES.map((mode) =>
      seconds('')
        .filter((second) => second.mode === mode)
        .map(({ pool }) => pool)
        .join(' '),
    );
    expect(new Set(pools).size).toBe(4);
  });

  test('fits the terminal without truncating a line', () => {
    for (const words of ['', '--mode relaxed', '--seconds 300']) {
      for (const columns of [80, 120]) {
        const { out } = type(words, columns);
        expect(Math.max(...out.map((line) => line.length))).toBeLessThanOrEqual(columns);
        expect(out.join('')).not.toContain('…');
      }
    }
  });

  test('--mode prints a table by second', () => {
    const { out } = type('--mode go-back-n --load 99x2,0x2,5,99 --seconds 6', 64);
    expect(out).toEqual([
      'go-back-n: grows when used up, shrinks when not used up or without calls',
      '',
      'second   requested   pool   used     use  █ used  ░ unused',
      '     1          99     10     10   100 %  ███████▍',
      '     2          99     20     20   100 %  ██████████████▋',
      '     3           -     30      -       -  ░░░░░░░░░░░░░░░░░░░░░░',
      '     4           -     20      -       -  ░░░░░░░░░░░░░░░',
      '     5           5     10      5    50 %  ███▋░░░',
      '     6          99     10     10   100 %  ███████▍',
    ]);
  });

  test('--json prints one line per second', () => {
    expect(seconds('--mode relaxed --seconds 2')).toEqual([
      { mode: 'relaxed', second: 1, requested: 120, pool: 10, used: 10, remaining: 0 },
      { mode: 'relaxed', second: 2, requested: 120, pool: 20, used: 20, remaining: 0 },
    ]);
    expect(seconds('--seconds 2').map(({ mode }) => mode)).toEqual(
      RAMP_MODES.flatMap((mode) => [mode, mode]),
    );
  });

  test('--load: runs as long as the list, and repeats a list that is shorter than --seconds', () => {
    expect(seconds('--mode relaxed --load 1x20,2x20')).toHaveLength(40);
    const requested = seconds('--mode relaxed --load 1,2x2 --seconds 7').map(
      (second) => second.requested,
    );
    expect(requested).toEqual([1, 2, 2, 1, 2, 2, 1]);
  });

  test('--gap: every gap is without calls', () => {
    const requested = seconds('--mode relaxed --load 9 --seconds 6 --gap 2 --gap 4-5').map(
      (second) => second.requested,
    );
    expect(requested).toEqual([9, 0, 9, 0, 0, 9]);
  });

  test('passes its flags to the ramp', () => {
    const pools = (words: string) =>
      seconds(`--mode go-back-n --load 8 --seconds 4 ${words}`).map(({ pool }) => pool);
    expect(pools('--min 4 --max 12 --over 2s')).toEqual([4, 8, 12, 8]);
    expect(pools('--min 4 --max 12 --over 2000')).toEqual([4, 8, 12, 8]); // milliseconds
    expect(pools('--min 4 --max 12 --over 2s --ramp-down 25')).toEqual([4, 8, 12, 11]);
    expect(pools('--min 4 --max 12 --over 2s --threshold 50')).toEqual([4, 8, 12, 12]);
    expect(pools('--min 4 --max 12 --over 2s --gap 3-4')).toEqual([4, 8, 12, 8]);
    expect(pools('--min 4 --max 12 --over 2s --gap 3-4 --cool-down 1s')).toEqual([4, 8, 12, 12]);
  });

  test('--pool-size: pods use the whole pool together', () => {
    const used = seconds('--mode relaxed --load 99 --seconds 3 --pool-size 3').map(
      (second) => second.used,
    );
    expect(used).toEqual([10, 20, 30]);

    // A pod with a smaller part may use it up while the fleet does not: two of three grow.
    const partial = '--mode only-if-used --load 19 --seconds 3';
    expect(seconds(partial).map(({ pool }) => pool)).toEqual([10, 20, 20]);
    expect(seconds(`${partial} --pool-size 3`)[2].pool).toBeGreaterThan(20);
  });

  test('--svg draws the demand and every mode', () => {
    const file = join(mkdtempSync(join(tmpdir(), 'sluice-')), 'ramp.svg');
    expect(type(`--svg ${file}`).err).toEqual([`wrote ${file}`]);
    const svg = readFileSync(file, 'utf8');
    for (const words of ['demand', ...RAMP_MODES]) expect(svg).toContain(words);
  });

  const invalid: Record<string, string> = {
    relaxed: 'expected options only, got "relaxed"; see --help',
    '--mode fast': 'expected `--mode` to be one of scheduled, relaxed, only-if-used, go-back-n',
    '--min 200': 'expected `--min` to be a number above 0 and at most 110, got 200',
    '--max lots': 'expected `--max` to be a number, got "lots"',
    '--over 10x':
      'expected `--over` to be a time from 1 ms to 86400 s, such as 100ms or 2s, got "10x"',
    '--over 0s': 'expected `--over` to be a time from 1 ms',
    '--threshold 101': 'expected `--threshold` to be a number of at least 0 and at most 100',
    '--load heavy': 'expected `--load` to be a list such as 120x4,0x2,80, got "heavy"',
    '--load 5x0': 'expected `--load` to last at least one second, got "5x0"',
    '--load 1x999999999': 'expected `--load` to last at most 3600 seconds',
    '--load 10000000': 'expected `--load` to be at most 9999999 calls per second',
    '--gap 5-3': 'expected `--gap` to be two of the seconds 1 to 30, such as 8-12, got "5-3"',
    '--gap 31': 'expected `--gap` to be two of the seconds 1 to 30',
    '--seconds 0': 'expected `--seconds` to be a whole number of at least 1 and at most 3600',
    '--pool-size 1.5': 'expected `--pool-size` to be a whole number of at least 1 and at most 1000',
  };
  for (const [words, message] of Object.entries(invalid)) {
    test(`rejects "${words}" with exit code 2 and one line`, () => {
      const { code, out, err } = type(words);
      expect({ code, out }).toEqual({ code: 2, out: [] });
      expect(err).toHaveLength(1);
      expect(err[0]).toContain(message);
    });
  }

  test('--help names every flag and fits a terminal', () => {
    const text = type('--help').out.join('\n');
    const flags =
      'mode min max over threshold cool-down ramp-down load gap seconds pool-size svg json';
    for (const flag of flags.split(' ')) expect(text).toContain(`--${flag}`);
    expect(Math.max(...text.split('\n').map((line) => line.length))).toBeLessThanOrEqual(100);
  });
});
