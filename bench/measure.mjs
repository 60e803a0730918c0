/**
 * Measures one contender, in a process of its own so that nobody inherits another's heap.
 *
 *     node --expose-gc bench/measure.mjs NAME KEYS MILLISECONDS   →  one line of JSON
 *
 * One hot key, a thousand of them, then every key of a million alike, then as Zipf has it (a few are
 * asked for most of the time, as in life). Decisions a second each, and the bytes a key costs.
 */

import { contenders } from './contenders.mjs';

const [name, keyCount, spanMs] = [
  process.argv[2],
  Number(process.argv[3]),
  Number(process.argv[4]),
];
const ORDER = 1 << 20;
const BATCH = 4096; // asks between two looks at the clock

// A small generator of our own: the same order for everybody.
let seed = 42;
const random = () => {
  seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
  return seed / 2 ** 32;
};

const keyOf = (n) => `user:${n}@example.org`;
const memory = () => {
  globalThis.gc();
  globalThis.gc();
  const { heapUsed, external } = process.memoryUsage();
  return heapUsed + external;
};

async function rate(ask, isAsync, keys, order) {
  const mask = order.length - 1;
  let done = 0;
  let allowed = 0;
  const start = performance.now();
  const end = start + spanMs;
  let now = start;
  while (now < end) {
    if (isAsync) {
      for (let n = 0; n < BATCH; n++)
        allowed += (await ask(keys[order[(done + n) & mask]])) ? 1 : 0;
    } else {
      for (let n = 0; n < BATCH; n++) allowed += ask(keys[order[(done + n) & mask]]) ? 1 : 0;
    }
    done += BATCH;
    now = performance.now();
  }
  if (allowed !== done) throw new Error(`${name}: ${allowed} of ${done} allowed`);
  return done / ((now - start) / 1000);
}

/** Zipf with exponent 1 over `count` keys, by inverting the logarithm it sums to. */
const zipf = (count) =>
  Math.min(count - 1, Math.floor(Math.exp(random() * Math.log(count + 1)) - 1));

const { sync, async: asynchronous } = await contenders[name].make();
const ask = sync ?? asynchronous;
const isAsync = sync === undefined;

const before = memory();
// Fresh strings that only the contender may keep: what it keeps is what a key costs.
for (let n = 0; n < keyCount; n++) await ask(keyOf(n));
const bytesPerKey = (memory() - before) / keyCount;

const keys = Array.from({ length: keyCount }, (_, n) => keyOf(n));
const orders = {
  hot: Int32Array.from({ length: ORDER }, () => 7),
  few: Int32Array.from({ length: ORDER }, () => Math.floor(random() * Math.min(1000, keyCount))),
  uniform: Int32Array.from({ length: ORDER }, () => Math.floor(random() * keyCount)),
  zipf: Int32Array.from({ length: ORDER }, () => zipf(keyCount)),
};
const results = { bytesPerKey };
for (const [scenario, order] of Object.entries(orders)) {
  await rate(ask, isAsync, keys, order); // once to warm up, once to count
  results[scenario] = await rate(ask, isAsync, keys, order);
}
console.log(JSON.stringify(results));
process.exit(0); // some contenders leave a timer for every key
