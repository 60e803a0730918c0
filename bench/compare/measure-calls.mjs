/**
 * Measures calls of one build in this process.
 *
 *     node bench/compare/measure-calls.mjs '{"folder":…,"name":…,"ms":200,…}'    sends { figures } to its parent
 *
 * Packages other than Sluice are those of this checkout for both builds. The limit is never reached.
 */

import { measureCallers, measureCalls } from '../call-rate.mjs';
import { libraryOf } from './builds.mjs';

const {
  folder,
  ms,
  keys,
  call = 'check',
  inFlight,
  port,
  owner,
  warmUpMs,
} = JSON.parse(process.argv[2]);
const ORDER = 1 << 20;
const KEYS_OF_REDIS = 1000;
const limit = { bucket: { rate: '1/h', burst: 1e12 } };

const library = await libraryOf(folder);

/** Numbers in an order that is the same for both builds. */
function randomNumbers(below) {
  let seed = 42;
  return Int32Array.from({ length: ORDER }, () => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    return Math.floor((seed / 2 ** 32) * below);
  });
}

const CALLS = {
  check() {
    const own = library.limiter({ limit, maxKeys: Math.ceil(keys * 1.1) });
    const check = library.checkOf(own);
    const names = Array.from({ length: keys }, (_, n) => `user:${n}@example.org`);
    for (const name of names) check(name);
    const order = randomNumbers(keys);
    return (n) => check(names[order[n & (ORDER - 1)]]);
  },
  permit() {
    const own = library.limiter({ limit });
    return () => own.tryAcquire('user:1').settle();
  },
  throttled() {
    let count = 0;
    return library.throttle?.(() => ++count, { limit });
  },
  allOfTwo() {
    const parts = ['one', 'two'].map((name) => library.limiter({ name, limit }));
    const own = library.all?.(parts);
    const check = own && library.checkOf(own);
    return own && (() => check('user:1'));
  },
};

async function measureLocal() {
  const sync = CALLS[call]();
  if (sync === undefined) return undefined;
  await measureCalls({ sync }, warmUpMs);
  return measureCalls({ sync }, ms);
}

async function measureThroughRedis() {
  const { createClient } = await import('redis');
  const client = createClient({ socket: { port, host: '127.0.0.1' } });
  client.on('error', () => {});
  await client.connect();
  const limit = { bucket: { rate: 1e9, burst: 1e9 } };
  // A reply that is late on a busy machine is not a failure: a local decision would cost less.
  const own = library.remoteLimiter({ name: owner, limit }, client, { deadline: '10s' });
  const check = library.checkOf(own);
  const names = Array.from({ length: KEYS_OF_REDIS }, (_, n) => `client-${n}`);
  const checkOne = (n) => check(names[n % KEYS_OF_REDIS]);
  await measureCallers(checkOne, inFlight, warmUpMs);
  return measureCallers(checkOne, inFlight, ms);
}

const figures = await (inFlight === undefined ? measureLocal() : measureThroughRedis());
process.send({ figures }, () => process.exit(0)); // limiters keep timers
