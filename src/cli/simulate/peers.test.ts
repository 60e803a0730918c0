import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { runCliAt } from '../../../test/support/terminal.ts';
import { FLEET_DEFAULTS } from '../../simulator/peers/fleet.ts';
import { run } from '../run.ts';
import { commandLineOf } from './peers.ts';

const type = (words: string) =>
  runCliAt(80, ['simulate', 'peers', ...words.split(' ').filter(Boolean)]);

describe('sluice simulate peers', () => {
  test('tells how exact, how even, how fast and at what cost', () => {
    const { code, out, err } = type('--nodes 4 --span 12s');
    expect({ code, err }).toEqual({ code: 0, err: [] });
    expect(out.slice(0, 4)).toEqual([
      '4 nodes, 100 calls/s, burst 100, asked 10 times that, for 12 s',
      'told by eager, every 100 ms; 2 ms apart',
      '',
      'window    worst  overshoot',
    ]);
    const names = out.slice(8).map((line) => line.split(' ')[0]);
    expect(names).toEqual([
      'excess',
      'utilisation',
      'mean',
      'wrong',
      'fair',
      'age',
      'cost',
      'settled',
    ]);
    expect(out.join('\n')).toMatch(/ 1 s {2}\d\.\d{3} x +0 %/);
    for (const line of out) expect(line.length).toBeLessThanOrEqual(80);
  });

  test('the same words tell the same story, another seed another', () => {
    const told = (words: string) => type(`--span 3s ${words}`).out;
    expect(told('--loss 0.1')).toEqual(told('--loss 0.1'));
    expect(told('--seed 2')).not.toEqual(told(''));
  });

  test('--json gives all figures as one line', () => {
    const { out } = type('--nodes 2 --span 2s --json');
    expect(out).toHaveLength(1);
    const figures = JSON.parse(out[0]);
    expect(Object.keys(figures.worst)).toEqual(['100', '1000']);
    expect(figures.timeline.admitted).toHaveLength(20);
    expect(figures.bound).toBeGreaterThanOrEqual(figures.overshootCalls);
  });

  test('--svg draws what was let through against the limit, and what happened', () => {
    const file = join(mkdtempSync(join(tmpdir(), 'sluice-')), 'fleet.svg');
    const { err } = type(`--span 6s --load-step 5@1 --split 2-3:2 --crash 1@4-5 --svg ${file}`);
    expect(err).toEqual([`wrote ${file}`]);
    const svg = readFileSync(file, 'utf8');
    for (const words of [
      'limit 100/s',
      'asked for: 5 x the rate',
      'split',
      'node 1 away',
      'time, in seconds',
    ]) {
      expect(svg).toContain(words);
    }
  });

  test('says how far it is, and takes that back', () => {
    const hints: string[] = [];
    run(['simulate', 'peers', '--span', '3s'], {
      print: () => {},
      error: () => {},
      log: () => {},
      progress: (words) => hints.push(words),
      columns: 80,
      version: '0',
    });
    expect(hints[0]).toBe('8 nodes meet ...');
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
    ['--split 30-20', /expected `--split` to be two seconds of the 60 .*got "30-20"/],
    ['--split 20-30:8', /expected `--split`/],
    ['--crash 8@1-2', /expected `--crash` to be a node from 0 to 7 .*got "8@1-2"/],
    ['--load-step 10', /expected `--load-step` to be how many times the rate.*got "10"/],
    ['--load-step 0@10', /expected `--load-step`/],
    ['--load-step 2@61', /expected `--load-step`/],
    ['--load-step 999@1 --rate 1e4', /expected at most 20000000 calls/],
    ['--clock-step 0@1:soon', /expected `--clock-step` .*got "0@1:soon"/],
    ['--rate 1e6 --load 100', /expected at most 20000000 calls, got 6000000000: rate x load/],
    ['fast', /expected options only, got "fast"/],
  ])('%s is refused in words', (words, message) => {
    const { code, out, err } = type(words);
    expect({ code, out }).toEqual({ code: 2, out: [] });
    expect(err).toHaveLength(1);
    expect(err[0]).toMatch(message);
  });

  test('a fleet can be told as the words that play it', () => {
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
