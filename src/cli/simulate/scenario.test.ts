import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { runCliAtAsync } from '../../../test/support/terminal.ts';

const folder = mkdtempSync(join(tmpdir(), 'scenario-'));

function fileOf(text: string, name = 'small.yaml'): string {
  const file = join(folder, name);
  writeFileSync(file, text);
  return file;
}

const SMALL = `duration: 10s
limits:
  api: { bucket: { rate: 10/s, burst: 10 } }
clients:
  mallory: { rate: 50/s }
expect:
  - { allowed: [108, 110], of: mallory }
  - { denied: 0 }
  - { allowedPerSecond: [1, 2], from: 5s }
`;

const simulate = (...words: string[]) => runCliAtAsync(100, ['simulate', ...words]);

describe('simulate FILE', () => {
  test('prints charts and figures, lists every missed expectation, and exits with 1', async () => {
    const { code, out } = await simulate(fileOf(SMALL));
    const text = out.join('\n');
    expect(code).toBe(1);
    expect(text).toContain('calls/s  ━ limit 10/s  █ allowed  ░ calls');
    expect(text).toMatch(/^mallory +500 +10[89] +39[12] /m);
    expect(text).toContain('1 of 3 expectations met');
    expect(text).toMatch(/met +allowed of mallory, 0 s to 10 s: 10[89], expected 108 to 110/);
    expect(text).toMatch(/MISSED +denied, 0 s to 10 s: 39[12], expected 0/);
    expect(text).toMatch(/MISSED +allowedPerSecond, 5 s to 10 s: 10, expected 1 to 2/);
  });

  test('exits with 0 if every expectation is met', async () => {
    const met = SMALL.split('\n').slice(0, 7).join('\n');
    expect((await simulate(fileOf(met))).code).toBe(0);
  });

  test('--json prints one line; --seed replaces the seed of the file', async () => {
    const file = fileOf(SMALL.replace('rate: 50/s', 'rate: 50/s, shape: poisson'));
    const [one, other] = await Promise.all(
      ['4', '5'].map(async (seed) => {
        const { out } = await simulate(file, '--json', '--seed', seed);
        expect(out).toHaveLength(1);
        return JSON.parse(out[0]);
      }),
    );
    expect(one).toMatchObject({ name: 'small', seed: 4, clients: { mallory: { failed: 0 } } });
    expect(one.expectations).toHaveLength(3);
    expect(one.figures.calls).not.toBe(other.figures.calls);
  });

  test('--seeds runs several seeds: the span of each figure, and the seeds that missed a range', async () => {
    const poisson = SMALL.replace('rate: 50/s', 'rate: 11/s, shape: poisson').replace(
      '[108, 110]',
      '[100, 110]',
    );
    const file = fileOf(poisson);
    const { out, code } = await simulate(file, '--seeds', '5', '--seed', '3');
    expect(code).toBe(1);
    expect(out[0]).toBe('small: seeds 3 to 7, 0 of 5 runs met every expectation');
    const row = out.find((line) => line.includes('denied'));
    expect(row).toMatch(/^MISSED +denied, 0 s to 10 s +0 +\d+ +\d+ +\d+ +3, 4, 5, 6, 7$/);
    const lines = (await simulate(file, '--seeds', '5', '--seed', '3', '--json')).out;
    const runs = lines.map((line) => JSON.parse(line));
    expect(runs.map(({ seed }) => seed)).toEqual([3, 4, 5, 6, 7]);
    const allowed: number[] = runs.map(({ expectations }) => expectations[0].value);
    const [lowest, , median, , highest] = allowed.sort((a, b) => a - b);
    const spread = new RegExp(` 100 to 110 +${lowest} +${median} +${highest}( |$)`);
    expect(out.find((line) => line.includes('allowed of'))).toMatch(spread);
    const { err, code: wrong } = await simulate(file, '--seeds', '2', '--svg', 'a.svg');
    expect({ err, wrong }).toEqual({
      err: expect.arrayContaining([expect.stringContaining('expected `--seeds` without `--svg`')]),
      wrong: 2,
    });
  });

  test('--svg and --html write files that refer to no other host', async () => {
    const [svg, html] = [join(folder, 'a.svg'), join(folder, 'a.html')];
    const { err } = await simulate(fileOf(SMALL), '--svg', svg, '--html', html);
    expect(err).toEqual([`wrote ${svg}`, `wrote ${html}`]);
    expect(readFileSync(svg, 'utf8')).toContain('<title>small</title>');
    const page = readFileSync(html, 'utf8');
    expect(page).toContain("default-src 'none'");
    expect(page).toContain('MISSED');
    expect(page.replaceAll('http://www.w3.org/2000/svg', '')).not.toMatch(/https?:|<script|<link/);
  });

  test('--compare runs another rule or another file beside it', async () => {
    const rule = '{window: {limit: 20, per: 1s}}';
    const { out, code } = await simulate(fileOf(SMALL), '--compare', rule);
    expect(code).toBe(1);
    expect(out.join('\n')).toMatch(
      /^\{window: \{limit: 20, per: 1s\}\} +mallory +500 +(?:19|20)\d/m,
    );
    const twice = fileOf(SMALL.replace('rate: 10/s', 'rate: 20/s'), 'twice.yaml');
    const lines = (await simulate(fileOf(SMALL), '--compare', twice, '--json')).out;
    expect(lines.map((line) => JSON.parse(line).name)).toEqual(['small', 'twice']);
  });

  test('a mistake is reported with file, line and field, and all of them at once', async () => {
    const file = fileOf(`${SMALL.replace('rate: 50/s', 'rat: 50/s')}  - { alowed: 3 }\n`);
    const { code, err } = await simulate(file);
    const text = err.join('\n');
    expect(code).toBe(2);
    expect(text).toContain(`${file}:5:`);
    expect(text).toContain('expected `clients.mallory.rat` to be one of');
    expect(text).toContain(`${file}:10:`);
    expect(text).toContain('did you mean `allowed`?');
    expect(text).toContain('  - { alowed: 3 }');
  });

  test('a file that is not there, or is no YAML, is an error', async () => {
    expect((await simulate('missing.yaml')).err.join()).toContain('cannot read missing.yaml');
    expect((await simulate(fileOf('{ nodes: ['))).err.join()).toContain('small.yaml:1:');
  });

  test('other words are still commands', async () => {
    expect((await simulate('peer')).err.join()).toContain(
      'expected one of adaptive, groups, peers',
    );
    expect((await simulate('--help')).out.join()).toContain('FILE.yaml');
  });
});
