/**
 * Runs sluice.cjs with the arguments that follow, and writes its code cache to a file when it is told to.
 *
 *     node scripts/code-cache.cjs SCRIPT FILE serve …
 *
 * A message from the parent process asks for the cache. It contains every function that was called until then.
 */

'use strict';

const { readFileSync, writeFileSync } = require('node:fs');
const { setFlagsFromString } = require('node:v8');
const { runWithCache } = require('./embedded-main.cjs');

const [node, , source, target, ...args] = process.argv;
process.argv = [node, source, ...args];
const script = runWithCache(readFileSync(source, 'utf8'), undefined, source);
process.once('message', () => {
  // V8 accepts a cache only with the flags that it was created with, and `serve` has changed these defaults.
  setFlagsFromString('--max-inlined-bytecode-size=460');
  setFlagsFromString('--max-inlined-bytecode-size-cumulative=920');
  writeFileSync(target, script.createCachedData());
  process.exit(0);
});
