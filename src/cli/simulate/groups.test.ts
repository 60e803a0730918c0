import { mkdtempSync, readFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { runCliAtAsync } from '../../../test/support/terminal.ts';

const type = (words: string) =>
  runCliAtAsync(80, ['simulate', 'groups', ...words.split(' ').filter(Boolean)]);

describe('sluice simulate groups', () => {
  test('tells how much of the limit is used in each of three ways', async () => {
    const { code, out, err } = await type('--region a:400 --region b:10 --region c:10 --span 20s');
    expect({ code, err }).toEqual({ code: 0, err: [] });
    expect(out.slice(0, 4)).toEqual([
      '300 calls/s, burst 300, over 3 regions 80 ms apart, for 20 s',
      'asked for: a 400/s, b 10/s, c 10/s',
      '',
      expect.stringMatching(/^ +used +excess +answer +a +b +c$/),
    ]);
    const used = (line: string): number => Number(/([\d.]+) %/.exec(line)?.[1]);
    expect(out.slice(4, 7).map((line) => line.split(' ')[0])).toEqual(['groups', 'even', 'redis']);
    expect(used(out[4])).toBeGreaterThan(95);
    expect(used(out[5])).toBeCloseTo(40, -1);
    expect(out.at(-1)).toBe('excess of groups is bounded by 150: rate x deadline');
    for (const line of out) expect(line.length).toBeLessThanOrEqual(80);
  });

  test('the same words tell the same story, another seed another', async () => {
    const told = async (words: string) => (await type(`--span 3s ${words}`)).out;
    expect(await told('')).toEqual(await told(''));
    expect(await told('--seed 2')).not.toEqual(await told(''));
  });

  test('weights, least parts, ways and cuts count', async () => {
    const words = '--region a:500:3 --region b:0:1:0.5 --span 10s --json';
    const apart = JSON.parse((await type(`${words} --cut a@0-10`)).out[0]);
    const far = JSON.parse((await type(`${words} --link a-b=900ms`)).out[0]);
    const near = JSON.parse((await type(words)).out[0]);
    expect(apart.groups.rates.a).toBeCloseTo(150 + 15, -1); // half of it, and of the burst
    expect(far.groups.rates.a).toBeCloseTo(150 + 15, -1); // what it steals comes too late
    expect(near.groups.rates.a).toBeGreaterThan(290);
  });

  test('--svg draws what each region got, and when one was cut off', async () => {
    const file = join(mkdtempSync(join(tmpdir(), 'sluice-')), 'groups.svg');
    const { err } = await type(`--span 5s --cut eu@2-3 --svg ${file}`);
    expect(err).toEqual([`wrote ${file}`]);
    const svg = readFileSync(file, 'utf8');
    for (const words of ['eu cut off', 'limit 300/s', 'even division', 'groups that steal']) {
      expect(svg).toContain(words);
    }
  });

  test.each([
    ['--region eu', '`--region` to be a name and its calls a second'],
    ['--region eu:1', '2 to 20 regions'],
    ['--region eu:1 --region eu:2', 'each by another name'],
    ['--region eu:1:1:2 --region us:2', '`--region` to be'],
    ['--link eu-mars=5ms', '`--link` to be two of the regions eu, us, ap and a time'],
    ['--link eu-us=soon', '`--link` to be a time'],
    ['--cut mars@1-2', '`--cut` to be one of the regions'],
    ['--cut eu@5-2', '`--cut` to be one of the regions'],
    ['--cut eu@5-90', 'two seconds of the 60 there are'],
    ['--rtt never', '`--rtt` to be a time'],
    ['--reserve 2', '--reserve'],
    ['--span 1h --region a:100000 --region b:1', 'at most 2000000 calls'],
    ['--burst 2', 'limit.bucket.burst'],
    ['extra', 'expected options only, got "extra"'],
  ])('%s is told to be wrong', async (words, expected) => {
    const { code, out, err } = await type(words);
    expect({ code, out }).toEqual({ code: 2, out: [] });
    expect(err.join('\n')).toContain(expected);
  });
});
