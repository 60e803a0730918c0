import { execFile, execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join, posix } from 'node:path';
import { promisify } from 'node:util';
import { describe, expect, test } from 'vitest';

const run = promisify(execFile);
const readme = readFileSync('README.md', 'utf8');

/** A sentence that promises, its page, and the test that holds it: file and title. */
const PROMISES = [
  [
    'README.md',
    'With `--snapshot FILE`, a stop and restart grants no fresh burst',
    'test/daemon.test.ts',
    'with a snapshot: grants no fresh burst',
  ],
  [
    'README.md',
    'without it, all keys begin anew',
    'test/daemon.test.ts',
    'without a snapshot: all keys begin anew',
  ],
  [
    'README.md',
    'a key has what Redis last told this process is left',
    'src/backends/redis/local-fallback.test.ts',
    'bucket: an outage grants no second burst',
  ],
  [
    'README.md',
    'a whole burst if it told nothing',
    'src/backends/redis/local-fallback.test.ts',
    'a process that has not used a key grants a whole burst of it',
  ],
  [
    'docs/explanation/guarantees.md',
    'no two permits of any process are closer than `every`',
    'test/soak.system.test.ts',
    'no violations, no unanswered calls, and permits follow each other at the interval',
  ],
] as const;

describe('README.md', () => {
  test.each(PROMISES)('%s: "%s" has a test', (page, sentence, file, title) => {
    expect(readFileSync(page, 'utf8').replace(/\s+/g, ' ')).toContain(sentence);
    expect(readFileSync(file, 'utf8')).toContain(title);
  });

  test('docs/tutorials/first-limiter.md shows the first example as it stands in examples/', () => {
    const first = readFileSync('examples/first.mjs', 'utf8');
    const tutorial = readFileSync('docs/tutorials/first-limiter.md', 'utf8');
    expect(tutorial).toContain(`\`\`\`js\n// first.mjs\n${first}\`\`\``);
  });

  test('docs/README.md lists every page of docs/', () => {
    const index = readFileSync('docs/README.md', 'utf8');
    const pages = readdirSync('docs', { recursive: true, encoding: 'utf8' }).filter(
      (path) => path.endsWith('.md') && path !== 'README.md' && !path.startsWith('decisions/'),
    );
    expect(pages.length).toBeGreaterThan(30);
    expect(pages.filter((path) => !index.includes(`](${path}`))).toEqual([]);
  });

  test('gives the test command that CI runs', () => {
    expect(readme).toContain('npm ci && npm test');
    expect(readFileSync('.ci/run', 'utf8')).toMatch(/^npm ci && npm test$/m);
  });

  test('README, docs and other pages have no link to a missing file or heading', () => {
    const texts = [
      'README.md',
      'ARCHITECTURE.md',
      'CONTRIBUTING.md',
      'CHANGELOG.md',
      'SECURITY.md',
    ];
    const pages = readdirSync('docs', { recursive: true, encoding: 'utf8' })
      .filter((path) => path.endsWith('.md'))
      .map((path) => join('docs', path));
    expect([...texts, ...pages].flatMap(brokenLinksOf)).toEqual([]);
  });

  test.each([
    ['no-such-page.md', 'no-such-page.md'],
    ['docs/reference/limits.md#no-such-heading', 'docs/reference/limits.md#no-such-heading'],
    ['#no-such-heading', '#no-such-heading'],
    ['docs/reference/limits.md#decisions', undefined],
    ['#which-limit-do-i-want', undefined],
    ['docs', undefined],
  ])('a link to %s: the test above reports %s', (target, reported) => {
    expect(brokenLinks('README.md', `[x](${target})`)).toEqual(
      reported === undefined ? [] : [`README.md: ${reported}`],
    );
  });
});

const brokenLinksOf = (page: string): string[] => brokenLinks(page, proseOf(page));

function brokenLinks(page: string, text: string): string[] {
  return [...text.matchAll(/\]\((?!https?:)([^)\s]+)/g)]
    .map(([, target = '']) => target)
    .filter((target) => {
      const [file = '', heading] = target.split('#');
      const path = file === '' ? page : posix.join(posix.dirname(page), file);
      return !existsSync(path) || (heading !== undefined && !anchorsOf(path).includes(heading));
    })
    .map((target) => `${page}: ${target}`);
}

/** A page without its code blocks. */
const proseOf = (page: string): string =>
  readFileSync(page, 'utf8').replace(/^```[\s\S]*?^```/gm, '');

/** The anchors that GitHub makes of a page's headings; a repeated heading gets a number. */
function anchorsOf(page: string): string[] {
  const seen = new Map<string, number>();
  return [...proseOf(page).matchAll(/^#{1,6} (.+)$/gm)].map(([, heading = '']) => {
    const kept = heading
      .trim()
      .toLowerCase()
      .replace(/[^\p{L}\p{N}\s_-]/gu, '');
    const anchor = kept.replaceAll(' ', '-');
    const count = seen.get(anchor) ?? 0;
    seen.set(anchor, count + 1);
    return count === 0 ? anchor : `${anchor}-${count}`;
  });
}

describe('examples', () => {
  /** Counts replies 429 within seconds of real time: examples.system.test.ts runs it. */
  const IN_REAL_TIME = 'llm-quota.mjs';
  const examples = readdirSync('examples').filter(
    (file) => file.endsWith('.mjs') && file !== IN_REAL_TIME,
  );

  // Each checks its own promise, and fails with an exit code if it did not hold.
  test.each(examples)('%s runs', async (file) => {
    const { stdout } = await run(process.execPath, [`examples/${file}`], { timeout: 200_000 });
    expect(stdout).not.toBe('');
  });

  test('the first one serves twenty calls and says when the next may come', () => {
    const out = execFileSync(process.execPath, ['examples/first.mjs'], { encoding: 'utf8' });
    expect(out).toMatch(/call 20: served\ncall 21: too many calls, try again in \d{1,4} ms/);
  });
});

describe('docs', () => {
  // Commands on virtual time are deterministic; commands that query a daemon are not.
  const SHOWN = /```\n\$ sluice ((?:simulate|explain) .*)\n([\s\S]*?)```/g;
  const shown = readdirSync('docs', { recursive: true, encoding: 'utf8' })
    .filter((file) => file.endsWith('.md'))
    .flatMap((file) => [...readFileSync(`docs/${file}`, 'utf8').matchAll(SHOWN)])
    .map(([, command, printed]) => ({ command, printed }));

  test('show some commands', () => expect(shown.length).toBeGreaterThan(3));

  test.each(shown)('show what sluice $command prints', async (own) => {
    const args = ['dist/bin/sluice.js', ...own.command.split(' ')];
    const { stdout } = await run(process.execPath, args, { timeout: 200_000 });
    expect(stdout.trimEnd()).toBe(own.printed.trimEnd());
  });
});

describe('docs/reference/daemon.md', () => {
  test('names every figure in full, as one looks for it', () => {
    const page = readFileSync('docs/reference/daemon.md', 'utf8');
    const views = ['groups', 'peers', 'pool'].map((name) => `src/backends/${name}/daemon-view.ts`);
    const files = ['src/daemon/metrics.ts', ...views];
    const source = files.map((file) => readFileSync(file, 'utf8')).join();
    const names = [...source.matchAll(/'(sluice_\w+)'/g)].map(([, name]) => name);
    expect(names.length).toBeGreaterThan(20);
    expect(names.filter((name) => !page.includes(`\`${name}\``))).toEqual([]);
  });
});

describe('docs/reference/errors.md', () => {
  test('tells of every warning and every error, by its code', () => {
    const page = readFileSync('docs/reference/errors.md', 'utf8');
    const codes = (file: string, type: string): string[] => {
      const [, body = ''] =
        new RegExp(`type ${type} =([^;]*);`).exec(readFileSync(file, 'utf8')) ?? [];
      return [...body.matchAll(/'(\w+)'/g)].map(([, code]) => code);
    };
    const warnings = codes('src/core/process-warning.ts', 'WarningCode').map(
      (code) => `SLUICE_${code}`,
    );
    const errors = codes('src/core/errors.ts', 'ErrorCode');
    expect([warnings.length > 5, errors.length > 2]).toEqual([true, true]);
    expect([...warnings, ...errors].filter((code) => !page.includes(`\`${code}\` |`))).toEqual([]);
  });
});

describe('docs/explanation/choosing-a-backend.md', () => {
  const rowsOf = (page: string): string[][] =>
    readFileSync(page, 'utf8')
      .split('\n')
      .filter((line) => line.startsWith('| '))
      .map((line) => line.split(' | ').map((cell) => cell.replace(/^\| | \|$/g, '')));
  const matrix = rowsOf('docs/reference/limits.md').filter((cells) => cells.length === 7);
  const header = matrix.find(
    ([first, second]) => first === 'limit' && second.startsWith('[redis]'),
  );

  const backends = ['redis', 'etcd', 'peers', 'pool', 'groups', 'durable objects'];
  test.each(backends)('lists the limits of %s', (backend) => {
    const column = header?.findIndex((cell) => cell.startsWith(`[${backend}]`)) ?? -1;
    const shared = matrix
      .filter((cells) => /^(?:yes|alone)/.test(cells[column]))
      .map(([kind]) => kind.replaceAll('`', ''));
    const row = rowsOf('docs/explanation/choosing-a-backend.md').find(
      ([first, ...rest]) => first.startsWith(`[${backend}]`) && rest.length === 6,
    );
    const listed = [...(row?.[5] ?? '').matchAll(/`(\w+)`/g)].map(([, kind]) => kind);
    expect(shared.length).toBeGreaterThan(1);
    expect(listed).toEqual(shared);
  });
});

describe('docs/reference/limits.md', () => {
  const page = readFileSync('docs/reference/limits.md', 'utf8');
  const kinds = page.split(/^## /m).flatMap((part) => /^(\w+):/.exec(part)?.[1] ?? []);
  const sourceOf = (file: string) => readFileSync(`src/policies/${file}`, 'utf8');
  const OPTIONS = /export interface \w+Options(?: extends [^{]*)? \{([\s\S]*?)\n\}/;
  const policies = readdirSync('src/policies')
    .filter((file) => file.endsWith('.ts') && file !== 'aimd-options.ts') // a rule of adaptive
    .filter((file) => OPTIONS.test(sourceOf(file)));

  test('has a section for every policy', () => {
    expect(policies.map((file) => file.replace('.ts', '')).sort()).toEqual(
      kinds.filter((kind) => kind !== 'all').sort(),
    );
  });

  test.each(policies)('documents every option of %s', (file) => {
    const kind = file.replace('.ts', '');
    const section = page.split(/^## /m).find((part) => part.startsWith(`${kind}:`)) ?? '';
    const source = kind === 'adaptive' ? ['aimd-options.ts', file] : [file];
    const options = source.flatMap((name) => {
      const [, body = ''] = OPTIONS.exec(sourceOf(name)) ?? [];
      return [...body.matchAll(/readonly (\w+)\??:/g)].map(([, option]) => option);
    });
    expect(options.length).toBeGreaterThan(1);
    expect(options.filter((name) => !section.includes(`| \`${name}\` |`))).toEqual([]);
  });
});
