/** The licences of the packages whose code is in a bundle: dist/THIRD-PARTY-LICENSES.txt of the package. */

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

/** For packages that declare the MIT licence, and contain no text of it. */
const MIT_TEXT = `Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.`;

function licenceOf(name) {
  const folder = `node_modules/${name}`;
  const manifest = JSON.parse(readFileSync(`${folder}/package.json`, 'utf8'));
  const file = readdirSync(folder).find((each) => /^licen[cs]e/i.test(each));
  const text = file ? readFileSync(`${folder}/${file}`, 'utf8').trim() : declaredLicence(manifest);
  return `${name} ${manifest.version} (${manifest.license})\n\n${text}\n`;
}

function declaredLicence({ name, license, repository }) {
  if (license !== 'MIT') throw new Error(`expected a licence file in ${name}, found none`);
  return `Copyright (c) the authors of ${name}, ${repository.url}\n\n${MIT_TEXT}`;
}

const RULE = `\n${'-'.repeat(80)}\n\n`;

/** The licences of the packages in bundles, after an introduction. */
export const licencesOf = (outputs, intro) =>
  [`${intro}\n`, ...packagesIn(outputs).map(licenceOf)].join(RULE);

export function writeLicences(outputs) {
  const intro = 'The bundles of the command and of the page contain code of these packages.';
  writeFileSync('dist/THIRD-PARTY-LICENSES.txt', licencesOf(outputs, intro));
}
