/** The registry of backends: the daemon and the CLI name no backend, and a new one needs a module and one line. */

import { readdirSync, readFileSync } from 'node:fs';
import { afterEach, describe, expect, test, vi } from 'vitest';
import type { BackendModule } from '../src/backends/daemon-backend.ts';
import { DelegatingBackend } from '../src/backends/delegating-backend.ts';
import { LocalBackend } from '../src/backends/local/backend.ts';
import { dryRunPool } from '../src/backends/pool/backend.ts';
import { run } from '../src/cli/run.ts';
import { gauge } from '../src/core/metric-family.ts';
import { OptionReader } from '../src/core/options.ts';
import { BACKEND_PAGES } from '../src/daemon/backends/pages.ts';
import { BACKENDS } from '../src/daemon/backends/registry.ts';
import { fromEnvironment, parseConfigText } from '../src/daemon/config/file.ts';
import { Daemon } from '../src/daemon/daemon.ts';

const REGISTRY = 'src/daemon/backends/registry.ts';

describe('backend names in src/daemon and src/cli', () => {
  const files = ['src/daemon', 'src/cli'].flatMap((root) =>
    readdirSync(root, { recursive: true, encoding: 'utf8' })
      .map((path) => `${root}/${path.replaceAll('\\', '/')}`)
      .filter((path) => path.endsWith('.ts') && !path.endsWith('.test.ts'))
      .filter((path) => !path.startsWith('src/cli/simulate/')),
  );
  const codeOf = (path: string): string =>
    readFileSync(path, 'utf8')
      .replace(/\/\*[\s\S]*?\*\//g, '')
      .replace(/\/\/.*$/gm, '');
  const filesWith = (pattern: RegExp): string[] =>
    files.filter((path) => pattern.test(codeOf(path)));

  test.each(BACKENDS.map(({ name }) => name))('only the registry quotes or imports %s', (name) => {
    expect(filesWith(new RegExp(`(['"\`])${name}\\1|backends/${name}/`))).toEqual([REGISTRY]);
  });

  test('the list of pages is that of the registry', () => {
    const pages = BACKENDS.flatMap(({ name, page }) => (page ? { name, page } : []));
    expect(BACKEND_PAGES).toEqual(pages);
  });

  test('only the registry imports the module of a backend', () => {
    expect(filesWith(/backends\/\w+\/daemon/)).toEqual([REGISTRY]);
  });
});

describe('a seventh backend', () => {
  /** Allows every odd check, to be told from a local limit. */
  const coin: BackendModule = {
    name: 'coin',
    readSection(value, path) {
      const fields = OptionReader.collecting(path, value);
      const sides = fields.integer('sides', 2);
      fields.finish();
      let checks = 0;
      const factory = {
        isRemote: false as const,
        create: (...args: ConstructorParameters<typeof LocalBackend>) => {
          const backend = new DelegatingBackend(new LocalBackend(...args));
          const check = backend.check.bind(backend);
          backend.check = (...call) =>
            checks++ % sides === 0
              ? check(...call)
              : { verdict: 'deny', retryAfterMs: 1, remaining: 0 };
          return Object.assign(backend, { needsKeyNames: true });
        },
      };
      return {
        limit: { name: 'coin', identity: `coin ${sides}`, view: { sides }, dryRun: () => factory },
        identity: JSON.stringify(value),
        start: async () => ({
          createFactory: () => factory,
          view: () => ({ id: 'a\u001bcoin', sides, checks }),
          metrics: () => [
            gauge('sluice_coin_checks', 'Checks by side.', [[{ side: 'a "b"\\\n' }, checks]]),
          ],
          close: () => {},
        }),
      };
    },
    page: {
      summary: 'a coin',
      description: 'Shows a coin.',
      emptyView: { sides: [] },
      emptyMessage: 'The daemon has no coin.',
      render(view) {
        const { id, checks } = view as { id: string; checks: number };
        return [
          `coin ${id}`,
          [
            ['side', 'checks'],
            ['heads', String(checks)],
          ],
        ];
      },
    },
    overrides: [{ field: 'sides', variable: 'SLUICE_COIN', kind: 'text' }],
  };
  const modules = [...BACKENDS, coin];

  const LIMITS = 'limits: { api: { bucket: { rate: 1/h, burst: 100 }, coin: true } }';
  const LISTEN = 'listen: { line: off, resp: off, http: 127.0.0.1:0 }';

  const load = (text: string, env: NodeJS.ProcessEnv = {}) =>
    parseConfigText('sluice.yaml', text, fromEnvironment(env, modules), modules);
  const problemsOf = (text: string, env?: NodeJS.ProcessEnv): string => {
    const loaded = load(text, env);
    return 'problems' in loaded ? loaded.problems.join('\n') : '';
  };

  const daemons: Daemon[] = [];
  afterEach(async () => {
    for (const daemon of daemons.splice(0)) await daemon.stop();
  });

  async function start(text: string) {
    const loaded = load(`${LISTEN}\n${text}`);
    if ('problems' in loaded) throw new Error(loaded.problems.join('\n'));
    const context = { log: () => {}, load: () => loaded, version: '0.0.0', backends: modules };
    const daemon = await Daemon.start(loaded.config, context);
    daemons.push(daemon);
    const [{ listen }] = daemon.addresses;
    const at = `127.0.0.1:${listen.kind === 'tcp' ? listen.port : 0}`;
    return { at, get: (path: string) => fetch(`http://${at}${path}`) };
  }

  async function command(...words: string[]) {
    const lines: string[] = [];
    const print = (line: string) => void lines.push(line);
    const terminal = { print, error: print, log: print, columns: 100, version: '0.0.0' };
    const code = await run(words, terminal, modules);
    return { code, text: lines.join('\n') };
  }

  test('its section is validated, and a close name suggested', () => {
    expect(problemsOf(`coin: { sides: 1 }\n${LIMITS}`)).toMatch(
      'sluice.yaml:1:9: expected `coin.sides` to be a whole number of at least 2, got 1',
    );
    expect(problemsOf('coin: { sides: 2, sids: 2 }')).toMatch(/did you mean `sides`\?/);
    expect(problemsOf('coins: { sides: 2 }')).toMatch(/did you mean `coin`\?/);
    expect(problemsOf('coin: {}', { SLUICE_COIN: 'x' })).toMatch(
      /^SLUICE_COIN: expected `coin.sides`/,
    );
  });

  test('the line of a section with mistakes is not shown, as it may hold a secret', () => {
    expect(problemsOf('coin: { sides: 1 }')).not.toContain('|');
  });

  test('a limit can use it only with its section, and beside no other backend', () => {
    expect(problemsOf(LIMITS)).toMatch(
      '`limits.api.coin` to be left out, or a section `coin` beside `limits`',
    );
    const both = LIMITS.replace('coin: true', 'coin: true, redis: { url: "redis://x" }');
    expect(problemsOf(`coin: { sides: 2 }\n${both}`)).toMatch(
      '`limits.api.coin` to be left out beside redis',
    );
  });

  test('decides a limit, and has an admin page and metrics with escaped labels', async () => {
    const { get } = await start(`coin: { sides: 2 }\n${LIMITS}`);
    const statuses = [];
    for (let n = 0; n < 4; n++) statuses.push((await get('/check?key=alice')).status);
    expect(statuses).toEqual([200, 429, 200, 429]);
    expect(await (await get('/coin')).json()).toMatchObject({ sides: 2, checks: 4 });
    expect(await (await get('/limits')).json()).toMatchObject([{ coin: { sides: 2 } }]);
    expect(await (await get('/')).text()).toMatch(/GET {2}\/coin +a coin\n/);
    expect(await (await get('/metrics')).text()).toContain(
      '# TYPE sluice_coin_checks gauge\nsluice_coin_checks{side="a \\"b\\"\\\\\\n"} 4\n',
    );
  });

  test('has a CLI command, which prints its page without control characters', async () => {
    expect((await command('--help')).text).toMatch(/^ {2}coin +shows a coin$/m);
    expect((await command('coin', '--help')).text).toMatch(/^usage: sluice coin/);
    const { at } = await start(`coin: { sides: 2 }\n${LIMITS}`);
    expect(await command('coin', '--at', at)).toEqual({
      code: 0,
      text: 'coin a\\u001bcoin\n  side   checks\n  heads       0',
    });
    const without = await start('');
    expect((await command('coin', '--at', without.at)).text).toBe('The daemon has no coin.');
  });

  test('groups name the field of the daemon if they cannot wrap it', () => {
    const groups =
      "groups: { self: a, groups: { a: {}, b: { at: 'http://b' } }, key: sixteen-characters }";
    const text = `coin: { sides: 2 }\n${groups}\n${LIMITS.replace('coin: true', 'coin: true, groups: true')}`;
    const create = () => ({}) as LocalBackend;
    const bare: BackendModule = {
      name: 'coin',
      readSection: () => ({
        limit: {
          name: 'coin',
          identity: '',
          view: true,
          dryRun: () => ({ isRemote: false, create }),
        },
        identity: '',
        start: () => Promise.reject(new Error('not started')),
      }),
    };
    const loaded = parseConfigText('sluice.yaml', text, [], [...BACKENDS, bare]);
    expect('problems' in loaded && loaded.problems.join()).toMatch(
      'expected `limits.api.groups` to be left out beside a backend that cannot add tokens',
    );
  });

  test('a wrapper is applied last, wherever the registry lists it', () => {
    const wrapped: unknown[] = [];
    const factory = { isRemote: false as const, create: dryRunPool.create };
    const limit = { identity: '', view: true };
    const dryRun = (inner: unknown) => {
      wrapped.push(inner);
      return factory;
    };
    const wrapper: BackendModule = {
      name: 'wrapper',
      wrapper: { excludes: [] },
      readSection: () => ({
        limit: { ...limit, name: 'wrapper', dryRun },
        identity: '',
        start: () => Promise.reject(new Error('not started')),
      }),
    };
    const decider: BackendModule = {
      name: 'decider',
      readLimit: () => ({ ...limit, name: 'decider', dryRun: () => factory }),
    };
    const text =
      'wrapper: {}\nlimits: { api: { bucket: { rate: 1 }, wrapper: true, decider: {} } }';
    const loaded = parseConfigText('sluice.yaml', text, [], [wrapper, decider]);
    if ('problems' in loaded) throw new Error(loaded.problems.join('\n'));
    expect(loaded.config.limits[0].backends.map(({ name }) => name)).toEqual([
      'decider',
      'wrapper',
    ]);
    expect(wrapped).toEqual([factory]);
  });

  test('a changed section takes a restart', async () => {
    const loaded = load(`${LISTEN}\ncoin: { sides: 2 }`);
    const changed = load(`${LISTEN}\ncoin: { sides: 3 }`);
    if ('problems' in loaded) throw new Error();
    const context = { log: vi.fn(), load: () => changed, version: '0.0.0', backends: modules };
    const daemon = await Daemon.start(loaded.config, context);
    daemons.push(daemon);
    expect(await daemon.reload()).toEqual({
      ok: false,
      problems: [expect.stringMatching(/^`coin` has changed: that takes a restart/)],
    });
  });
});
