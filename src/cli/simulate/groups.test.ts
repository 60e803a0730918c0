import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { runCliAtAsync } from '../../../test/support/terminal.ts';

const type = (words: string) =>
  runCliAtAsync(80, ['simulate', 'groups', ...words.split(' ').filter(Boolean)]);

describe('sluice simulate groups', () => {
  test('prints utilisation, overshoot and latency of three designs', async () => {
    const { code, out, err } = await type('--region a:400 --region b:10 --region c:10 --span 20s');
    expect({ code, err }).toEqual({ code: 0, err: [] });
    expect(out.slice(0, 4)).toEqual([
      '300 calls/s, burst 300, over 3 regions 80 ms apart, for 20 s',
      'demand: a 400/s, b 10/s, c 10/s',
      '',
      expect.stringMatching(/^ +utilisation +overshoot +latency +a +b +c$/),
    ]);
    const utilisation = (line: string): number => Number(/([\d.]+) %/.exec(line)?.[1]);
    expect(out.slice(4, 7).map((line) => line.split(' ')[0])).toEqual([
      'groups',
      'even',
      'central',
    ]);
    expect(utilisation(out[4])).toBeGreaterThan(95);
    expect(utilisation(out[5])).toBeCloseTo(40, -1);
    expect(out.at(-1)).toBe('bound on the overshoot of groups: 150 (rate x deadline)');
    for (const line of out) expect(line.length).toBeLessThanOrEqual(80);
  });

  test('the same seed gives the same output, another seed another', async () => {
    const output = async (words: string) => (await type(`--span 3s ${words}`)).out;
    expect(await output('')).toEqual(await output(''));
    expect(await output('--seed 2')).not.toEqual(await output(''));
  });

  test('weights, minimum fractions, --link and --cut take effect', async () => {
    const words = '--region a:500:3 --region b:0:1:0.5 --span 10s --json';
    const apart = JSON.parse((await type(`${words} --cut a@0-10`)).out[0]);
    const far = JSON.parse((await type(`${words} --link a-b=900ms`)).out[0]);
    const near = JSON.parse((await type(words)).out[0]);
    expect(apart.groups.rates.a).toBeCloseTo(150 + 15, -1); // half of the rate and of the burst
    expect(far.groups.rates.a).toBeCloseTo(150 + 15, -1); // borrowed tokens arrive after the deadline
    expect(near.groups.rates.a).toBeGreaterThan(290);
  });

  test('--svg draws the rate of each region and the partition', async () => {
    const file = join(mkdtempSync(join(tmpdir(), 'sluice-')), 'groups.svg');
    const { err } = await type(`--span 5s --cut eu@2-3 --svg ${file}`);
    expect(err).toEqual([`wrote ${file}`]);
    const svg = readFileSync(file, 'utf8');
    for (const words of ['eu partitioned', 'limit 300/s', 'even division', 'groups that borrow']) {
      expect(svg).toContain(words);
    }
  });

  test.each([
    ['--region eu', '`--region` to be NAME:LOAD'],
    ['--region eu:1', '2 to 20 regions'],
    ['--region eu:1 --region eu:2', 'with different names'],
    ['--region eu:1:1:2 --region us:2', '`--region` to be'],
    ['--link eu-mars=5ms', '`--link` to be two of the regions eu, us, ap and a time'],
    ['--link eu-us=soon', '`--link` to be a time'],
    ['--cut mars@1-2', '`--cut` to be one of the regions'],
    ['--cut eu@5-2', '`--cut` to be one of the regions'],
    ['--cut eu@5-90', 'two seconds from 0 to 60'],
    ['--rtt never', '`--rtt` to be a time'],
    ['--reserve 2', '--reserve'],
    ['--span 1h --region a:100000 --region b:1', 'at most 2000000 calls'],
    ['--burst 2', 'limit.bucket.burst'],
    ['extra', 'expected options only, got "extra"'],
  ])('rejects %s with exit code 2 and a message', async (words, expected) => {
    const { code, out, err } = await type(words);
    expect({ code, out }).toEqual({ code: 2, out: [] });
    expect(err.join('\n')).toContain(expected);
  });
});
