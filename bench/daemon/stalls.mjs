/**
 * How long a daemon with many keys and overrides keeps a client waiting while it writes a snapshot, reloads, is scraped,
 * feeds a listener, or grows its tables. The daemon is a real process; a probe checks a key each millisecond.
 *
 *     npm run figures:stalls                  a million keys of each limit, 10,000 overrides; two minutes
 *     npm run figures:stalls -- --short       a tenth of everything
 *     npm run figures:stalls -- --only reload only operations with this word in their name
 *     npm run figures:stalls -- --write       writes the table into docs/explanation/guarantees.md
 *
 * Names the operations during which p99.9 of a probe exceeds BOUND_MS, the goal on a machine without other work.
 */

import { fork } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isToWrite, loadLine, madeBy, table, whole, writeFigures } from '../report.mjs';
import { startDaemon } from './process.mjs';

const isShort = process.argv.includes('--short');
const onlyAt = process.argv.indexOf('--only');
const only = onlyAt === -1 ? '' : process.argv[onlyAt + 1];
const writes = isToWrite(!isShort && only === '');
const KEYS = isShort ? 100_000 : 1_000_000;
const OVERRIDES = isShort ? 1000 : 10_000;
const SPAN_MS = isShort ? 1000 : 6000;
const BOUND_MS = 10;

const folder = mkdtempSync(join(tmpdir(), 'sluice-stalls-'));
const file = join(folder, 'sluice.yaml');
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Lines of a file of networks, and of one of plans. */
const LINES = isShort ? 10_000 : 100_000;
const lines = (line) => Array.from({ length: LINES }, (_, n) => line(n)).join('\n');
writeFileSync(
  join(folder, 'networks.txt'),
  lines((n) => `10.${n >> 16}.${(n >> 8) & 255}.${n & 255}/32`),
);
writeFileSync(
  join(folder, 'plans.csv'),
  lines((n) => `customer-${n},${n % 2 ? 'pro' : 'free'}`),
);
const FILES = `deny: [{ file: networks.txt }]
planFile: plans.csv
plans: { free: { bucket: { rate: 1/s } }, pro: { bucket: { rate: 9/s } } }`;

/** Two limits with as many keys each, and overrides of ten kinds; `burst` and `limit` are those of overrides and limits. */
function writeConfig({ snapshotEvery, burst, limit = 10, files = false, maxKeys = 1_048_576 }) {
  const overrides = Array.from(
    { length: OVERRIDES },
    (_, n) => `      - { match: 'b:${n}', bucket: { rate: ${1 + (n % 10)}/m, burst: ${burst} } }\n`,
  );
  writeFileSync(
    file,
    `snapshot: { file: ${join(folder, 'state')}, every: ${snapshotEvery} }
${files ? FILES : ''}
limits:
  bucket:
    match: 'b:*'
    bucket: { rate: 1/h, burst: ${limit} }
    maxKeys: ${maxKeys}
    plans: ${files}
    overrides:
${overrides.join('')}
  window: { match: 'w:*', window: { limit: ${limit}, per: 1h }, maxKeys: ${maxKeys} }
  probe: { bucket: { rate: 1000/s, burst: 1000 } }
`,
  );
}

const start = () =>
  startDaemon([
    '--config',
    file,
    '--line',
    '127.0.0.1:0',
    '--resp',
    'off',
    '--http',
    '127.0.0.1:0',
  ]);

/** Checks keys in batches, at most `perSecond`. */
async function checkKeys(port, from, to, keyOf, perSecond = Infinity) {
  const BATCH = Math.min(1024, Math.ceil(perSecond / 1000));
  const socket = connect({ port, host: '127.0.0.1', noDelay: true });
  let missing = 0;
  let onAnswered = () => {};
  socket.on('data', (chunk) => {
    missing -= chunk.length;
    if (missing === 0) onAnswered();
  });
  const startedAt = performance.now();
  for (let n = from; n < to; n += BATCH) {
    let text = '';
    for (let key = n; key < Math.min(n + BATCH, to); key++) text += `${keyOf(key)}\n`;
    missing += (Math.min(n + BATCH, to) - n) * 3;
    const answered = new Promise((resolve) => {
      onAnswered = resolve;
    });
    socket.write(text);
    await answered;
    const aheadMs = ((n - from) / perSecond) * 1000 - (performance.now() - startedAt);
    if (aheadMs > 1) await sleep(aheadMs);
  }
  socket.destroy();
}

/** The latencies that the probe has measured while `operation` ran. */
async function measure(probe, name, operation) {
  const read = () =>
    new Promise((resolve) => {
      probe.once('message', resolve);
      probe.send('read');
    });
  await read();
  const note = await operation();
  const result = { name, note, ...(await read()) };
  console.error(`${name}: ${JSON.stringify(result)}`);
  return result;
}

async function repeat(everyMs, operation) {
  const until = performance.now() + SPAN_MS;
  let times = 0;
  for (let due = performance.now(); due < until; due += everyMs, times++) {
    await sleep(due - performance.now());
    await operation();
  }
  return times;
}

writeConfig({ snapshotEvery: '1d', burst: 20 });
const emptyAt = performance.now();
const daemon = await start();
const emptyMs = performance.now() - emptyAt;
const line = daemon.port('line');
const http = `http://${daemon.at.http[0]}`;
const probe = fork('bench/daemon/probe.mjs', [String(line)]);
await sleep(500);

const results = [];
const during = async (name, operation) => {
  if (name.includes(only)) results.push(await measure(probe, name, operation));
};
await checkKeys(line, 0, KEYS * 0.7, (n) => `b:${n}`);
await checkKeys(line, 0, KEYS * 0.7, (n) => `w:${n}`);
await during('quiet', () => sleep(SPAN_MS));
// The tables of both limits grow on the way: at 838,860 keys.
const addKeys = (prefix) => () =>
  checkKeys(line, KEYS * 0.7, KEYS, (n) => `${prefix}:${n}`, KEYS / 20);
await during('new keys of the bucket, 50,000 a second', addKeys('b'));
await during('new keys of the window, 50,000 a second', addKeys('w'));
await during('`GET /metrics`, four a second', () =>
  repeat(250, async () => (await fetch(`${http}/metrics`)).text()),
);
await during('a listener of `GET /feed`', async () => {
  const abort = new AbortController();
  const feed = await fetch(`${http}/feed`, { signal: abort.signal });
  const reading = feed.text().catch(() => {});
  await sleep(SPAN_MS);
  abort.abort();
  await reading;
});
await during('`GET /limits`, one a second', () =>
  repeat(1000, async () => (await fetch(`${http}/limits`)).text()),
);
const reload = (config) => async () => {
  writeConfig(config);
  const response = await fetch(`${http}/reload`, { method: 'POST' });
  if (!response.ok) throw new Error(await response.text());
  await sleep(1000);
};
await during('a reload that changes all overrides', reload({ snapshotEvery: '1d', burst: 30 }));
await during(
  'a reload that changes the limits of all keys',
  reload({ snapshotEvery: '1d', burst: 30, limit: 11 }),
);
await during(
  'a reload that changes `maxKeys` of all limits',
  reload({ snapshotEvery: '1d', burst: 30, limit: 11, maxKeys: 2_000_000 }),
);
await during(
  `a reload with files of ${whole(LINES)} networks and plans`,
  reload({ snapshotEvery: '2s', burst: 30, limit: 11, maxKeys: 2_000_000, files: true }),
);
await during('a snapshot every 2 s', () => sleep(SPAN_MS));
await reload({ snapshotEvery: '1d', burst: 30, maxKeys: 2_000_000 })();
probe.disconnect();
const stopAt = performance.now();
await daemon.stop();
const stopMs = performance.now() - stopAt;
const restoreAt = performance.now();
const successor = await start();
const restoreMs = performance.now() - restoreAt;
await successor.stop('SIGKILL');
rmSync(folder, { recursive: true });

const ms = (value) => `${value < 10 ? value.toFixed(1) : whole(value)} ms`;
const columns = {
  during: ({ name }) => name,
  probes: ({ probes }) => whole(probes),
  p50: ({ p50 }) => ms(p50),
  p99: ({ p99 }) => ms(p99),
  'p99.9': ({ p999 }) => ms(p999),
  max: ({ max }) => ms(max),
};
const text = `${table(columns, results)}

Start without a snapshot ${ms(emptyMs)}, with it ${ms(restoreMs)}; stop ${ms(stopMs)}.

${madeBy('npm run figures:stalls', loadLine())}`;
console.log(text);
const late = results.filter(({ name, p999 }) => name !== 'quiet' && p999 > BOUND_MS);
if (late.length > 0) {
  console.error(`above ${BOUND_MS} ms: ${late.map(({ name }) => name).join(', ')}`);
}
if (writes) writeFigures('docs/explanation/guarantees.md', 'stalls', text);
