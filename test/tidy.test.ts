/**
 * Checks the code itself. A rule that a machine can hold does not need a person to remember it.
 */

import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';

interface Source {
  /** From `src/` on, such as `policy/bucket.ts`. */
  readonly path: string;
  readonly text: string;
}

const sources: readonly Source[] = readdirSync('src', { recursive: true, encoding: 'utf8' })
  .map((path) => path.replaceAll('\\', '/'))
  .filter((path) => path.endsWith('.ts') && !path.endsWith('.test.ts'))
  .map((path) => ({ path, text: readFileSync(`src/${path}`, 'utf8') }));

/** The words everything else is said in: the ground floor. */
const WORDS = [
  'clock',
  'decision',
  'duration',
  'errors',
  'heap',
  'options',
  'outstanding',
  'random',
  'underway',
  'warning',
];

/** What stands between a limiter's doors and the rules. */
const ENGINE = [
  ...['policy', 'share', 'arguments', 'line', 'waiting', 'permit'],
  ...['pauses', 'counts', 'events', 'inspection', 'ledger'],
];

/** Limiters, and what makes them. */
const LIMITERS = ['engine', 'remote-engine', 'limiter'];

/** What each room may import from outside itself. Arrows point down, and only down. */
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  clock: [],
  errors: ['decision'],
  random: [],
  heap: [],
  warning: [],
  underway: [],
  outstanding: ['clock'],
  decision: ['clock'],
  duration: ['clock'],
  options: ['clock', 'duration', 'errors'],
  policy: WORDS,
  share: [...WORDS, 'policy'],
  arguments: [...WORDS, 'policy'],
  line: [],
  waiting: [...WORDS, 'line'],
  permit: [...WORDS, 'arguments', 'waiting'],
  pauses: [...WORDS, 'policy'],
  counts: WORDS,
  events: WORDS,
  inspection: [...WORDS, 'policy'],
  ledger: [...WORDS, 'counts', 'events', 'permit', 'waiting'],
  'remote-waiting': [...WORDS, 'share', 'line', 'waiting'],
  'remote-engine': [...WORDS, ...ENGINE, 'remote-waiting'],
  engine: [...WORDS, ...ENGINE],
  limiter: [...WORDS, ...ENGINE, 'engine', 'remote-engine'],
  'all-or-nothing': [...WORDS, ...ENGINE, 'engine'],
  'all-of': [...WORDS, ...ENGINE, 'all-or-nothing', 'engine', 'remote-engine'],
  retry: [...WORDS, 'arguments'],
  settling: [...WORDS, 'permit', 'retry'],
  throttle: [...WORDS, ...LIMITERS, 'permit', 'retry', 'settling'],
  // What a surface does with a limit, it does through the front door's rooms.
  adapters: [
    ...[...WORDS, 'counts', 'events', 'inspection', 'permit'],
    ...[...LIMITERS, 'throttle', 'retry'],
  ],
  // Surfaces for other processes. They meet limiters, and of a share only where it is.
  daemon: [
    ...[...WORDS, 'counts', 'events', 'inspection', 'permit', 'share'],
    ...[...LIMITERS, 'all-of', 'adapters', 'peers', 'pool', 'etcd', 'groups'],
  ],
  client: WORDS,
  // A fleet without a server: what its engine meets the world with.
  peers: [...WORDS, 'policy', 'share'],
  // Processes that split a limit: what their place in a pool meets the world with.
  pool: [...WORDS, 'policy', 'share', 'etcd'],
  // How etcd is spoken to, and a limit that it decides.
  etcd: [...WORDS, 'policy', 'share'],
  // Regions far apart: how they reach each other.
  groups: [...WORDS, 'share'],
  testing: WORDS,
  sim: [...WORDS, 'policy', 'share', ...LIMITERS, 'testing'],
  // A surface never meets a policy.
  cli: [...WORDS, ...LIMITERS, 'sim', 'testing', 'daemon', 'client'],
  index: [...WORDS, ...ENGINE, ...LIMITERS, 'all-of', 'throttle', 'retry'],
};

/** Rooms that also run in a browser, and so know nothing of Node. */
const EVERYWHERE = Object.keys(MAY_IMPORT).filter(
  (room) => !['cli', 'daemon', 'client', 'peers', 'pool', 'etcd', 'groups'].includes(room),
);

/** What comes with the daemon. Nobody else may meet them. */
const DAEMON_PACKAGES = ['re2js', 'yaml'];

/** The only files there that meet a package, and which: each an entry of its own, the package optional. */
const MAY_IMPORT_PACKAGES: Readonly<Record<string, readonly string[]>> = {
  'adapters/opentelemetry.ts': ['@opentelemetry/api'],
  'daemon/nats-link.ts': ['@nats-io/transport-node'],
  'daemon/redis-clients.ts': ['redis'],
  'peers/nats.ts': ['@nats-io/transport-node'],
  'pool/nats.ts': ['@nats-io/kv', '@nats-io/transport-node'],
};

/** The room a path under src/ belongs to: its first folder, or the file itself. */
const roomOf = (path: string): string => (path.split('/')[0] ?? '').replace(/\.ts$/, '');

const withoutComments = (text: string): string =>
  text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/\/\/.*$/gm, '');

/** What a file imports, as paths under src/ or as package names. */
function importsOf({ path, text }: Source): string[] {
  const found = withoutComments(text).matchAll(/(?:from|import\()\s*'([^']+)'|import '([^']+)'/g);
  return [...found].map(([, from, bare]) => {
    const target = from ?? bare ?? '';
    if (!target.startsWith('.')) return target;
    return new URL(target, `file:///${path}`).pathname.slice(1);
  });
}

const isOwn = (target: string): boolean => target.endsWith('.ts');

describe('the house', () => {
  test('has sources to check', () => {
    expect(sources.length).toBeGreaterThan(20);
    expect(sources.flatMap(importsOf).filter(isOwn).length).toBeGreaterThan(50);
  });

  test('every room is on the map', () => {
    const rooms = new Set(sources.map(({ path }) => roomOf(path)));
    expect([...rooms].filter((room) => !(room in MAY_IMPORT))).toEqual([]);
  });

  test('rooms import only what stands below them', () => {
    const offenders = sources.flatMap((source) => {
      const room = roomOf(source.path);
      return importsOf(source)
        .filter(isOwn)
        .map(roomOf)
        .filter((target) => target !== room && !MAY_IMPORT[room]?.includes(target))
        .map((target) => `${source.path} may not import ${target}`);
    });
    expect(offenders).toEqual([]);
  });

  test('the core knows nothing of Node and depends on no package', () => {
    const offenders = sources
      .filter(({ path }) => EVERYWHERE.includes(roomOf(path)))
      .flatMap(({ path, text }) =>
        importsOf({ path, text })
          .filter((target) => !isOwn(target) && !MAY_IMPORT_PACKAGES[path]?.includes(target))
          .map((target) => `${path} may not import ${target}`),
      );
    expect(offenders).toEqual([]);
  });

  test('nobody has to install anything beside it', () => {
    const {
      dependencies = {},
      peerDependencies = {},
      peerDependenciesMeta = {},
    } = JSON.parse(readFileSync('package.json', 'utf8'));
    expect(Object.keys(dependencies).sort()).toEqual(DAEMON_PACKAGES);
    const packages = [...new Set(Object.values(MAY_IMPORT_PACKAGES).flat())];
    expect(Object.keys(peerDependencies).sort()).toEqual(packages.sort());
    expect(packages.filter((name) => !peerDependenciesMeta[name]?.optional)).toEqual([]);
  });

  test('whoever may import a package does, and nobody passes it on', () => {
    const idle = Object.entries(MAY_IMPORT_PACKAGES).filter(([path, packages]) => {
      const source = sources.find((other) => other.path === path);
      return !source || packages.some((name) => !importsOf(source).includes(name));
    });
    expect(idle).toEqual([]);
    const passedOn = sources.flatMap((source) =>
      importsOf(source)
        .filter((target) => target in MAY_IMPORT_PACKAGES && EVERYWHERE.includes(roomOf(target)))
        .map((target) => `${source.path} may not import ${target}`),
    );
    expect(passedOn).toEqual([]);
  });

  test('time and chance are handed in, never picked up', () => {
    const ambient =
      /\bDate\.now\b|\bnew Date\(\)|\bperformance\.|\bprocess\.hrtime\b|\bMath\.random\b|\bcrypto\.|(?<!\bsocket\.)\bset(?:Interval|Timeout|Immediate)\b|\bnextTick\b/;
    const offenders = sources
      .filter(({ path }) => path !== 'clock.ts' && path !== 'random.ts')
      .filter(({ text }) => ambient.test(withoutComments(text)));
    expect(offenders.map(({ path }) => path)).toEqual([]);
  });

  test('errors are worded in one place', () => {
    const offenders = sources
      .filter(({ path }) => EVERYWHERE.includes(roomOf(path)) && roomOf(path) !== 'errors')
      .filter(({ text }) => /class \w+ extends \w*Error\b/.test(withoutComments(text)));
    expect(offenders.map(({ path }) => path)).toEqual([]);
  });

  test('every file says what it is for before how it does it', () => {
    const offenders = sources.filter(
      ({ text }) => !/^(?:#!.*\n)?(?:import [^;]*;\n+)*\/\*\*/.test(text),
    );
    expect(offenders.map(({ path }) => path)).toEqual([]);
  });

  test('tests are never skipped, and nothing is left for later', () => {
    const everything = ['src', 'test', 'bench', 'demo'].flatMap((root) =>
      readdirSync(root, { recursive: true, encoding: 'utf8' })
        .filter((path) => /\.(?:ts|mjs)$/.test(path) && !path.includes('tidy.test'))
        .map((path) => ({
          path: `${root}/${path}`,
          text: readFileSync(`${root}/${path}`, 'utf8'),
        })),
    );
    const later =
      /\b(?:test|it|describe)\.(?:skip|only|todo)\b|\bTODO\b|\bFIXME\b|@ts-ignore|biome-ignore|\bas any\b(?! \w)/;
    expect(everything.filter(({ text }) => later.test(text)).map(({ path }) => path)).toEqual([]);
  });

  test('the lock file records no download addresses', () => {
    expect(readFileSync('package-lock.json', 'utf8')).not.toMatch(/"resolved": *"http/);
  });
});
