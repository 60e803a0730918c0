/** Writes dist/THIRD-PARTY-LICENSES.txt: the licences of the packages whose code is in a bundle. */

import { readdirSync, readFileSync, writeFileSync } from 'node:fs';

const PACKAGE = /\/node_modules\/((?:@[^/]+\/)?[^/]+)\//;

/** The names of the packages that bundles contain, in order. */
export const packagesIn = (outputs) =>
  [
    ...new Set(
      outputs
        .flatMap(({ moduleIds = [], originalFileNames = [] }) => [
          ...moduleIds,
          ...originalFileNames,
        ])
        .flatMap((id) => PACKAGE.exec(id)?.[1] ?? []),
    ),
  ].sort();

function licenceOf(name) {
  const folder = `node_modules/${name}`;
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  if (file === undefined) throw new Error(`expected a licence file in ${folder}, found none`);
  const { version, license } = JSON.parse(readFileSync(`${folder}/package.json`, 'utf8'));
  return `${name} ${version} (${license})\n\n${readFileSync(`${folder}/${file}`, 'utf8').trim()}\n`;
}

export function writeLicences(outputs) {
  const rule = `\n${'-'.repeat(80)}\n\n`;
  const intro = 'The bundles of the command and of the page contain code of these packages.\n';
  const texts = packagesIn(outputs).map(licenceOf);
  writeFileSync('dist/THIRD-PARTY-LICENSES.txt', [intro, ...texts].join(rule));
}
