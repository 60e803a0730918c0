/**
 * The main script of the executable: runs sluice.cjs, which is an asset, with its code cache.
 *
 * The cache contains the functions that a start of the daemon calls, so V8 compiles next to nothing. A cache that does
 * not fit is ignored. `scripts/code-cache.cjs` runs the same file to write the cache.
 */

'use strict';

const { getAsset, getRawAsset, isSea } = require('node:sea');
const { Script } = require('node:vm');

/** The script as a function with the variables of a CommonJS module; what is compiled decides whether a cache fits. */
const wrap = (source) =>
  `(function (exports, require, module, __filename, __dirname) {${source.replace(/^#!.*/, '')}\n})`;

/** Runs a CommonJS script with its cache. */
function runWithCache(source, cachedData, filename) {
  const script = new Script(wrap(source), { filename, cachedData });
  const module = { exports: {} };
  script.runInThisContext()(module.exports, require, module, filename, '');
  return script;
}

if (isSea())
  runWithCache(getAsset('sluice.cjs', 'utf8'), Buffer.from(getRawAsset('code-cache')), __filename);
else module.exports = { runWithCache };
