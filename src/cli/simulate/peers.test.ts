import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { commandLineOf } from '../../../test/support/fleet-command.ts';
import { runCliAt } from '../../../test/support/terminal.ts';
import { FLEET_DEFAULTS } from '../../simulator/peers/fleet.ts';
import { run } from '../run.ts';

const type = (words: string) =>
  runCliAt(80, ['simulate', 'peers', ...words.split(' ').filter(Boolean)]);

describe('sluice simulate peers', () => {
  test('prints the scenario, overshoot per window, and all results', () => {
    const { code, out, err } = type('--nodes 4 --span 12s');
    expect({ code, err }).toEqual({ code: 0, err: [] });
    expect(out.slice(0, 4)).toEqual([
      '4 nodes, 100 calls/s, burst 100, load 10 x the rate, for 12 s',
      'eager exchange, every 100 ms; network delay 2 ms',
      '',
      'window    worst  overshoot',
    ]);
    const names = out.slice(8).map((line) => line.split('  ')[0]);
    expect(names).toEqual([
      'overshoot',
      'utilisation',
      'mean rate',
      'errors',
      'fairness',
      'view age',
      'traffic',
      'convergence',
    ]);
    expect(out.join('\n')).toMatch(/ 1 s {2}\d\.\d{3} x +0 %/);
    for (const line of out) expect(line.length).toBeLessThanOrEqual(80);
  });

  test('the same seed gives the same output, another seed another', () => {
    const output = (words: string) => type(`--span 3s ${words}`).out;
    expect(output('--loss 0.1')).toEqual(output('--loss 0.1'));
    expect(output('--seed 2')).not.toEqual(output(''));
  });

  test('--json prints all figures as one line', () => {
    const { out } = type('--nodes 2 --span 2s --json');
    expect(out).toHaveLength(1);
    const figures = JSON.parse(out[0]);
    expect(Object.keys(figures.worst)).toEqual(['100', '1000']);
    expect(figures.timeline.admitted).toHaveLength(20);
    expect(figures.bound).toBeGreaterThanOrEqual(figures.overshootCalls);
  });

  test('--svg draws the allowed rate, the limit and the events', () => {
    const file = join(mkdtempSync(join(tmpdir(), 'sluice-')), 'fleet.svg');
    const { err } = type(`--span 6s --load-step 5@1 --split 2-3:2 --crash 1@4-5 --svg ${file}`);
    expect(err).toEqual([`wrote ${file}`]);
    const svg = readFileSync(file, 'utf8');
    for (const words of [
      'limit 100/s',
      'load: 5 x the rate',
      'partition',
      'node 1 down',
      'time (s)',
    ]) {
      expect(svg).toContain(words);
    }
  });

  test('shows the progress and clears it at the end', async () => {
    const hints: string[] = [];
    await run(['simulate', 'peers', '--span', '3s'], {
      print: () => {},
      error: () => {},
      log: () => {},
      progress: (words) => hints.push(words),
      columns: 80,
      version: '0',
    });
    expect(hints[0]).toBe('8 nodes join ...');
    expect(hints[1]).toMatch(/^8 nodes, \d+ % of 3 s \.\.\.$/);
    expect(hints.at(-1)).toBe('');
  });

  test.each([
    ['--nodes 0', /`?--nodes`? .*1.*1000.*got 0/],
    ['--nodes 1001', /--nodes/],
    ['--loss 1', /--loss/],
    ['--rate many', /expected `--rate` to be a number, got "many"/],
    ['--exchange often', /expected `--exchange` to be periodic or eager, got "often"/],
    ['--interval soon', /expected `--interval` to be a time from 1 ms to 60 s, .*got "soon"/],
    ['--span 2h', /expected `--span` to be a time from 1000 ms to 3600 s/],
    ['--split 30-20', /expected `--split` to be two seconds from 0 to 60 .*got "30-20"/],
    ['--split 20-30:8', /expected `--split`/],
    ['--crash 8@1-2', /expected `--crash` to be a node from 0 to 7 .*got "8@1-2"/],
    ['--load-step 10', /expected `--load-step` to be a multiple of the rate.*got "10"/],
    ['--load-step 0@10', /expected `--load-step`/],
    ['--load-step 2@61', /expected `--load-step`/],
    ['--load-step 999@1 --rate 1e4', /expected at most 20000000 calls/],
    ['--clock-step 0@1:soon', /expected `--clock-step` .*got "0@1:soon"/],
    ['--rate 1e6 --load 100', /expected at most 20000000 calls, got 6000000000 \(rate x load/],
    ['fast', /expected options only, got "fast"/],
  ])('rejects %s with exit code 2 and one line', (words, message) => {
    const { code, out, err } = type(words);
    expect({ code, out }).toEqual({ code: 2, out: [] });
    expect(err).toHaveLength(1);
    expect(err[0]).toMatch(message);
  });

  test('commandLineOf: gives the command that runs a fleet again, without defaults', () => {
    expect(commandLineOf(FLEET_DEFAULTS)).toBe('sluice simulate peers');
    const crash = { node: 2, atMs: 1500, backMs: 2000 };
    const clockStep = { node: 1, atMs: 500, byMs: -250 };
    const network = { loss: 0.1, split: { fromMs: 0, toMs: 100, nodes: 3 } };
    const loadStep = { atMs: 2500, load: 0.5 };
    expect(commandLineOf({ ...FLEET_DEFAULTS, seed: 9, network, loadStep, crash, clockStep })).toBe(
      'sluice simulate peers --load-step 0.5@2.5 --loss 0.1 --split 0-0.1:3 --crash 2@1.5-2 --clock-step 1@0.5:-250ms --seed 9',
    );
  });
});
