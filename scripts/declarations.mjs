/**
 * Copies the declarations that entries reach into dist/esm and dist/cjs, beside the bundles.
 *
 * TypeScript decides by the folder's package.json whether a declaration describes an ES module or CommonJS, so each
 * format has its own. Imports name the JavaScript file: compilers before 5.7 find no declaration for `./file.ts`.
 */

import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { ENTRIES } from './bundles.mjs';

const RELATIVE_IMPORT = /(?<=\bfrom '|\bimport\(['"])(\.{1,2}\/[^'"]+)\.ts(?=['"])/g;

export function writeDeclarations(formats) {
  const found = new Map();
  const visit = (path) => {
    if (found.has(path)) return;
    const text = readFileSync(`dist/${path}.d.ts`, 'utf8');
    const targets = [...text.matchAll(RELATIVE_IMPORT)].map(([, target]) => target);
    found.set(path, text.replace(RELATIVE_IMPORT, '$1.js'));
    for (const target of targets) visit(join(dirname(path), target));
  };
  for (const entry of ENTRIES) visit(entry);
  for (const format of formats) {
    for (const [path, text] of found) {
      const file = `dist/${format}/${path}.d.ts`;
      mkdirSync(dirname(file), { recursive: true });
      writeFileSync(file, text);
    }
  }
}
