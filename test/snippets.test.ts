import { execFile } from 'node:child_process';
import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, describe, expect, test } from 'vitest';
import { loadWithEnvironment } from '../src/cli/framework/configuration.ts';
import { BACKENDS } from '../src/daemon/backends/registry.ts';
import { commandOf, howToInstall } from './setup/tools.mjs';
import { hasNamespaces } from './support/services.ts';
import { type Page, pagePaths, parsePage, readPage } from './support/snippets/pages.ts';
import { stepsOf } from './support/snippets/steps.ts';

const run = promisify(execFile);
const pages = pagePaths().map(readPage);
const blocks = pages.flatMap((page) => page.blocks);

describe('code blocks of README.md and docs/', () => {
  test('comments before them are understood', () => {
    expect(pages.flatMap(({ mistakes }) => mistakes)).toEqual([]);
  });

  test('few of them are not run', () => {
    expect(blocks.filter(({ notRun }) => notRun !== undefined).length).toBeLessThanOrEqual(
      MAX_NOT_RUN,
    );
  });

  test('a test that checks blocks of a page names the page', () => {
    const wrong = pages.flatMap(({ path, blocks: own }) =>
      own.flatMap(({ checkedBy }) =>
        checkedBy === undefined || namesPage(checkedBy, path) ? [] : [`${path}: ${checkedBy}`],
      ),
    );
    expect(wrong).toEqual([]);
  });

  test('show no placeholder in place of code', () => {
    const shown = pages.flatMap(({ path, blocks: own }) =>
      own
        .filter(({ language, text }) => ['js', 'ts'].includes(language) && text.includes('…'))
        .map(({ line }) => `${path}:${line}`),
    );
    expect(shown).toEqual([]);
  });
});

/** Blocks that no test runs, each with its reason. */
const MAX_NOT_RUN = 12;

/** Whether a test, or the support code it imports, reads a page. */
const namesPage = (file: string, path: string): boolean => {
  const source = readFileSync(file, 'utf8');
  const imported = [...source.matchAll(/from '(\.[^']+\.ts)'/g)].map(([, from]) =>
    join(file, '..', from),
  );
  return [file, ...imported].some((each) => readFileSync(each, 'utf8').includes(path));
};

/** Programs that blocks use and `npm test` does not install: without them their pages run in `npm run test:system`. */
const TOOLS = {
  nginx: /\bnginx\b/,
  netcat: /\bnc\b/,
  socat: /\bsocat\b/,
  promtool: /\bpromtool\b/,
};
const missing = Object.keys(TOOLS).filter((name) => commandOf(name) === undefined);

const canRun = ({ path, blocks: own }: Page): boolean => {
  const uses = (name: string): boolean =>
    own.some(({ language, text }) =>
      language === 'sh' ? TOOLS[name as keyof typeof TOOLS].test(text) : language === name,
    );
  const needed = missing.find(uses);
  if (needed !== undefined) console.warn(`SKIPPED: ${path}: ${howToInstall(needed)}`);
  return needed === undefined;
};

describe.runIf(hasNamespaces())('every block runs as it stands', () => {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-snippets-'));
  installIn(folder);
  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  const withSteps = pages.filter((page) => stepsOf(page).length > 0).filter(canRun);
  test.concurrent.each(withSteps)('$path', async (page) => {
    expect(await problemsOf(page, folder)).toEqual([]);
  });

  const mistakes = [
    ['js', 'throw new Error("wrong")', 'wrong'],
    ['js', 'process.emitWarning("careful")', 'careful'],
    ['ts', 'const n: number = "one";', 'types'],
    ['sh', 'echo no >&2; false', 'no'],
    ['yaml', 'limits: { api: { bukket: {} } }', 'bukket'],
    ['nginx', 'server { listn 80; }', 'listn'],
  ].filter(([language]) => !missing.includes(language));
  test.concurrent.each(mistakes)(
    'a block of %s with a mistake is found: %s',
    async (language, text, expected) => {
      const page = parsePage(
        `mistake-in-${language}-${text.length}`,
        `\`\`\`${language}\n${text}\n\`\`\`\n`,
      );
      expect(await problemsOf(page, folder)).toEqual([expect.stringContaining(expected)]);
    },
  );

  const withServer = pages.flatMap((page) => {
    const program = page.blocks.find(({ text }) => /redis\(client[\s\S]*listen\(/.test(text));
    return program === undefined ? [] : [{ path: page.path, page, program }];
  });
  test('some pages show a server with a limit in Redis', () => {
    expect(withServer.length).toBeGreaterThan(2);
  });

  test.concurrent.each(withServer)(
    '$path: its server starts and serves while Redis is down',
    async ({ page, program }) => {
      expect(await problemsOf(withoutRedis(page, program), folder)).toEqual([]);
    },
  );

  test('output that differs from what a page shows is found', async () => {
    const shown = '```sh\necho one\n```\n<!-- prints -->\n```\ntwo\n```\n';
    expect(await problemsOf(parsePage('prints', shown), folder)).toEqual([
      'prints:5: printed: one',
    ]);
  });
});

/** A server of a page, the file that it reads, and a request to it, in a network without Redis. */
function withoutRedis(page: Page, program: Page['blocks'][number]): Page {
  const [, port] = /listen\(\D*(\d+)/.exec(program.text) ?? [];
  const [file] = page.blocks.filter(({ text }) => /^echo .+ > \S+\n$/.test(text));
  const request = `curl -sf -o /dev/null 127.0.0.1:${port}`;
  return {
    ...page,
    path: `${page.path}-without-redis`,
    servers: [],
    blocks: [
      ...(file === undefined ? [] : [file]),
      { ...program, port: Number(port) },
      { ...program, language: 'sh', text: request, file: undefined, port: undefined },
    ],
  };
}

test('how-to pages and README.md start without Redis: connect has a deadline', () => {
  const waiting = pages
    .filter(({ path }) => path === 'README.md' || path.startsWith('docs/how-to/'))
    .flatMap(({ path, blocks: own }) =>
      own
        .filter(({ text }) => /sluice\/(?:redis|pool)'/.test(text))
        .filter(({ text }) => /await (?:client|createClient\().*connect\(\);/.test(text))
        .map(({ line }) => `${path}:${line}`),
    );
  expect(waiting).toEqual([]);
});

test('blocks of JSON parse', () => {
  const json = blocks.filter(({ language }) => language === 'json');
  for (const { text } of json) expect(() => JSON.parse(text)).not.toThrow();
});

/** Makes `sluice` and all packages importable below a folder, and its command available, as after `npm install`. */
function installIn(folder: string): void {
  const modules = join(folder, 'node_modules');
  mkdirSync(join(modules, '.bin'), { recursive: true });
  for (const name of readdirSync('node_modules').filter((each) => !each.startsWith('.')))
    symlinkSync(resolve('node_modules', name), join(modules, name));
  symlinkSync(resolve('.'), join(modules, 'sluice'));
  const command = (name: string, line: string): void =>
    writeFileSync(join(modules, '.bin', name), `#!/bin/sh\nexec ${line} "$@"\n`, { mode: 0o755 });
  command('sluice', `'${process.execPath}' '${resolve('dist/cli/main.js')}'`);
  command('npx', ''); // all commands are in the path
}

/** Runs a page in a folder and a network of its own; what went wrong, with its line. */
async function problemsOf(page: Page, folder: string): Promise<string[]> {
  const own = join(folder, page.path.replaceAll('/', '-'));
  mkdirSync(own);
  const tools = {
    cli: resolve('dist/cli/main.js'),
    load: resolve('test/support/snippets/load.mjs'),
    tsc: resolve('node_modules/typescript/bin/tsc'),
  };
  const plan = join(own, 'plan.json');
  writeFileSync(plan, JSON.stringify({ servers: page.servers, steps: stepsOf(page), tools }));
  const isolated = ['--net', '--pid', '--fork', '--kill-child', '--mount-proc'];
  const command = [process.execPath, resolve('test/support/snippets/run-page.mjs'), plan];
  const PATH = `${join(folder, 'node_modules/.bin')}:${process.env.PATH}:/usr/sbin`;
  const { stdout } = await run('unshare', [...isolated, ...command], {
    cwd: own,
    env: { ...process.env, PATH, NODE_ENV: '' },
  });
  const problems = JSON.parse(stdout) as { line: number; problem: string }[];
  for (const { kind, name, line } of stepsOf(page)) {
    if (kind !== 'yaml') continue;
    const loaded = loadWithEnvironment(join(own, name), BACKENDS);
    if ('problems' in loaded) problems.push({ line, problem: loaded.problems.join('\n') });
  }
  return problems.map(({ line, problem }) => `${page.path}:${line}: ${problem}`);
}
