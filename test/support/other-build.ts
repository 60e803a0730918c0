/** A copy of the build that speaks other wire versions between peers, as a later build of the project would. */

import { copyFileSync, cpSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';

const SPOKEN = /WIRE_VERSIONS = \{ oldest: \d+, newest: \d+ \}/;

/** Copies `dist` into the folder; returns the folder of the copy. */
export function buildSpeaking(oldest: number, newest: number, folder: string): string {
  const build = join(folder, `dist-${oldest}-${newest}`);
  cpSync('dist', build, { recursive: true, filter: (path) => !/\.(map|d\.ts)$/.test(path) });
  copyFileSync('package.json', join(folder, 'package.json'));
  symlinkSync(resolve('node_modules'), join(folder, 'node_modules'));
  const file = join(build, 'backends/peers/wire-versions.js');
  const text = readFileSync(file, 'utf8');
  if (!SPOKEN.test(text)) throw new Error(`${file} does not say which versions it speaks`);
  const spoken = `WIRE_VERSIONS = { oldest: ${oldest}, newest: ${newest} }`;
  writeFileSync(file, text.replace(SPOKEN, spoken));
  return build;
}
