/**
 * The packed tarball, installed once in a project outside the repository: programs, command, types, links.
 *
 * Code blocks of docs/how-to/deploy.md refer to it.
 */

import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { checkPackage, createPackageFromTarballData } from '@arethetypeswrong/core';
import { type BuildFailure, build } from 'esbuild';
import type { Browser } from 'playwright-core';
import { publint } from 'publint';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { launchBrowser, runModule } from './support/browser.ts';
import { DURATIONS, RATES } from './support/duration-spellings.ts';
import { chromiumBrowser } from './support/services.ts';

const run = promisify(execFile);
const folder = mkdtempSync(join(tmpdir(), 'sluice-package-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const installed = join(folder, 'node_modules/sluice');
let tarball: Buffer;

beforeAll(async () => {
  // The build of `npm test` is packed; a release is built anew by `prepack`.
  await run('npm', ['pack', '--ignore-scripts', '--pack-destination', folder]);
  const [file] = readdirSync(folder).filter((name) => name.endsWith('.tgz'));
  tarball = readFileSync(join(folder, file));
  writeFileSync(join(folder, 'package.json'), '{ "private": true }');
  await run('npm', ['install', '--offline', '--no-audit', '--no-fund', `./${file}`], {
    cwd: folder,
  });
}, 120_000);

const node = async (...args: readonly string[]): Promise<string> =>
  (await run(process.execPath, [...args], { cwd: folder })).stdout;

const write = (name: string, text: string): string => {
  writeFileSync(join(folder, name), text);
  return name;
};

const exports = Object.keys(JSON.parse(readFileSync('package.json', 'utf8')).exports).filter(
  (path) => path !== './package.json',
);

/** Entries whose peer is not installed in that project. */
const NEEDS_PEER = ['./nest', './opentelemetry', './nats', './pool/nats'];
const entries = exports
  .filter((path) => !NEEDS_PEER.includes(path))
  .map((path) => `sluice${path.slice(1)}`);

describe('packed tarball', () => {
  test('installs nothing but itself, and ships the licences of what its bundles contain', () => {
    const names = readdirSync(join(folder, 'node_modules')).filter((name) => !name.startsWith('.'));
    expect(names).toEqual(['sluice']);
    const licences = readFileSync(join(installed, 'dist/THIRD-PARTY-LICENSES.txt'), 'utf8');
    for (const name of ['preact', 're2js', 'uplot', 'yaml']) {
      expect(licences).toMatch(new RegExp(`^${name} \\d`, 'm'));
    }
  });

  test('every entry loads as ES module', async () => {
    const lines = entries.map((entry, n) => `import * as e${n} from '${entry}';`).join('\n');
    const counts = entries.map((_, n) => `Object.keys(e${n}).length`).join();
    const out = await node(write('all.mjs', `${lines}\nconsole.log(Math.min(${counts}));`));
    expect(Number(out)).toBeGreaterThan(0);
  });

  test.each([[['--no-experimental-require-module']], [[]]])(
    'every entry loads by require with %j, and errors keep their class',
    async (flags) => {
      const program = `
        const loaded = ${JSON.stringify(entries)}.map((entry) => require(entry));
        const { limiter, throttle, ConfigError, DeniedError } = loaded[0];
        try { limiter({ limit: { bucket: { rate: 'x' } } }); } catch (error) { console.log(error instanceof ConfigError, error.code); }
        const call = throttle(() => 1, { limit: { bucket: { rate: '1/h' } } });
        call();
        try { call(); } catch (error) { console.log(error instanceof DeniedError, error.code); }`;
      const out = await node(...flags, write('all.cjs', program));
      expect(out).toBe('true CONFIG\ntrue DENIED\n');
    },
  );

  test('the command runs', async () => {
    expect(await node(join(installed, 'dist/bin/sluice.js'), '--help')).toContain('serve');
    const bin = join(folder, 'node_modules/.bin/sluice');
    for (const command of ['serve', 'trace', 'simulate peers', 'config check', 'pool']) {
      const words = [...command.split(' '), '--help'];
      expect((await run(bin, words, { cwd: folder })).stdout).toContain('usage');
    }
  });

  test('are the types wrong: no problem', async () => {
    const result = await checkPackage(createPackageFromTarballData(new Uint8Array(tarball)));
    expect('problems' in result && result.problems).toEqual([]);
  }, 120_000);

  test('publint: no message', async () => {
    const { messages } = await publint({ pkgDir: installed, strict: true });
    expect(messages).toEqual([]);
  });

  test('names no source map, as it ships none', () => {
    const files = readdirSync(installed, { recursive: true, encoding: 'utf8' });
    expect(files.filter((file) => file.endsWith('.map'))).toEqual([]);
    const scripts = files.filter((file) => file.endsWith('.js'));
    const naming = scripts.filter((file) =>
      readFileSync(join(installed, file), 'utf8').includes('\n//# sourceMappingURL='),
    );
    expect(naming).toEqual([]);
  });

  test('links of its pages lead to files that it contains', () => {
    const pages = readdirSync(installed, { recursive: true, encoding: 'utf8' }).filter(
      (file) => file.endsWith('.md') && !file.includes('decisions/'),
    );
    expect(pages).toContain('README.md');
    const broken = pages.flatMap((page) =>
      [...readFileSync(join(installed, page), 'utf8').matchAll(/\]\(([^)\s#]+)(?:#[^)]*)?\)/g)]
        .map(([, target]) => target)
        .filter((target) => !/^[a-z]+:/.test(target))
        .filter((target) => !existsSync(join(installed, dirname(page), target)))
        .map((target) => `${page}: ${target}`),
    );
    expect(broken).toEqual([]);
  });
});

/** Entries that use sockets or other parts of Node, and a module of Node that each imports. */
const NODE_ONLY: Readonly<Record<string, string>> = {
  'sluice/client': 'node:net',
  'sluice/etcd': 'node:http',
  'sluice/groups': 'node:http',
  'sluice/peers': 'node:dgram',
  'sluice/pool': 'node:http',
};

/** A program as a bundler makes it for a page, with the installed package. */
async function bundleForBrowser(contents: string): Promise<string> {
  const result = await build({
    stdin: { contents, resolveDir: folder },
    ...({ bundle: true, write: false, format: 'esm', logLevel: 'silent' } as const),
    platform: 'browser',
  });
  return result.outputFiles[0].text;
}

const BROWSER_PROGRAM = `
import { limiter } from 'sluice';
import { throttleFetch } from 'sluice/fetch';
import { redis } from 'sluice/redis';
import { bucket, smallLimiter } from 'sluice/small';
import { VirtualClock } from 'sluice/testing';
import { rateLimit } from 'sluice/web';

const limit = { bucket: { rate: '1/h', burst: 1 } };
const verdictsOf = (own) => ['a', 'a'].map((key) => own.check(key).verdict);
const statuses = [];
const serve = rateLimit({ limit, key: () => 'all' })(() => new Response('served'));
for (let call = 0; call < 2; call++) statuses.push((await serve(new Request(location.href))).status);
const fetching = throttleFetch({ limit });
const fetched = [(await fetching('/')).status, await fetching('/').catch(({ code }) => code)];
const clock = new VirtualClock();
const names = []; // of keys in Redis
const client = {
  scriptLoad: async () => '',
  eval: async (_script, keys) => { names.push(...keys); throw new Error('no server'); },
  evalsha() {},
  scan() {},
};
const shared = limiter({ name: 'api', limit, backend: redis(client, { onUnavailable: 'deny' }) });
shared.on(() => {}); // without a listener, the page warns of the outage
const { reason } = await shared.tryAcquire('x'.repeat(600));
console.log(JSON.stringify({
  named: verdictsOf(limiter({ limit, clock })),
  small: verdictsOf(smallLimiter(bucket(limit.bucket))),
  statuses,
  fetched,
  names,
  reason,
}));`;

describe.runIf(chromiumBrowser() !== undefined)('packed tarball in Chromium', () => {
  let browser: Browser;
  beforeAll(async () => {
    browser = await launchBrowser();
  }, 60_000);
  afterAll(() => browser.close());

  test('a bundled page decides, waits and settles as on Node', { timeout: 60_000 }, async () => {
    const program = readFileSync('test/runtimes/programs/library.mjs', 'utf8');
    const { printed, problems } = await runModule(browser, await bundleForBrowser(program));
    expect(JSON.parse(printed)).toEqual({
      verdicts: ['allow', 'allow', 'deny'],
      isSpaced: true,
      second: 'allow',
      denied: 'DENIED',
    });
    expect(problems).toEqual([]);
  });

  test('small, web, fetch, testing and redis work in a page', { timeout: 60_000 }, async () => {
    const digest = createHash('sha256').update('x'.repeat(600)).digest('base64url');
    const { printed, problems } = await runModule(browser, await bundleForBrowser(BROWSER_PROGRAM));
    expect(JSON.parse(printed)).toEqual({
      named: ['allow', 'deny'],
      small: ['allow', 'deny'],
      statuses: [200, 429],
      fetched: [200, 'DENIED'],
      names: [`sluice:{api#${digest}}:bucket`],
      reason: 'unavailable',
    });
    expect(problems).toEqual([]);
  });
});

describe('packed tarball, bundled for browsers', () => {
  const portable = entries.filter((entry) => !(entry in NODE_ONLY));

  test('docs/reference/runtimes.md: lists every entry once, and those that need Node as such', () => {
    const page = readFileSync('docs/reference/runtimes.md', 'utf8');
    const rows = page.split('\n').filter((line) => line.startsWith('| `sluice'));
    const named = rows.map((row) =>
      [...row.matchAll(/`(sluice[\w/-]*)`/g)].map(([, name]) => name),
    );
    expect(named.flat().sort()).toEqual(exports.map((path) => `sluice${path.slice(1)}`).sort());
    expect(named.at(-1)).toEqual(expect.arrayContaining(Object.keys(NODE_ONLY)));
    expect(named[0]?.filter((entry) => NEEDS_PEER.includes(entry.slice(6)))).toEqual([]);
  });

  test.each(portable)('%s: bundles', async (entry) => {
    expect(await bundleForBrowser(`export * from '${entry}';`)).not.toContain('node:');
  });

  test.each(Object.entries(NODE_ONLY))('%s: the bundler names %s', async (entry, needed) => {
    const { errors } = await bundleForBrowser(`export * from '${entry}';`).then(
      () => ({ errors: [] }),
      (failure: BuildFailure) => failure,
    );
    expect(errors.map(({ text }) => text)).toContain(`Could not resolve "${needed}"`);
    expect(errors[0]?.notes[0]?.text).toContain('built into node');
  });
});

const PROGRAM = `
import { limiter, type Duration, type Limit, type Permit, type Rate } from 'sluice';
import { smallLimiter, bucket } from 'sluice/small';
import { throttleFetch } from 'sluice/fetch';
const limit: Limit = { bucket: { rate: '10/s', burst: undefined } };
export const verdict: 'allow' | 'wait' | 'deny' = limiter({ limit, name: undefined }).check('x').verdict;
export const small = smallLimiter(bucket({ rate: '10/s' })).check('x');
export const fetching: typeof fetch = throttleFetch({ limit });
export const permits: Permit[] = [];
// @ts-expect-error two kinds in one limit
export const two: Limit = { bucket: { rate: 1 }, spacing: { every: '6s' } };
export const durations: Duration[] = ${JSON.stringify(DURATIONS)};
export const rates: Rate[] = ${JSON.stringify(RATES)};
const read: string = durations.join();
export const fromFile: Limit = { bucket: { rate: read as Rate } };
export const checked = { spacing: { every: '6s' } } satisfies Limit;
limiter({ limit: checked });
// @ts-expect-error a rate is written with a slash
export const word: Limit = { bucket: { rate: '10 per second' } };
// @ts-expect-error more than a duration
export const past: Limit = { spacing: { every: '6 seconds ago' } };
// @ts-expect-error no unit
export const bare: Limit = { spacing: { every: '6' } };
`;

/** Compilers, and whether they still have the resolution of Node 10. */
const COMPILERS = { typescript50: true, typescript54: true, typescript59: true, typescript: false };

describe.each(Object.entries(COMPILERS))('packed types with %s', (compiler, hasNode10) => {
  const compile = async (file: string, ...flags: readonly string[]): Promise<string> => {
    const tsc = resolve('node_modules', compiler, 'bin/tsc');
    const common = ['--noEmit', '--strict', '--target', 'es2022', '--lib', 'es2022,dom'];
    const args = [tsc, ...common, ...flags, write(file, PROGRAM)];
    return run(process.execPath, args, { cwd: folder }).then(
      ({ stdout }) => stdout,
      ({ stdout }) => stdout,
    );
  };

  test.each([['esm.mts'], ['cjs.cts']])(
    '%s: compiles without @types/node',
    async (file) => {
      expect(await compile(file, '--module', 'nodenext', '--skipLibCheck', 'false')).toBe('');
    },
    60_000,
  );

  test.runIf(hasNode10)(
    'node10 resolution: finds the types of entries',
    async () => {
      expect(await compile('old.ts', '--module', 'commonjs', '--moduleResolution', 'node')).toBe(
        '',
      );
    },
    60_000,
  );
});
