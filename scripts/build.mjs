/**
 * Builds dist/: modules and declarations (tsc), the package's bundles (rolldown), the page (Vite).
 *
 *     dist/**            one module per source file: for tests, benches and tracing; not packed
 *     dist/esm, cjs      the entries of package.json in both formats, with shared chunks and declarations
 *     dist/bin           the command and the daemon, with the packages that they need
 *     dist/page          the page of the daemon
 *
 * `--clean` removes dist/ first: a package must not contain files of an earlier build.
 */

import { execFile } from 'node:child_process';
import { rmSync } from 'node:fs';
import { promisify } from 'node:util';
import { build as buildPage } from 'vite';
import { bundleCommand, bundleLibrary } from './bundles.mjs';
import { writeDeclarations } from './declarations.mjs';
import { writeLicences } from './licences.mjs';

process.chdir(new URL('..', import.meta.url).pathname);
if (process.argv.includes('--clean')) rmSync('dist', { recursive: true, force: true });

const run = promisify(execFile);

/** Compiles every source; prints the compiler's messages if there are errors. */
async function compile() {
  const tsc = ['node_modules/typescript/bin/tsc', '-p', 'tsconfig.build.json'];
  await run(process.execPath, tsc).catch(({ stdout }) => {
    console.error(stdout);
    process.exit(1);
  });
  writeDeclarations(['esm', 'cjs']);
}

const [, command, page] = await Promise.all([
  compile(),
  bundleCommand(),
  // One after the other: both write to dist/page, which the first empties.
  buildPage({ configFile: 'page/vite.config.mjs' }).then(async (page) => {
    const playground = await buildPage({ configFile: 'page/vite.playground.config.mjs' });
    return { output: [...page.output, ...playground.output] };
  }),
  bundleLibrary('esm'),
  bundleLibrary('cjs'),
]);
writeLicences([...command.output, ...page.output]);
