/** A copy of the build that speaks other wire versions between peers, as a later or an earlier build would. */

import {
  copyFileSync,
  cpSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join, resolve } from 'node:path';

const SPOKEN = /WIRE_VERSIONS = \{\s*oldest: \d+,\s*newest: \d+\s*\}/;

/** Copies the command's bundle into the folder; returns the folder of the copy. */
export function buildSpeaking(oldest: number, newest: number, folder: string): string {
  const build = join(folder, `dist-${oldest}-${newest}`);
  cpSync('dist/bin', join(build, 'bin'), { recursive: true });
  copyFileSync('package.json', join(folder, 'package.json'));
  symlinkSync(resolve('node_modules'), join(folder, 'node_modules'));
  const chunks = join(build, 'bin/chunks');
  const files = readdirSync(chunks).map((name) => join(chunks, name));
  const file = files.find((each) => SPOKEN.test(readFileSync(each, 'utf8')));
  if (file === undefined) throw new Error(`${chunks} does not say which versions it speaks`);
  const text = readFileSync(file, 'utf8');
  const spoken = `WIRE_VERSIONS = { oldest: ${oldest}, newest: ${newest} }`;
  writeFileSync(file, text.replace(SPOKEN, spoken));
  return build;
}
