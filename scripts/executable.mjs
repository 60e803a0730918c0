/**
 * Builds dist/standalone/sluice: Node and sluice.cjs in one executable (a Node single executable application).
 *
 *     sluice.cjs ──▶ its code cache ─┐
 *     embedded-main.cjs ─────────────┴─ node --experimental-sea-config ──▶ blob ── postject ──▶ a copy of the running Node
 *
 * A daemon that is started here fills the code cache. The executable is for the platform and the version of the Node
 * that runs this script.
 */

import { execFileSync, fork } from 'node:child_process';
import { once } from 'node:events';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { dirname, join } from 'node:path';
import { inject } from 'postject';
import { bundleStandalone, FOLDER, SCRIPT } from './standalone.mjs';

/** The mark in Node's executable that says whether a blob is in it. */
const FUSE = 'NODE_SEA_FUSE_fce680ab2cc467b6e072b8b5df1996b2';

process.chdir(new URL('..', import.meta.url).pathname);
await bundleStandalone();

const executable = join(FOLDER, process.platform === 'win32' ? 'sluice.exe' : 'sluice');
const unfinished = `${executable}.unfinished`;
const blob = join(FOLDER, 'sluice.blob');
const config = join(FOLDER, 'sea.json');
const cache = join(FOLDER, 'code-cache');

/** Starts a daemon, and takes the code cache once it is ready. */
async function writeCodeCache() {
  const any = '127.0.0.1:0';
  const args = [SCRIPT, cache, 'serve', '--line', any, '--resp', any, '--http', any];
  const stdio = ['ignore', 'pipe', 'inherit', 'ipc'];
  const daemon = fork('scripts/code-cache.cjs', args, { stdio, execArgv: [], env: {} });
  const exited = once(daemon, 'exit');
  let printed = '';
  for await (const chunk of daemon.stdout) {
    printed += chunk;
    if (printed.endsWith('ready\n')) daemon.send('write');
  }
  const [code] = await exited;
  if (code !== 0)
    throw new Error(`expected a daemon that starts, got exit code ${code}: ${printed}`);
}

await writeCodeCache();
writeFileSync(
  config,
  JSON.stringify({
    main: 'scripts/embedded-main.cjs',
    output: blob,
    disableExperimentalSEAWarning: true,
    assets: { 'sluice.cjs': SCRIPT, 'code-cache': cache },
  }),
);
execFileSync(process.execPath, ['--experimental-sea-config', config], { stdio: 'ignore' });

copyFileSync(process.execPath, unfinished);
chmodSync(unfinished, 0o755);
if (process.platform === 'darwin') execFileSync('codesign', ['--remove-signature', unfinished]);
await inject(unfinished, 'NODE_SEA_BLOB', readFileSync(blob), {
  sentinelFuse: FUSE,
  ...(process.platform === 'darwin' && { machoSegmentName: 'NODE_SEA' }),
});
if (process.platform === 'darwin') execFileSync('codesign', ['--sign', '-', unfinished]);
renameSync(unfinished, executable);
for (const file of [blob, config, cache]) rmSync(file);

const nodeLicence = join(dirname(process.execPath), '../LICENSE');
if (existsSync(nodeLicence)) copyFileSync(nodeLicence, join(FOLDER, 'NODE-LICENSE.txt'));
else
  console.warn('The licence of Node was not found: add it before you distribute the executable.');
console.log(
  `${executable} is built, with Node ${process.version}: \`${executable} serve\` starts the daemon.`,
);
