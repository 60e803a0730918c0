/**
 * A day of a daemon's history on a virtual clock: memory and the size of /history stay bounded.
 *
 *     npm run soak:history                            a day, 17,280 samples, 300 limits
 *     npm run soak:history -- --hours 2 --limits 110 --calls 10
 *     npm run soak:history -- --write                 a day, and the result into docs/reference/page.md
 *
 * A real daemon decides calls of ever new keys between two samples. Every hour a reload renames half of its limits, so
 * that a history which kept old limits would grow. Pages are read over HTTP. Checked after every hour:
 *
 *   - /history has the samples of an hour, at most 100 limits, and its size stays within 10 % of the first hour's and a bound
 *   - the heap and the buffers of the process do not grow after the first hour
 */

import { parseArgs } from 'node:util';
import { parseConfigText } from '../../dist/daemon/config/file.js';
import { Daemon } from '../../dist/daemon/daemon.js';
import { VirtualClock } from '../../dist/testing/index.js';
import { isToWrite, madeBy, table, whole, writeFigures } from '../report.mjs';

const HOURS = 24;
const LIMITS = 300;
const CALLS = 20;

const { values: options } = parseArgs({
  options: {
    hours: { type: 'string', default: `${HOURS}` },
    limits: { type: 'string', default: `${LIMITS}` },
    calls: { type: 'string', default: `${CALLS}` },
    write: { type: 'boolean', default: false },
    json: { type: 'boolean', default: false },
  },
});
const hours = Number(options.hours);
const limitCount = Number(options.limits);
const keysPerSample = Number(options.calls);
const writes = isToWrite(hours >= HOURS && limitCount >= LIMITS && keysPerSample >= CALLS);

const INTERVAL_MS = 5000;
const SAMPLES_PER_HOUR = 720;
/** Keys of each limit: their tables are no part of the history. */
const MAX_KEYS = 200;

/** 100 limits and the total, each with up to seven numbers of up to eight characters a sample, and names. */
const MAX_HISTORY_BYTES = 101 * SAMPLES_PER_HOUR * 7 * 9;
/** Growth beyond this, once everything has warmed up, would be a leak. */
const MAX_GROWTH_BYTES = 16 * 1024 * 1024;

/** Tells when the history has taken its sample: it then sets its next timer. */
class SampleClock extends VirtualClock {
  samples = 0;

  wakeAt(at, callback) {
    if (at - this.now() === INTERVAL_MS) this.samples++;
    return super.wakeAt(at, callback);
  }
}

/** Half of the limits have other names in each generation. */
const nameOf = (n, generation) => `limit-${n % 2 === 0 ? 0 : generation}-${n}`;

function configOf(generation) {
  const limits = Array.from({ length: limitCount }, (_, n) => [
    nameOf(n, generation),
    { match: `k${n}:*`, bucket: { rate: '1/m', burst: 5 }, maxKeys: MAX_KEYS },
  ]);
  const file = {
    listen: { line: false, resp: false, http: '127.0.0.1:0' },
    log: { level: 'error' },
    limits: Object.fromEntries(limits),
  };
  return parseConfigText('soak.yaml', JSON.stringify(file));
}

const immediate = () => new Promise((resolve) => setImmediate(resolve));

const clock = new SampleClock(Date.UTC(2026, 0, 1));
const first = configOf(0);
if ('problems' in first) throw new Error(first.problems.join('\n'));
let generation = 0;
const daemon = await Daemon.start(first.config, {
  ...{ log: () => {}, version: '0', clock, load: () => configOf(generation) },
});
const [{ listen }] = daemon.addresses;
const base = `http://${listen.host}:${listen.port}`;

/** Calls of known and of ever new keys, and the next sample. */
async function step(sample) {
  for (let n = 0; n < keysPerSample; n++) {
    const limit = (sample * keysPerSample + n) % limitCount;
    const key = n % 4 === 0 ? `k${limit}:new-${sample}-${n}` : `k${limit}:busy`;
    for (let times = 0; times < 3; times++) daemon.router.check({ key, cost: 1 });
  }
  const { samples } = clock;
  clock.advance(INTERVAL_MS);
  while (clock.samples === samples) await immediate();
}

async function pageOf(path) {
  const response = await fetch(base + path);
  const text = await response.text();
  return { text, bytes: Buffer.byteLength(text) };
}

/** Buffers are released after the objects that hold them, so one collection is not enough. */
async function memoryAfterGc() {
  for (let n = 0; n < 5; n++) {
    globalThis.gc?.();
    await immediate();
  }
  return process.memoryUsage();
}

const results = [];
const problems = [];
for (let hour = 1; hour <= hours; hour++) {
  generation = hour;
  const reloaded = await daemon.reload();
  if (!reloaded.ok) problems.push(`reload ${hour}: ${reloaded.problems.join('; ')}`);
  for (let n = 0; n < SAMPLES_PER_HOUR; n++) await step(hour * SAMPLES_PER_HOUR + n);
  const history = await pageOf('/history');
  const keys = await pageOf('/keys');
  const parsed = JSON.parse(history.text);
  const latest = await pageOf(`/history?since=${parsed.times.at(-2)}`);
  const { heapUsed, arrayBuffers } = await memoryAfterGc();
  results.push({
    hour,
    samples: parsed.times.length,
    limits: parsed.limits.length,
    historyBytes: history.bytes,
    latestBytes: latest.bytes,
    keysBytes: keys.bytes,
    memory: heapUsed + arrayBuffers,
  });
  if (!options.json) console.error(`hour ${hour}: ${whole(history.bytes)} bytes of /history`);
}
await Promise.all([daemon.stop(), advanceUntilStopped()]);

/** A stopping daemon waits on its clock. */
async function advanceUntilStopped() {
  for (let n = 0; n < 200; n++) {
    clock.advance(100);
    await immediate();
  }
}

const [firstHour] = results;
for (const { hour, samples, limits, historyBytes, memory } of results) {
  if (samples !== SAMPLES_PER_HOUR) problems.push(`hour ${hour}: ${samples} samples`);
  if (limits > 100) problems.push(`hour ${hour}: ${limits} limits`);
  if (historyBytes > MAX_HISTORY_BYTES) problems.push(`hour ${hour}: ${historyBytes} bytes`);
  if (Math.abs(historyBytes / firstHour.historyBytes - 1) > 0.1)
    problems.push(`hour ${hour}: ${historyBytes} bytes, hour 1: ${firstHour.historyBytes}`);
  if (globalThis.gc && memory - firstHour.memory > MAX_GROWTH_BYTES)
    problems.push(`hour ${hour}: ${memory} bytes in memory, hour 1: ${firstHour.memory}`);
}
for (const problem of problems) console.error(problem);

const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(2)} MiB`;
const columns = {
  hour: ({ hour }) => hour,
  samples: ({ samples }) => samples,
  limits: ({ limits }) => limits,
  '`/history`': ({ historyBytes }) => mib(historyBytes),
  'its last sample': ({ latestBytes }) => `${whole(latestBytes / 1024)} KiB`,
  '`/keys`': ({ keysBytes }) => `${whole(keysBytes / 1024)} KiB`,
  'heap and buffers': ({ memory }) => mib(memory),
};
const shown = results.filter(({ hour }) => [1, 2, 3, 6, 12, 18, 24].includes(hour));
const text = table(
  columns,
  shown,
  Object.keys(columns).map(() => '---:'),
);
if (options.json) console.log(JSON.stringify({ results, problems }));
else console.log(text);
if (writes && problems.length === 0)
  writeFigures(
    'docs/reference/page.md',
    'history',
    `${text}

${whole(limitCount)} limits, half of them renamed by a reload every hour, ${whole(hours * SAMPLES_PER_HOUR)} samples, ${whole(hours * SAMPLES_PER_HOUR * keysPerSample * 3)} calls of ever new keys.
${madeBy('npm run soak:history -- --write')}`,
  );
process.exit(problems.length === 0 ? 0 : 1);
