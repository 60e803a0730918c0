/**
 * Memory per key, and the latency of a check that grows the key table.
 *
 *     npm run bench:keys                a million keys of each limit, two million of a bucket; one minute
 *     npm run bench:keys -- --smoke     1 % of that
 *     npm run bench:keys -- --write     also writes the result into docs/reference/library.md
 */

import { limiter } from 'sluice';
import { isToWrite, madeBy, median, whole, writeFigures } from './report.mjs';

const isSmoke = process.argv.includes('--smoke');
const writes = isToWrite(!isSmoke);
const KEYS = isSmoke ? 10_000 : 1_000_000;
const ROUNDS = 5;
/** The growth of smaller tables takes too little time to matter. */
const MIN_GROWTH_KEYS = 0.3 * KEYS;

const LIMITS = {
  spacing: { spacing: { every: '1h' } },
  bucket: { bucket: { rate: '1/h', burst: 2 } },
  ramp: { ramp: { min: 1, max: 10, over: '1h' } },
  busy: { busy: {} },
  adaptive: { adaptive: {} },
  'adaptive with rule aimd': { adaptive: { rule: 'aimd' } },
};

const keyOf = (n) => `client-${n}@example.org`;

function bytesOf(limit) {
  const api = limiter({ limit, maxKeys: 2 * KEYS });
  for (let n = 0; n < KEYS; n++) api.check(keyOf(n), 1, { willSettle: true });
  return api.stats().bytes / KEYS;
}

/** The number of keys at each growth of the table, and the latency of that check. */
function measureGrowth() {
  const api = limiter({ limit: LIMITS.bucket, maxKeys: 4 * KEYS });
  const growths = [];
  let slowestMs = 0;
  let { bytes } = api.stats();
  const SAMPLE_EVERY = KEYS / 100;
  for (let n = 1; n <= 2 * KEYS; n++) {
    const from = performance.now();
    api.check(keyOf(n));
    slowestMs = Math.max(slowestMs, performance.now() - from);
    if (n % SAMPLE_EVERY !== 0) continue;
    const now = api.stats().bytes;
    if (now > bytes && n >= MIN_GROWTH_KEYS) growths.push({ keys: n, ms: slowestMs });
    bytes = now;
    slowestMs = 0;
  }
  return growths;
}

const bytes = Object.entries(LIMITS).map(
  ([name, limit]) => `${bytesOf(limit).toFixed(0)} for ${name}`,
);
const rounds = Array.from({ length: ROUNDS }, measureGrowth);
const grown = rounds[0].map(({ keys }, n) => {
  const ms = median(rounds.map((round) => round[n].ms));
  return `${ms.toFixed(0)} ms at ${whole(keys)} keys`;
});
const text = `With ${whole(KEYS)} keys the bytes per key are ${bytes.join(', ')}. The table grows by doubling; the single check that
makes it grow takes, for a bucket, ${grown.join(', ')}.`;
console.log(text);
if (writes)
  writeFigures('docs/reference/library.md', 'keys', `${text}\n\n${madeBy('npm run bench:keys')}`);
