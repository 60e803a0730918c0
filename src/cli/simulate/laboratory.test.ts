import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { runCliAt } from '../../../test/support/terminal.ts';
import { CATALOGUE } from '../../simulator/laboratory/catalogue.ts';
import { SINK_CLASSES } from '../../simulator/laboratory/sink.ts';

const type = (words: string) => runCliAt(80, ['simulate', 'adaptive', ...words.split(' ')]);

describe('sluice simulate adaptive, without a file', () => {
  test('one sink: the best fixed limit, and all measures of each rule', () => {
    const { code, out, err } = type('--sink slow-calls --rule aimd,vegas,fixed:20 --seeds 3');
    expect({ code, err }).toEqual({ code: 0, err: [] });
    expect(out[0]).toBe('slow-calls: 10 workers, 2 s a call');
    expect(out[1]).toMatch(/^best fixed limit (9|1\d): \d calls\/s, mean [\d.]+ s, p99 [\d.]+ s$/);
    expect(out[3]).toMatch(/^rule +score +worst +goodput +rtt +p99 +in flight +refused$/);
    expect(out.slice(4).map((line) => line.split(' ')[0])).toEqual(['aimd', 'vegas', 'fixed:20']);
    expect(out[6]).toMatch(/^fixed:20 +0\.\d\d +0\.\d\d +\d+ % +[12]\.\d\d x .* 0\.0 %$/);
  });

  test('one rule: a row per sink, with the columns that a sink has, and means by class', () => {
    const { out } = type('--sink slow-calls,halved,timeouts --rule fixed:10 --seeds 1');
    expect(out[0]).toBe('rule fixed:10');
    expect(out[2]).toMatch(/^sink +best +score .* refused +sent +peak +settled$/);
    expect(out.find((line) => line.startsWith('halved'))).toMatch(/ - +- +[\d.]+ s, never$/);
    expect(out.find((line) => line.startsWith('timeouts'))).toMatch(/ 1\d\d +1\.00 x +-$/);
    expect(
      out.filter((line) => line.startsWith('mean of')).map((line) => line.split(':')[0]),
    ).toEqual(['mean of changing', 'mean of refusing', 'mean of other', 'mean of all 3']);
  });

  test('several rules and sinks: median score and worst score, in the order of the catalogue', () => {
    const { out } = type('--sink slow-calls,quota --rule fixed:3,aimd --seeds 1');
    expect(out[0]).toMatch(/^sink +best +fixed:3 +aimd$/);
    expect(out[1]).toMatch(/^quota +\d +0\.\d\d \(0\.\d\d\) +0\.\d\d \(0\.\d\d\)$/);
    expect(out[2]).toMatch(/^slow-calls /);
    expect(out.at(-1)).toMatch(/^mean of all 2 +0\.\d\d +0\.\d\d$/);
  });

  test('--json: one line per rule and sink; the same seeds give the same lines', () => {
    const words = '--sink timeouts,slow-calls --rule fixed:10,aimd --seeds 2 --seed 5 --json';
    const { out } = type(words);
    expect(type(words).out).toEqual(out);
    const lines = out.map((line) => JSON.parse(line));
    expect(lines.map(({ rule, sink }) => `${rule} ${sink}`)).toEqual([
      'fixed:10 timeouts',
      'aimd timeouts',
      'fixed:10 slow-calls',
      'aimd slow-calls',
    ]);
    expect(lines[0]).toMatchObject({
      class: 'refusing',
      seeds: 2,
      best: { limit: expect.any(Number), goodput: expect.any(Number) },
      score: expect.any(Number),
      worstScore: expect.any(Number),
      sentInSpell: expect.any(Number),
      peakInSpell: 1,
    });
    for (const name of ['sentInSpell', 'peakInSpell']) expect(lines[2]).not.toHaveProperty(name);
    expect(lines[0].worstScore).toBeLessThanOrEqual(lines[0].score);
  });

  test('--json: a settling time of never is null', () => {
    const { out } = type('--sink halved --rule fixed:10 --seeds 1 --json');
    expect(JSON.parse(out[0]).settlingMs).toEqual([expect.any(Number), null]);
  });

  test('--list: every sink with its class and description', () => {
    const { out } = type('--list');
    for (const { name, description } of CATALOGUE) {
      expect(out.some((line) => line.startsWith(`  ${name} `) && line.endsWith(description))).toBe(
        true,
      );
    }
    expect(out.filter((line) => !line.startsWith(' '))).toEqual([...SINK_CLASSES]);
    const shared = CATALOGUE.filter(({ kind }) => kind === 'shared');
    expect(type('--list --sink shared').out).toHaveLength(1 + shared.length);
    expect(Math.max(...out.map(({ length }) => length))).toBeLessThanOrEqual(80);
  });

  test('--svg: a directory that is missing is noticed before the run', () => {
    const { code, out, err } = type('--sink mm20 --rule fixed:20 --svg /no/such/directory/a.svg');
    expect({ code, out }).toEqual({ code: 2, out: [] });
    expect(err.join()).toContain('expected a file in a directory that exists');
  });

  test('--rule: a rule by the name of its origin, the error names it', () => {
    expect(type('--sink mm20 --rule vector').err.join()).toContain('did you mean `aimd`?');
  });

  test('--sink: a name before a class before a part of a name', () => {
    const listed = (word: string) =>
      type(`--list --sink ${word}`)
        .out.filter((line) => line.startsWith(' '))
        .map((line) => line.trim().split(' ')[0]);
    expect(listed('quota')).toEqual(['quota']);
    expect(listed('hung')).toHaveLength(10);
    expect(listed('together')).toEqual(['together-8', 'together-16', 'together-32']);
    expect(listed('clients-8')).toEqual(['clients-8']);
    expect(listed('calls')).toEqual(['slow-calls', 'fast-calls']);
    expect(listed('mm1,knee')).toEqual(['mm1', 'knee']);
  });

  test('--svg: the limit and the goodput of every rule over time, beside the best fixed limit', () => {
    const file = join(mkdtempSync(join(tmpdir(), 'sluice-')), 'halved.svg');
    const { err } = type(`--sink halved --rule aimd,fixed:20 --seeds 1 --svg ${file}`);
    expect(err).toEqual([`wrote ${file}`]);
    const svg = readFileSync(file, 'utf8');
    for (const text of ['aimd', 'fixed:20', 'best fixed', 'goodput', '10 workers, 100 ms']) {
      expect(svg).toContain(`>${text}</text>`);
    }
    expect(svg).not.toContain('timed out');
  });

  test('--svg on a sink that refuses: also the refused calls over time', () => {
    const file = join(mkdtempSync(join(tmpdir(), 'sluice-')), 'quota.svg');
    type(`--sink quota --rule fixed:20 --seeds 1 --svg ${file}`);
    expect(readFileSync(file, 'utf8')).toContain('>refused or timed out</text>');
  });

  test.each([
    [
      '--rule vega',
      /^expected `--rule` to be one of .*aimd, vegas, .* or fixed:N with N from 1 to 1000, got "vega"; did you mean `vegas`\?$/,
    ],
    ['--rule fixed:0', /got "fixed:0"/],
    ['--rule aimd,', /got ""/],
    [
      '--sink haved',
      /^expected `--sink` to be a class \(steady, .*\) or a sink \(mm1, .*\), got "haved"; did you mean `halved`\?$/,
    ],
    ['--sink ,', /got ""/],
    ['--seeds 0', /`?--seeds`?/],
    ['--svg x.svg --sink steady', /^expected one --sink for --svg, got \d+$/],
    ['--case slow-link', /^expected FILE with `--case`; see --help$/],
    ['cases.json --rule aimd', /^expected no FILE with `--rule`; see --help$/],
    ['cases.json --list', /^expected no FILE with `--list`; see --help$/],
  ])('%s: exit code 2, and the error names what exists', (words, message) => {
    const { code, out, err } = type(words);
    expect({ code, out }).toEqual({ code: 2, out: [] });
    expect(err.join('\n').replace(/^sluice[^:]*: /, '')).toMatch(message);
  });
});
