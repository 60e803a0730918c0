/**
 * Builds dist/standalone/sluice: Node and sluice.cjs in one executable (a Node single executable application).
 *
 *     sluice.cjs ── node --experimental-sea-config ──▶ blob ── postject ──▶ a copy of the running Node
 *
 * The script is in the blob twice: as main script with its code cache, and as the text that the loading thread runs.
 * The executable is for the platform and the version of the Node that runs this script.
 */

import { execFileSync } from 'node:child_process';
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

writeFileSync(
  config,
  JSON.stringify({
    main: SCRIPT,
    output: blob,
    disableExperimentalSEAWarning: true,
    useCodeCache: true,
    assets: { 'sluice.cjs': SCRIPT },
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
for (const file of [blob, config]) rmSync(file);

const nodeLicence = join(dirname(process.execPath), '../LICENSE');
if (existsSync(nodeLicence)) copyFileSync(nodeLicence, join(FOLDER, 'NODE-LICENSE.txt'));
else
  console.warn('The licence of Node was not found: add it before you distribute the executable.');
console.log(
  `${executable} is built, with Node ${process.version}: \`${executable} serve\` starts the daemon.`,
);
