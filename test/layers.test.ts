import { readdirSync, readFileSync } from 'node:fs';
import { describe, expect, test } from 'vitest';

interface Source {
  /** From `src/` on, such as `policies/bucket.ts`. */
  readonly path: string;
  readonly text: string;
}

const sources: readonly Source[] = readdirSync('src', { recursive: true, encoding: 'utf8' })
  .map((path) => path.replaceAll('\\', '/'))
  .filter((path) => path.endsWith('.ts') && !path.endsWith('.test.ts'))
  .map((path) => ({ path, text: readFileSync(`src/${path}`, 'utf8') }));

/**
 * Which folders of src/ a folder may import from. Imports point down: a folder is listed after everything it may use.
 * Nested folders follow the row of their top folder; `NESTED` narrows that inside a top folder.
 */
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  core: [],
  policies: ['core'],
  backends: ['core', 'policies'],
  limiter: ['core', 'policies', 'backends'],
  throttle: ['core', 'limiter'],
  adapters: ['core', 'limiter', 'throttle'],
  testing: ['core'],
  client: ['core'],
  daemon: ['core', 'backends', 'limiter', 'adapters'],
  simulator: ['core', 'policies', 'backends', 'limiter', 'testing'],
  cli: ['core', 'limiter', 'simulator', 'testing', 'client', 'daemon'],
  // The package's entry only re-exports.
  index: ['core', 'policies', 'backends', 'limiter', 'throttle'],
};

/** Inside a top folder: which of its own folders a nested folder may import from. `.` is the top folder's own files. */
const NESTED: Readonly<Record<string, readonly string[]>> = {
  'backends/local': ['.'],
  'backends/connections': [],
  'backends/redis': ['.', 'local', 'connections'],
  'backends/etcd': ['.', 'connections'],
  'backends/durable-objects': ['.', 'local'],
  'backends/peers': ['.', 'local', 'redis', 'connections'],
  'backends/pool': ['.', 'local', 'redis', 'etcd', 'connections'],
  'backends/groups': ['.', 'local', 'connections'],
  'backends/pages': ['.', 'groups', 'peers', 'pool'],
  'daemon/files': [],
  'daemon/keys': [],
  'daemon/backends': [],
  'daemon/key-counts': [],
  'daemon/denials': ['keys', 'key-counts'],
  'daemon/calls': ['keys', 'key-counts'],
  'daemon/config': ['files', 'keys', 'backends'],
  'daemon/router': ['keys', 'config', 'denials', 'calls', 'key-counts'],
  'daemon/control': ['files', 'keys', 'config', 'router'],
  'daemon/history': ['keys', 'config', 'denials', 'router'],
  'daemon/server': ['config'],
  'daemon/workers': ['files', 'server'],
  'daemon/protocols': [
    'files',
    'keys',
    'config',
    'denials',
    'router',
    'control',
    'server',
    'history',
  ],
  'simulator/playground': ['.', 'laboratory'],
  'simulator/scenario': ['.', 'peers', 'laboratory'],
  'cli/framework': [],
  'cli/chart': [],
  'cli/simulate': ['framework', 'chart'],
  'cli/replay': ['framework', 'chart'],
  'adapters/http': [],
  'adapters/metrics': [],
};

/** Packages that the command's bundle contains. Every other package is an optional peer dependency. */
const BUNDLED_PACKAGES = ['re2js', 'yaml'];

/** The only files that import a Node module or a package, and which. Every other file also runs in a browser. */
const MAY_IMPORT_EXTERNAL: Readonly<Record<string, readonly string[]>> = {
  'adapters/nest.ts': ['@nestjs/common'],
  'adapters/opentelemetry.ts': ['@opentelemetry/api'],
  'backends/connections/nats-connection.ts': ['@nats-io/transport-node'],
  'backends/connections/shared-connections.ts': ['redis'],
  'backends/connections/http-client.ts': ['node:http', 'node:https'],
  'backends/daemon-backend.ts': ['node:net'],
  'backends/etcd/daemon.ts': ['node:fs'],
  'backends/groups/http-transport.ts': ['node:crypto', 'node:http', 'node:net'],
  'backends/peers/address.ts': ['node:net'],
  'backends/peers/datagram-auth.ts': ['node:crypto'],
  'backends/peers/nats-transport.ts': ['@nats-io/transport-node'],
  'backends/peers/options.ts': ['node:os'],
  'backends/peers/resolver.ts': ['node:net'],
  'backends/peers/udp-sockets.ts': ['node:dgram'],
  'backends/peers/udp-transport.ts': ['node:dns/promises', 'node:net'],
  'backends/pool/dns-size.ts': ['node:dns/promises', 'node:os'],
  'backends/pool/nats-store.ts': ['@nats-io/kv', '@nats-io/transport-node'],
  'backends/pool/options.ts': ['node:os'],
  'cli/chart/html-page.ts': ['node:crypto'],
  'cli/framework/admin-client.ts': ['node:http', 'node:https'],
  'cli/framework/command.ts': ['node:fs', 'node:path', 'node:util'],
  'cli/framework/process-terminal.ts': ['node:fs'],
  'cli/framework/service-manager.ts': ['node:child_process'],
  'cli/replay/chunks.ts': ['node:fs', 'node:zlib'],
  'cli/serve.ts': ['node:v8'],
  'cli/standalone.ts': ['node:worker_threads'],
  'client/commands.ts': ['node:crypto'],
  'client/connection.ts': ['node:net', 'node:tls'],
  'client/options.ts': ['node:tls'],
  'daemon/config/file.ts': ['node:path'],
  'daemon/config/include.ts': ['node:fs', 'node:path'],
  'daemon/config/memory.ts': ['node:os', 'node:v8'],
  'daemon/config/load-worker.ts': ['node:os', 'node:worker_threads'],
  'daemon/config/yaml-position.ts': ['yaml'],
  'daemon/config/yaml-source.ts': ['yaml'],
  'daemon/control/control-auth.ts': ['node:crypto'],
  'daemon/control/control-file.ts': ['node:fs/promises', 'node:zlib'],
  'daemon/files/built-files.ts': [
    'node:child_process',
    'node:fs',
    'node:fs/promises',
    'node:sea',
    'node:url',
    'node:worker_threads',
  ],
  'daemon/files/file-lock.ts': ['node:fs/promises', 'node:net'],
  'daemon/files/state-file.ts': ['node:fs', 'node:fs/promises', 'node:path'],
  'daemon/keys/pattern.ts': ['re2js'],
  'daemon/keys/text-file.ts': ['node:fs', 'node:path'],
  'daemon/protocols/http/access.ts': ['node:crypto'],
  'daemon/protocols/http/check-request.ts': ['node:buffer'],
  'daemon/protocols/http/response.ts': ['node:http'],
  'daemon/protocols/http/server/fast-path/connection.ts': ['node:net'],
  'daemon/protocols/http/server/fast-path/parse.ts': ['node:http'],
  'daemon/protocols/http/server/node-server.ts': ['node:http', 'node:stream'],
  'daemon/protocols/http/server/server.ts': ['node:net', 'node:stream'],
  'daemon/protocols/resp/redis.ts': ['node:crypto'],
  'daemon/server/connections.ts': ['node:net'],
  'daemon/server/listeners.ts': ['node:fs', 'node:net', 'node:path', 'node:tls'],
  'daemon/server/paced-socket.ts': ['node:net', 'node:stream'],
  'daemon/server/read-buffer.ts': ['node:net'],
  'daemon/server/relayed-socket.ts': ['node:stream'],
  'daemon/snapshot.ts': ['node:fs/promises', 'node:zlib'],
  'daemon/workers/frame-channel.ts': ['node:net'],
  'daemon/workers/worker-pool.ts': ['node:child_process', 'node:net'],
  'daemon/workers/worker.ts': ['node:net'],
};

/** Files whose own error class only leaves a parser, and reaches no caller of the package. */
const ENDS_A_PARSE = ['client/resp.ts', 'cli/framework/command.ts'];

/** The folder of a path under src/: `backends/redis` for `backends/redis/batcher.ts`. */
const folderOf = (path: string): string => path.split('/').slice(0, -1).join('/');

/** Folders that hold the files of one component of the folder above: the two count as one, without cycles of files. */
const PART_OF_PARENT = ['policies/delay'];

/** The folder that must not be in a cycle; of a folder in `PART_OF_PARENT`, the file. */
const unitOf = (path: string): string =>
  PART_OF_PARENT.some((part) => folderOf(part) === folderOf(path) || part === folderOf(path))
    ? path
    : folderOf(path);

/** The top folder of a path under src/, or the file itself: `index` for `index.ts`. */
const topOf = (path: string): string => (path.split('/')[0] ?? '').replace(/\.ts$/, '');

/** The first two folders of a path: `daemon/protocols` for `daemon/protocols/resp/parser.ts`; the top folder alone for its own files. */
const nestOf = (path: string): string => path.split('/').slice(0, -1).slice(0, 2).join('/');

const withoutComments = (text: string): string =>
  text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/\/\/.*$/gm, '');

/** What a file imports, as paths under src/ or as package names. */
function importsOf({ path, text }: Source): string[] {
  const found = withoutComments(text).matchAll(
    /(?:\bfrom|\bimport\()\s*'([\w@.:/-]+)'|\bimport '([\w@.:/-]+)'/g,
  );
  return [...found].map(([, from, bare]) => {
    const target = from ?? bare ?? '';
    if (!target.startsWith('.')) return target;
    return new URL(target, `file:///${path}`).pathname.slice(1);
  });
}

const isOwn = (target: string): boolean => target.endsWith('.ts');

/** Whether a file under `from` may import one under `to`; both are `nestOf` of a path. */
function mayImport(from: string, to: string): boolean {
  const [top = '', own] = from.split('/');
  const [otherTop = '', other] = to.split('/');
  if (top !== otherTop) return MAY_IMPORT[top]?.includes(otherTop) ?? false;
  if (own === undefined || own === other) return true;
  return NESTED[from]?.includes(other ?? '.') ?? other === undefined;
}

/** Folders that import each other, directly or through others: one path for each, such as `a > b > a`. */
function cyclesOf(graph: ReadonlyMap<string, ReadonlySet<string>>): string[] {
  const cycles: string[] = [];
  const done = new Set<string>();
  const visit = (folder: string, path: readonly string[]): void => {
    const start = path.indexOf(folder);
    if (start >= 0) {
      cycles.push([...path.slice(start), folder].join(' > '));
      return;
    }
    if (done.has(folder)) return;
    for (const next of graph.get(folder) ?? []) visit(next, [...path, folder]);
    done.add(folder);
  };
  for (const folder of graph.keys()) visit(folder, []);
  return cycles;
}

const internalImports = sources.flatMap((source) =>
  importsOf(source)
    .filter(isOwn)
    .map((target) => ({ from: source.path, to: target })),
);

describe('layers', () => {
  test('source files are found, with their imports', () => {
    expect(sources.length).toBeGreaterThan(200);
    expect(internalImports.length).toBeGreaterThan(500);
  });

  test('every top folder has a row in MAY_IMPORT', () => {
    const tops = new Set(sources.map(({ path }) => topOf(path)));
    expect([...tops].filter((top) => !(top in MAY_IMPORT))).toEqual([]);
  });

  test('every row of NESTED names a folder that exists', () => {
    const nests = new Set(sources.map(({ path }) => nestOf(path)));
    expect(Object.keys(NESTED).filter((nest) => !nests.has(nest))).toEqual([]);
  });

  test('imports point down, nested folders included', () => {
    const offenders = internalImports.filter(
      ({ from, to }) => !mayImport(nestOf(from) || topOf(from), nestOf(to) || topOf(to)),
    );
    expect(offenders.map(({ from, to }) => `${from} may not import ${to}`)).toEqual([]);
  });

  test('a cycle between folders is found', () => {
    const graph = new Map([
      ['a', new Set(['a/b'])],
      ['a/b', new Set(['c'])],
      ['c', new Set(['a'])],
    ]);
    expect(cyclesOf(graph)).toEqual(['a > a/b > c > a']);
  });

  test('folders do not import each other in a cycle, at any depth', () => {
    const graph = new Map<string, Set<string>>();
    for (const { from, to } of internalImports) {
      if (unitOf(from) === unitOf(to)) continue;
      const targets = graph.get(unitOf(from)) ?? new Set();
      graph.set(unitOf(from), targets.add(unitOf(to)));
    }
    expect(cyclesOf(graph)).toEqual([]);
  });

  test('a file imports Node modules and packages only where MAY_IMPORT_EXTERNAL says so', () => {
    const offenders = sources.flatMap((source) =>
      importsOf(source)
        .filter((target) => !isOwn(target) && !MAY_IMPORT_EXTERNAL[source.path]?.includes(target))
        .map((target) => `${source.path} may not import ${target}`),
    );
    expect(offenders).toEqual([]);
  });

  test('every entry of MAY_IMPORT_EXTERNAL is used', () => {
    const unused = Object.entries(MAY_IMPORT_EXTERNAL).flatMap(([path, modules]) => {
      const source = sources.find((other) => other.path === path);
      const used = source ? importsOf(source) : [];
      return modules.filter((name) => !used.includes(name)).map((name) => `${path}: ${name}`);
    });
    expect(unused).toEqual([]);
  });

  test('core, policies, limiter and throttle import no Node module and no package', () => {
    const portable = ['core', 'policies', 'limiter', 'throttle', 'testing', 'simulator', 'index'];
    const offenders = Object.keys(MAY_IMPORT_EXTERNAL).filter((path) =>
      portable.includes(topOf(path)),
    );
    expect(offenders).toEqual([]);
  });

  test('the package depends on no package: two are bundled, every other one is an optional peer', () => {
    const {
      dependencies = {},
      devDependencies,
      peerDependencies = {},
      peerDependenciesMeta = {},
    } = JSON.parse(readFileSync('package.json', 'utf8'));
    expect(dependencies).toEqual({});
    expect(Object.keys(devDependencies)).toEqual(expect.arrayContaining(BUNDLED_PACKAGES));
    const packages = [...new Set(Object.values(MAY_IMPORT_EXTERNAL).flat())]
      .filter((name) => !name.startsWith('node:') && !BUNDLED_PACKAGES.includes(name))
      .sort();
    expect(Object.keys(peerDependencies).sort()).toEqual(packages);
    expect(packages.filter((name) => !peerDependenciesMeta[name]?.optional)).toEqual([]);
  });

  test('only core/clock.ts and core/random.ts read time and randomness from the system', () => {
    const ambient =
      /\bDate\.now\b|\bnew Date\(\)|\bperformance\.|\bprocess\.hrtime\b|\bMath\.random\b|\bcrypto\.|(?<!\bsocket\.)\bset(?:Interval|Timeout|Immediate)\b(?!\(ms: Millis\): this)|\bnextTick\b/;
    const offenders = sources
      .filter(({ path }) => path !== 'core/clock.ts' && path !== 'core/random.ts')
      .filter(({ text }) => ambient.test(withoutComments(text)));
    expect(offenders.map(({ path }) => path)).toEqual([]);
  });

  test('error classes are declared in core/errors.ts', () => {
    const offenders = sources
      .filter(({ path }) => path !== 'core/errors.ts' && !ENDS_A_PARSE.includes(path))
      .filter(({ text }) => /class \w+ extends \w*Error\b/.test(withoutComments(text)));
    expect(offenders.map(({ path }) => path)).toEqual([]);
  });

  test('no test is skipped and no work is left marked as to do', () => {
    const everything = ['src', 'test', 'bench', 'demo'].flatMap((root) =>
      readdirSync(root, { recursive: true, encoding: 'utf8' })
        .filter((path) => /\.(?:ts|mjs)$/.test(path))
        .filter((path) => !/layers\.test|node_modules/.test(path)) // packages of test/runtimes
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
