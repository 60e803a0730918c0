import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { runCliAt } from '../../../test/support/terminal.ts';

function type(words: string, columns = 80) {
  const typed = runCliAt(columns, ['simulate', 'tchannel', ...words.split(' ').filter(Boolean)]);
  return { ...typed, text: typed.out.map((line) => `${line}\n`).join('') };
}

describe('sluice simulate tchannel', () => {
  for (const pattern of ['steady', 'flappy']) {
    test(`${pattern} prints the original's rows byte for byte`, () => {
      const original = readFileSync(`test/vectors/tchannel-${pattern}.txt`, 'utf8');
      expect(type(pattern)).toMatchObject({ code: 0, text: original, err: [] });
    });
  }

  test('the default pattern is steady', () => {
    expect(type('').text).toBe(type('steady').text);
  });

  test('flags change traffic and recovery, each recovery by its own flag only', () => {
    const { out } = type('steady --rps 800 --busy 1 --recover-rate 0.5');
    expect(out).toContain('started with recover_rate: 0.5');
    expect(out).toContain('started with recover_value: 200');
    expect(out.filter((line) => line.startsWith('start rps=800 (steady)'))).toHaveLength(2);
    expect(out).toContain('    --- time=1 rps=800 throttled=0 busy=1 limit=9999999');
  });

  test('--chart draws both recoveries with their phases, within the terminal', () => {
    for (const words of ['steady --chart', 'linear_grow --chart --log']) {
      for (const columns of [80, 120]) {
        const { out } = type(words, columns);
        expect(Math.max(...out.map((line) => line.length))).toBeLessThanOrEqual(columns);
        const phases = out.filter((line) => line.includes('busy') && line.includes('recovering'));
        expect(phases).toHaveLength(2);
      }
    }
    const titles = type('steady --chart').out.filter((line) => line.startsWith('recover'));
    expect(titles).toEqual([
      'recover rate 3: converged at time=17, speed=7',
      'recover value 200: failed to converge',
    ]);
  });

  test('--svg writes a file and leaves standard output as it is', () => {
    const file = join(mkdtempSync(join(tmpdir(), 'sluice-')), 'steady.svg');
    const { text, err } = type(`steady --svg ${file}`);
    expect(text).toBe(type('steady').text);
    expect(err).toEqual([`wrote ${file}`]);
    const svg = readFileSync(file, 'utf8');
    expect(svg).toContain('recover rate 3 (converged at 17)');
    expect(svg).toContain('recover value 200 (failed to converge)');
  });

  test('--live runs the production policy: at most two calls a second while busy, earlier recovery', () => {
    for (const rtt of ['1ms', '400ms']) {
      const { out } = type(`steady --live --rtt ${rtt} --rps 2000`);
      const rows = out.slice(0, out.indexOf('started with recover_value: 200'));
      const sentAt = (time: number) =>
        Number(/rps=(\d+)/.exec(rows.find((row) => row.includes(` time=${time} `)) ?? '')?.[1]);
      for (let time = 3; time <= 9; time++) expect(sentAt(time)).toBeLessThanOrEqual(2);
      expect(Number(/speed=(\d+)/.exec(rows.at(-1) ?? '')?.[1])).toBeLessThanOrEqual(6);
    }
  });

  test('--live: a flappy service gets little traffic, and it converges', () => {
    const { out } = type('flappy --live --rps 1000');
    const rows = out.slice(0, out.indexOf('started with recover_value: 200'));
    expect(rows.at(-1)).toMatch(/converged at time=1\d/);
    expect(type('flappy --live --rps 1000 --chart --log').code).toBe(0);
  });

  test('prints and draws extreme traffic: 0, 1 and the maximum', () => {
    for (const words of ['--rps 0', '--rps 1 --busy 1', '--rps 9999999', '--busy 0']) {
      for (const pattern of ['steady', 'flappy', 'linear_grow', 'linear_decrease']) {
        const text = type(`${pattern} ${words} --chart`).text + type(`${pattern} ${words}`).text;
        expect(text).not.toMatch(/NaN|undefined|Infinity|=-/);
      }
    }
  });

  const invalid: Record<string, string> = {
    stedy:
      'expected PATTERN to be one of steady, flappy, linear_grow, linear_decrease, got "stedy"',
    'steady flappy': 'expected one PATTERN, got "flappy" as well',
    '--rps many': 'expected `--rps` to be a number, got "many"',
    '--rps=-1': 'expected `--rps` to be a whole number of at least 0 and at most 9999999, got -1',
    '--busy 1.5':
      'expected `--busy` to be a whole number of at least 0 and at most 9999999, got 1.5',
    '--recover-rate 0': 'expected `--recover-rate` to be a number above 0, got 0',
    '--recover-value=-200': 'expected `--recover-value` to be a number above 0, got -200',
    '--rtt 10ms': 'expected --live beside --rtt, got --rtt alone',
    '--live --rtt soon':
      'expected `--rtt` to be a time from 1 ms to 10 s, such as 100ms or 2s, got "soon"',
    '--live --rps 100001':
      'expected `--rps` to be a whole number of at least 0 and at most 100000, got 100001',
    '--log': 'expected --chart or --svg FILE beside --log, got neither',
    '--chrat': "Unknown option '--chrat'; see --help",
    '--svg /nowhere/at/all.svg': 'cannot write /nowhere/at/all.svg',
  };
  for (const [words, message] of Object.entries(invalid)) {
    test(`rejects "${words}" with exit code 2 and one line`, () => {
      const { code, out, err } = type(words);
      expect({ code, out }).toEqual({ code: 2, out: [] });
      expect(err).toHaveLength(1);
      expect(err[0]).toContain(message);
      expect(err[0]).not.toContain('\n');
    });
  }

  test('--help names every pattern and flag and fits a terminal', () => {
    const { code, text } = type('--help');
    expect(code).toBe(0);
    for (const word of ['steady', 'flappy', 'linear_grow', 'linear_decrease', '--rps', '--busy']) {
      expect(text).toContain(word);
    }
    for (const flag of [
      '--recover-rate',
      '--recover-value',
      '--live',
      '--rtt',
      '--chart',
      '--svg',
      '--log',
    ]) {
      expect(text).toContain(flag);
    }
    expect(Math.max(...text.split('\n').map((line) => line.length))).toBeLessThanOrEqual(100);
  });
});
