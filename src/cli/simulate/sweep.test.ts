import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { runCliAt } from '../../../test/support/terminal.ts';
import { SCENARIOS } from '../../simulator/adaptive/scenario.ts';
import { SWEEP_OPTIONS } from '../../simulator/adaptive/sweep.ts';
import { run } from '../run.ts';

const split = (words: string) => ['simulate', 'sweep', ...words.split(' ').filter(Boolean)];

const type = (words: string, columns = 80) => runCliAt(columns, split(words));

const cells = (words: string) => type(`${words} --json`).out.map((line) => JSON.parse(line));

/** A short run, for tests that do not depend on the figures. */
const QUICK = '--seeds 1 --watch 2-4';

describe('sluice simulate sweep', () => {
  test('prints a line per value and marks the default', () => {
    const { code, out, err } = type('decreaseRatio --scenario rate --values 0.5,0.9');
    expect({ code, err }).toEqual({ code: 0, err: [] });
    expect(out).toEqual([
      'decreaseRatio on rate: 200 calls per second, 50 ms each; more are refused',
      '',
      'decreaseRatio  calls/s  util  spread  rejected  mean  p95  p99  limit',
      '         0.5       141  70 %   68-71     2.2 %    53   58   62      8',
      '         0.9*      188  94 %   93-95     6.6 %    53   58   62     11',
      '',
    ]);
  });

  test('has a column for recovery after an incident, and for ramp-up from the start', () => {
    const heading = (words: string) => type(`${words} --seeds 1 --values 0.9`).out[2];
    expect(heading('alpha --scenario outage')).toMatch(/limit {2}recovery$/);
    expect(heading('alpha --scenario steady --watch 0-5')).toMatch(/limit {2}ramp-up$/);
    expect(heading('alpha --scenario queue')).toMatch(/limit$/);
  });

  test('several clients: has columns for correlation, and a larger sink', () => {
    const { out } = type(`jitter --scenario rate --values 0,1 --clients 1,4 ${QUICK}`);
    expect(out[0]).toBe('jitter on rate: 800 calls per second, 50 ms each; more are refused');
    expect(out[2]).toMatch(/^clients {2}jitter .* corr {3}osc {2}fair$/);
    expect(out.slice(3, 7).map((line) => line.trim().split(/ +/).slice(0, 2).join(' '))).toEqual([
      '1 0*',
      '1 1',
      '4 0*',
      '4 1',
    ]);
    expect(out[3]).toMatch(/ - .* -$/); // a single client has no correlation
  });

  test('without an option runs all of them, and every table fits a terminal', () => {
    const { out } = type('--seeds 1 --watch 0-2');
    const titles = out.filter((line) => / on .*: /.test(line));
    expect(titles).toHaveLength(3 * SCENARIOS.length + 2 * 5 + 3);
    for (const option of SWEEP_OPTIONS) {
      expect(titles.some((title) => title.startsWith(`${option} on `))).toBe(true);
    }
    expect(Math.max(...out.map((line) => line.length))).toBeLessThanOrEqual(80);
  });

  test('--json prints all figures with their spread, one line per value', () => {
    const [cell, ...others] = cells('alpha --scenario queue --values 0.4 --seeds 3');
    expect(others).toEqual([]);
    const { figures, ...plan } = cell;
    expect(plan).toEqual({
      option: 'alpha',
      value: 0.4,
      scenario: 'queue',
      clients: 1,
      size: 1,
      seeds: 3,
    });
    expect(Object.keys(figures)).toHaveLength(12);
    expect(figures.utilisation.median).toBeCloseTo(1, 2);
    expect(figures.p95Ms.lo).toBeLessThan(figures.p95Ms.hi);
    expect(figures.recoveryS.median).toBe(null);
  });

  test('undefined figures are printed as -', () => {
    const words = 'alpha --scenario outage --values 0.4 --watch 45-50 --seeds 1';
    const cells = type(words).out[3].trim().split(/ +/);
    expect(cells.slice(0, 8)).toEqual(['0.4*', '0', '-', '%', '-', '100.0', '%', '-']);
  });

  test('--markdown prints one table of all sinks', () => {
    const words = 'decreaseRatio --scenario rate --scenario outage --values 0.5,0.9 --markdown';
    expect(type(words).out).toEqual([
      '| decreaseRatio | rate | outage |',
      '| --- | --- | --- |',
      '| 0.5 | 70 % · 2.2 % · 58 ms | 50 % · 0.9 % · 116 ms · 12.1 s |',
      '| 0.9* | 94 % · 6.6 % · 58 ms | 95 % · 1.2 % · 189 ms · 4.3 s |',
      '',
    ]);
  });

  test('the same seed gives the same figures, another seed others', () => {
    const words = `alpha --scenario queue --values 0.4 ${QUICK}`;
    expect(cells(`${words} --seed 5`)).toEqual(cells(`${words} --seed 5`));
    expect(cells(`${words} --seed 5`)).not.toEqual(cells(`${words} --seed 6`));
  });

  test('--size, --service-jitter and --watch take effect', () => {
    const meanOf = (words: string) =>
      cells(`alpha --scenario queue --values 0.4 --seeds 1 ${words}`)[0].figures;
    expect(meanOf('--service-jitter 0 --watch 0-2').p99Ms.median).toBe(101);
    expect(meanOf('--watch 0-2').p99Ms.median).toBeGreaterThan(101);
    expect(meanOf('--size 2 --watch 20-30').limit.median).toBeGreaterThan(30);
  });

  test('--svg draws figures over values, or one sink over time', () => {
    const file = join(mkdtempSync(join(tmpdir(), 'sluice-')), 'sweep.svg');
    expect(type(`alpha ${QUICK} --svg ${file}`).err).toEqual([`wrote ${file}`]);
    const curves = readFileSync(file, 'utf8');
    const titles = ['utilisation, % of capacity', 'p95 latency, ms', 'default'];
    for (const words of [...titles, ...SCENARIOS]) {
      expect(curves).toContain(words);
    }
    type(`slowStart --scenario outage --seeds 1 --watch 0-80 --svg ${file}`);
    const lines = readFileSync(file, 'utf8');
    for (const words of ['limit', 'completed', 'slowStart true', 'outage', 'time (s)']) {
      expect(lines).toContain(words);
    }
    type(`jitter --clients 2 ${QUICK} --svg ${file}`);
    expect(readFileSync(file, 'utf8')).toContain('2 clients on one sink');
    type(`alpha --scenario outage --scenario queue --seeds 1 --watch 45-50 --svg ${file}`);
    expect(curves + lines + readFileSync(file, 'utf8')).not.toMatch(/NaN|Infinity|undefined/);
  });

  test('shows the progress and clears it at the end', async () => {
    const hints: string[] = [];
    const quiet = { print() {}, error() {}, log() {}, columns: 80, version: '' };
    const hint = (words: string) => hints.push(words);
    await run(split(`alpha --scenario queue --values 0.2,0.4 ${QUICK}`), {
      ...quiet,
      progress: hint,
    });
    expect(hints).toEqual(['alpha 0.2 on queue, 1 of 2 ...', 'alpha 0.4 on queue, 2 of 2 ...', '']);
  });

  const invalid: Record<string, string> = {
    speed: 'expected OPTION to be one of alpha, decreaseRatio, deviationScale, slowStart, initial',
    'alpha jitter': 'expected one OPTION, got "jitter" as well',
    'alpha --values 7': 'expected `adaptive.alpha` to be a number above 0 and at most 1, got 7',
    'alpha --values quick': 'expected `--values` to be a number, got "quick"',
    'slowStart --values 1': 'expected `--values` of slowStart to be true or false, got "1"',
    [`alpha --values ${'0.1,'.repeat(20)}1`]: 'expected at most 20 --values, got 21',
    '--values 1': 'expected an OPTION whose --values they are, got none',
    '--svg x.svg': 'expected one OPTION for --svg to draw, got none',
    '--json --markdown': 'expected --json or --markdown, got both',
    'slowStart --svg x.svg':
      'expected one --scenario for --svg, as slowStart is drawn over time, got 5',
    '--scenario storm': 'expected `--scenario` to be one of steady, queue, rate, strict, slow-down',
    '--clients 0': 'expected `--clients` to be a whole number of at least 1 and at most 64, got 0',
    '--clients 1,x': 'expected `--clients` to be a number, got "x"',
    '--size 17': 'expected `--size` to be a whole number of at least 1 and at most 16',
    '--service-jitter -1': "Option '--service-jitter' argument is ambiguous",
    '--service-jitter 11':
      'expected `--service-jitter` to be a number of at least 0 and at most 10',
    '--watch 5': 'expected `--watch` to be two seconds up to 3600, such as 300-600, got "5"',
    '--watch 9-3': 'expected `--watch` to be two seconds',
    '--seeds 0': 'expected `--seeds` to be a whole number of at least 1 and at most 101',
    '--seed x': 'expected `--seed` to be a number, got "x"',
  };
  for (const [words, error] of Object.entries(invalid)) {
    test(`rejects "${words}" with exit code 2 and one line`, () => {
      const { code, out, err } = type(words);
      expect({ code, out }).toEqual({ code: 2, out: [] });
      expect(err).toHaveLength(1);
      expect(err[0]).toContain(error);
    });
  }

  test('--help names every flag, option and sink', () => {
    const text = type('--help').out.join('\n');
    const flags = 'scenario values clients size service-jitter watch seeds seed svg markdown json';
    for (const flag of flags.split(' ')) expect(text).toContain(`--${flag}`);
    for (const word of [...SWEEP_OPTIONS, ...SCENARIOS]) expect(text).toContain(word);
  });
});
