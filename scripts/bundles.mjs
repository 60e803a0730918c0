/**
 * Bundles the entries of package.json, and the command with its daemon.
 *
 * Every entry loads few files: the library's own folders are one chunk, and what several entries share beyond that is
 * another. Optional peers stay imports; the packages of the daemon become part of the command's bundle.
 */

import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { basename } from 'node:path';
import { rolldown } from 'rolldown';

const manifest = JSON.parse(readFileSync('package.json', 'utf8'));

const EXTERNAL = [
  /^node:/,
  ...Object.keys(manifest.peerDependencies).map((name) => new RegExp(`^${name}(?:/|$)`)),
];

/** What `sluice/small` needs, with all that it imports; and the folders that most entries need. */
const LIBRARY_CHUNKS = [
  {
    name: 'small',
    test: /\/src\/(?:policies\/(?:bucket|spacing|window)|core\/clock)\.ts/,
    priority: 2,
  },
  {
    name: 'library',
    test: /\/src\/(?:core|policies|limiter\/(?!small\.ts)|throttle|backends\/local|backends\/[\w-]+\.ts)/,
    priority: 1,
  },
];

/** What every command needs, and what those with backends need. */
const COMMAND_CHUNKS = [
  { name: 'core', test: /\/src\/core\//, priority: 3 },
  { name: 'pages', test: /\/src\/backends\/(?:pages\/|\w+\/daemon-view)/, priority: 2 },
  // Without the files that import a peer at once: they are loaded only where NATS is configured.
  { name: 'backends', test: /\/src\/(?:policies|limiter|backends)\/(?!.*\/nats-)/, priority: 1 },
];

/** The comments that stay in bundles. Names stay too: a stack trace names functions. */
export const COMMENTS = { annotation: true, legal: true, jsdoc: false };

/** Escapes characters beyond ASCII: one of them makes V8 store and scan the whole file with 2 bytes per character. */
export function toAscii(code) {
  const [escaped] = /(?<!\\)(?:\\\\)*\\[^\0-\x7f]/.exec(code) ?? [];
  if (escaped)
    throw new Error(`expected no backslash before a character beyond ASCII, got ${escaped}`);
  const toEscape = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`;
  return code.replace(/[^\0-\x7f]/g, toEscape);
}

export const asciiOnly = {
  name: 'ascii-only',
  generateBundle(_options, bundle) {
    for (const chunk of Object.values(bundle))
      if (chunk.type === 'chunk') chunk.code = toAscii(chunk.code);
  },
};

/** The entries of the package as paths under src/, without extension: `backends/redis/index`. */
export const ENTRIES = Object.values(manifest.exports).flatMap((target) =>
  typeof target === 'string' ? [] : target.default.replace(/^\.\/dist\/esm\/|\.js$/g, ''),
);

async function bundle(input, groups, output) {
  const bundled = await rolldown({
    input,
    external: EXTERNAL,
    platform: 'node',
    plugins: [asciiOnly],
    treeshake: { moduleSideEffects: (id) => /node_modules|\/src\/(?:cli|daemon)\//.test(id) },
    logLevel: 'warn',
  });
  const written = await bundled.write({
    ...output,
    entryFileNames: '[name].js',
    chunkFileNames: 'chunks/[name].js',
    minifyInternalExports: false,
    comments: COMMENTS,
    codeSplitting: { groups },
  });
  await bundled.close();
  removeOthers(`${output.dir}/chunks`, written);
  return written;
}

/** Removes the chunks of earlier builds. */
function removeOthers(folder, { output }) {
  const names = new Set(output.map(({ fileName }) => basename(fileName)));
  for (const name of readdirSync(folder)) if (!names.has(name)) rmSync(`${folder}/${name}`);
}

/** The library's entries in one format. */
export async function bundleLibrary(format) {
  const input = Object.fromEntries(ENTRIES.map((entry) => [entry, `src/${entry}.ts`]));
  const dir = `dist/${format}`;
  const written = await bundle(input, LIBRARY_CHUNKS, { dir, format, exports: 'named' });
  if (format === 'cjs') writeFileSync(`${dir}/package.json`, '{ "type": "commonjs" }\n');
  return written;
}

/** The command, and the scripts that its daemon starts: `daemon/files/built-files.ts` knows where they are. */
export const bundleCommand = () =>
  bundle(
    {
      sluice: 'src/cli/main.ts',
      'workers/worker': 'src/daemon/workers/worker.ts',
      'config/load-worker': 'src/daemon/config/load-worker.ts',
    },
    COMMAND_CHUNKS,
    { dir: 'dist/bin', format: 'esm' },
  );
