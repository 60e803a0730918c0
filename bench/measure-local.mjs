/**
 * Measures one competitor in its own process, so that heaps do not affect each other.
 *
 *     node --expose-gc bench/measure-local.mjs NAME KEYS MILLISECONDS   →  one line of JSON
 *
 * Decisions per second for one key, a thousand keys, all keys uniformly, and all keys by a Zipf distribution (few keys
 * get most calls); and bytes per key.
 */

import { competitors } from './competitors.mjs';

const [name, keyCount, spanMs] = [
  process.argv[2],
  Number(process.argv[3]),
  Number(process.argv[4]),
];
const ORDER = 1 << 20;
const BATCH = 4096; // checks between two reads of the clock

// A seeded generator: the same order for all competitors.
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

async function rate(check, isAsync, keys, order) {
  const mask = order.length - 1;
  let done = 0;
  let allowed = 0;
  const start = performance.now();
  const end = start + spanMs;
  let now = start;
  while (now < end) {
    if (isAsync) {
      for (let n = 0; n < BATCH; n++)
        allowed += (await check(keys[order[(done + n) & mask]])) ? 1 : 0;
    } else {
      for (let n = 0; n < BATCH; n++) allowed += check(keys[order[(done + n) & mask]]) ? 1 : 0;
    }
    done += BATCH;
    now = performance.now();
  }
  if (allowed !== done) throw new Error(`${name}: ${allowed} of ${done} allowed`);
  return done / ((now - start) / 1000);
}

/** Zipf with exponent 1 over `count` keys, by inverse transform sampling. */
const zipf = (count) =>
  Math.min(count - 1, Math.floor(Math.exp(random() * Math.log(count + 1)) - 1));

const { sync, async: asynchronous } = await competitors[name].make();
const check = sync ?? asynchronous;
const isAsync = sync === undefined;

const before = memory();
// Fresh strings that only the competitor keeps, so that they count as its memory.
for (let n = 0; n < keyCount; n++) await check(keyOf(n));
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
  await rate(check, isAsync, keys, order); // once to warm up, once to count
  results[scenario] = await rate(check, isAsync, keys, order);
}
console.log(JSON.stringify(results));
process.exit(0); // some competitors keep a timer per key
