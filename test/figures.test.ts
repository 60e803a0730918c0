import { execFileSync } from 'node:child_process';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test } from 'vitest';

const filesIn = (folder: string, ending: string): string[] =>
  readdirSync(folder, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith(ending))
    .map((path) => `${folder}/${path.replaceAll('\\', '/')}`);

const BLOCK = /<!-- figures: ([\w-]+) -->\n([\s\S]*?)\n<!-- \/figures -->/g;
const WRITER = /writeFigures\(\s*'([^']+)',\s*'([^']+)'/g;

const pages = ['README.md', 'bench/RESULTS.md', ...filesIn('docs', '.md')];
const blocks = pages.flatMap((page) =>
  [...readFileSync(page, 'utf8').matchAll(BLOCK)].map(([, name, text]) => ({
    at: `${page}: ${name}`,
    text,
  })),
);
const writers = filesIn('bench', '.mjs').flatMap((script) =>
  [...readFileSync(script, 'utf8').matchAll(WRITER)].map(([, page, name]) => `${page}: ${name}`),
);

describe('figure blocks', () => {
  test('every block has one writer, and every writer one block', () => {
    expect(blocks.length).toBeGreaterThan(20);
    expect(writers.toSorted()).toEqual(blocks.map(({ at }) => at).toSorted());
  });

  test('markers are balanced and not nested', () => {
    for (const page of pages) {
      const marks = readFileSync(page, 'utf8').match(/<!-- (\/?)figures/g) ?? [];
      const pairs = Math.ceil(marks.length / 2);
      const expected = Array(pairs).fill(['<!-- figures', '<!-- /figures']).flat();
      expect({ page, marks }).toEqual({ page, marks: expected });
    }
  });

  test('the last line of a block names the npm script', () => {
    const { scripts } = JSON.parse(readFileSync('package.json', 'utf8')) as {
      scripts: Record<string, string>;
    };
    const nameless = blocks.filter(({ text }) => {
      const [, script = ''] = /`npm run ([\w:-]+)/.exec(text.split('\n').at(-1) ?? '') ?? [];
      return !(script in scripts);
    });
    expect(nameless.map(({ at }) => at)).toEqual([]);
  });
});

describe('npm run figures', () => {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-figures-'));
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  const run = (...words: string[]): { code: number; out: string; err: string } => {
    try {
      const out = execFileSync(process.execPath, words, { encoding: 'utf8', stdio: 'pipe' });
      return { code: 0, out, err: '' };
    } catch (error) {
      const { status, stdout, stderr } = error as {
        status: number;
        stdout: string;
        stderr: string;
      };
      return { code: status, out: stdout, err: stderr };
    }
  };

  test('runs every benchmark and every soak', () => {
    const { scripts } = JSON.parse(readFileSync('package.json', 'utf8')) as { scripts: object };
    // bench:compare needs a commit to compare with.
    const measuring = Object.keys(scripts).filter((name) =>
      /^(bench|soak)(?!:compare)|^figures:/.test(name),
    );
    const listed = run('bench/figures.mjs', '--list')
      .out.trim()
      .split('\n')
      .map((line) => line.split(' ')[0]);
    expect([...new Set(listed)].toSorted()).toEqual(measuring.toSorted());
  });

  test('rejects an unknown step with exit code 2', () => {
    expect(run('bench/figures.mjs', '--only', 'bench,soak:unknown')).toMatchObject({
      code: 2,
      err: expect.stringMatching(/^expected a step of bench, .*, got "soak:unknown"$/m),
    });
  });

  test.each([
    ['bench/soak/redis.mjs', '--short'],
    ['bench/soak/etcd.mjs', '--short'],
    ['bench/soak/peers.mjs', '--short'],
    ['bench/soak/pool.mjs', '--store', 'redis'],
    ['bench/soak/groups.mjs', '--short'],
    ['bench/soak/fuzz.mjs', '--inputs', '1000'],
    ['bench/soak/attack.mjs', '--rounds', '1'],
    ['bench/soak/peers-fuzz.mjs', '--datagrams', '1000'],
    ['bench/daemon/soak.mjs', '--short'],
    ['bench/daemon/stalls.mjs', '--short'],
    ['bench/daemon/overload.mjs', '--short'],
    ['bench/compare/run.mjs', 'HEAD', '--short'],
    ['bench/keys.mjs', '--smoke'],
    ['bench/start-times.mjs', '--smoke'],
    ['bench/seeds.mjs', '--part', '0.001'],
    ['bench/busy.mjs', '--quick'],
    ['bench/adaptive.mjs', '--quick'],
    ['bench/adaptive-live.mjs', '--short'],
    ['bench/priorities.mjs', '--short'],
    ['bench/accuracy.mjs', '--quick'],
  ])('%s %s: rejects --write for a shortened run', (...words) => {
    const err = 'expected a full run with --write, got a shortened one; nothing was started\n';
    expect(run(...words, '--write')).toMatchObject({ code: 2, err });
  });

  test('writeFigures: replaces one block only, and fails without balanced markers', () => {
    cpSync('bench/report.mjs', join(folder, 'bench/report.mjs'));
    const page = join(folder, 'page.md');
    const write = (name: string) => {
      const call = `writeFigures('page.md', '${name}', 'new')`;
      const script = `import { writeFigures } from '${join(folder, 'bench/report.mjs')}'; ${call}`;
      return run('--input-type=module', '--eval', script);
    };
    const twice = '<!-- figures: c -->\nold\n<!-- /figures -->\n';
    const open = '<!-- figures: d -->\nold\n';
    const text = `before\n<!-- figures: a -->\nold\n<!-- /figures -->\nbetween\n${twice}${twice}${open}`;
    writeFileSync(page, text);
    expect(write('a').code).toBe(0);
    const written = text.replace('old', 'new');
    expect(readFileSync(page, 'utf8')).toBe(written);
    expect(write('b').err).toContain(
      'expected <!-- figures: b --> once in page.md, found it 0 times',
    );
    expect(write('c').err).toContain(
      'expected <!-- figures: c --> once in page.md, found it 2 times',
    );
    expect(write('d').err).toContain(
      'expected <!-- /figures --> after <!-- figures: d --> in page.md',
    );
    expect(readFileSync(page, 'utf8')).toBe(written);
  });
});
