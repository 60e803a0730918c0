/**
 * What a pool costs: 1,000 members that sync with one real Redis, and decisions beside those of a limit alone.
 *
 *     npm run bench:pool                a part of bench/RESULTS.md
 *     npm run bench:pool -- --smoke     a moment with few members, writes nothing
 *
 * Each member has a connection of its own, as pods have. They are all in this process, so what a sync takes
 * here is mostly the wait for this process; what it takes Redis, Redis says itself.
 */

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createClient } from 'redis';
import { limiter } from 'sluice';
import { memoryStore, pool, redisStore } from 'sluice/pool';
import { cpuOf } from './daemon/process.mjs';
import { freePort } from './ports.mjs';
import { machineLine, median, millions, row, writeSection } from './report.mjs';

const smoke = process.argv.includes('--smoke');
const COUNTS = smoke ? [20] : [10, 100, 1000];
const SPAN_MS = smoke ? 300 : 5000;
const ROUNDS = smoke ? 1 : 9;
const ROUND_MS = smoke ? 20 : 300;
const AGREED_WITHIN_MS = 60_000;

const later = (ms) => new Promise((done) => setTimeout(done, ms));

const folder = mkdtempSync(join(tmpdir(), 'sluice-bench-'));
const port = await freePort();
const flags = ['--port', `${port}`, '--bind', '127.0.0.1', '--dir', folder, '--save', ''];
const server = spawn('redis-server', [...flags, '--maxclients', '5000'], { stdio: 'ignore' });

async function connect() {
  const client = createClient({ socket: { port, host: '127.0.0.1', reconnectStrategy: 50 } });
  client.on('error', () => {});
  await client.connect();
  return client;
}

/** How often Redis ran a script, and how long that took it in all. */
async function scriptsOf(client) {
  const told = /cmdstat_evalsha:calls=(\d+),usec=(\d+)/.exec(await client.info('commandstats'));
  return { calls: Number(told?.[1] ?? 0), us: Number(told?.[2] ?? 0) };
}

/** The same store, and how long each sync took. */
function timed(store, spans) {
  return {
    ...store,
    async sync(...args) {
      const since = performance.now();
      const answer = await store.sync(...args);
      spans.push(performance.now() - since);
      return answer;
    },
  };
}

async function measure(count) {
  const watcher = await connect();
  const spans = [];
  const clients = await Promise.all(Array.from({ length: count }, connect));
  const since = performance.now();
  const places = [];
  for (const [n, client] of clients.entries()) {
    const name = `bench ${count}`;
    places.push(pool(timed(redisStore(client), spans), { name, id: `pod-${n}`, sync: 100 }));
    if (n % 10 === 9) await later(1); // as pods start: not all in the same instant
  }
  const isWhole = ({ size, rank, isAgreed }) => size === count && rank >= 0 && isAgreed;
  while (!places.every((place) => isWhole(place.view()))) {
    if (performance.now() - since > AGREED_WITHIN_MS) throw new Error(`${count} never agreed`);
    await later(20);
  }
  const agreedMs = performance.now() - since;
  const syncs = () => places.reduce((sum, place) => sum + place.view().syncs, 0);
  const failures = () => places.reduce((sum, place) => sum + place.view().failures, 0);
  spans.length = 0;
  const start = [performance.now(), syncs(), cpuOf(server.pid), await scriptsOf(watcher)];
  const failed = failures();
  await later(SPAN_MS);
  const seconds = (performance.now() - start[0]) / 1000;
  const scripts = await scriptsOf(watcher);
  const figures = {
    count,
    agreedMs,
    syncs: (syncs() - start[1]) / seconds,
    cpu: (cpuOf(server.pid) - start[2]) / seconds,
    scriptUs: (scripts.us - start[3].us) / (scripts.calls - start[3].calls),
    syncMs: median(spans),
    failures: failures() - failed,
  };
  await Promise.all(places.map((place) => place.close()));
  for (const client of [...clients, watcher]) client.destroy();
  return figures;
}

/** Decisions a second of one limiter. */
function rate(own) {
  const BATCH = 4096;
  let done = 0;
  let allowed = 0;
  const start = performance.now();
  let now = start;
  while (now - start < ROUND_MS) {
    for (let n = 0; n < BATCH; n++) allowed += own.check('alice').verdict === 'allow' ? 1 : 0;
    done += BATCH;
    now = performance.now();
  }
  if (allowed === 0) throw new Error('nothing was allowed');
  return done / ((now - start) / 1000);
}

/** The same limit alone and in a pool of three, one after the other, round by round. */
async function beside(limit) {
  const store = memoryStore();
  const places = ['one', 'two', 'three'].map((id) =>
    pool(store, { id, memberTimeout: 1000, sync: 100 }),
  );
  const [place] = places;
  const own = { alone: limiter({ limit }), pooled: limiter({ limit, backend: place }) };
  while (place.view().size < 3 || place.view().rank < 0) await later(10);
  await later(1000); // what is more is used from the next second on
  const rates = { alone: [], pooled: [] };
  for (const key of ['alone', 'pooled']) rate(own[key]); // once to warm up
  for (let round = 0; round < ROUNDS; round++) {
    for (const key of round % 2 ? ['pooled', 'alone'] : ['alone', 'pooled']) {
      rates[key].push(rate(own[key]));
      await later(30); // whoever is in a pool has to hear of it now and then
    }
  }
  await Promise.all(places.map((other) => other.close()));
  const ratios = rates.pooled.map((pooled, round) => pooled / rates.alone[round]);
  return { alone: median(rates.alone), pooled: median(rates.pooled), ratio: median(ratios) };
}

/** Messages a second of a reader of batches, whose work is to read a small JSON text. */
async function reading(limit) {
  const BATCH = 500;
  const message = JSON.stringify({ id: 'alice', n: 1 });
  let done = 0;
  let sum = 0;
  const start = performance.now();
  let now = start;
  while (now - start < ROUND_MS) {
    const granted = limit ? limit.takeUpTo('', BATCH) : BATCH;
    for (let n = 0; n < granted; n++) sum += JSON.parse(message).n;
    done += granted;
    await new Promise(setImmediate); // the next batch comes from elsewhere
    now = performance.now();
  }
  if (sum !== done) throw new Error('messages were lost');
  return done / ((now - start) / 1000);
}

/** A reader without a limit: in a process that is in no pool, in one that is in a pool, and one that has a limit of it. */
async function readers() {
  const rates = { none: [], pool: [], limit: [] };
  const store = memoryStore();
  await reading(); // once to warm up
  for (let round = 0; round < ROUNDS; round++) {
    rates.none.push(await reading());
    const place = pool(store, { id: `reader ${round}`, memberTimeout: 400, sync: 100 });
    rates.pool.push(await reading());
    const own = limiter({ limit: LIMITS.ramp, backend: place });
    while (place.view().rank < 0 || own.takeUpTo('', 1) === 0) await later(10);
    rates.limit.push(await reading(own));
    await place.close();
  }
  const ratio = (name) => median(rates[name].map((rate, round) => rate / rates.none[round]));
  return { none: median(rates.none), pool: ratio('pool'), limit: ratio('limit') };
}

const LIMITS = {
  bucket: { bucket: { rate: 1e9, burst: 1e9 } },
  ramp: { ramp: { min: 1e9, max: 1e9, over: '1s' } },
};

const table = [
  row([
    'members',
    'syncs/s',
    'CPU of Redis',
    'of that a sync',
    'its script',
    'seen here',
    'agreed after',
  ]),
  row(['---:', '---:', '---:', '---:', '---:', '---:', '---:']),
];
for (const count of COUNTS) {
  const { agreedMs, syncs, cpu, scriptUs, syncMs, failures } = await measure(count);
  if (failures > 0) console.error(`${count} members: ${failures} syncs failed`);
  const cells = [
    ...[
      count,
      Math.round(syncs),
      `${cpu.toFixed(2)} s/s`,
      `${((cpu / syncs) * 1e6).toFixed(0)} µs`,
    ],
    ...[
      `${scriptUs.toFixed(0)} µs`,
      `${syncMs.toFixed(2)} ms`,
      `${(agreedMs / 1000).toFixed(1)} s`,
    ],
  ];
  table.push(row(cells));
  console.log(table.at(-1));
}

const decisions = [row(['', 'alone', 'in a pool', 'ratio']), row(['---', '---:', '---:', '---:'])];
for (const [name, limit] of Object.entries(LIMITS)) {
  const { alone, pooled, ratio } = await beside(limit);
  decisions.push(row([name, millions(alone), millions(pooled), ratio.toFixed(2)]));
}
const read = await readers();
const text = `Members that sync every 100 ms with one Redis, each on a connection of its own, for ${SPAN_MS / 1000} s
(\`npm run bench:pool\`; ${machineLine()}). CPU is what Redis used in all, network included; the script's time is
by the clock on the wall. All members are in one process that shares the machine with Redis: "seen here" is mostly the
wait for that process.

${table.join('\n')}

Decisions a second of one limit, alone and in a pool of three; medians of ${ROUNDS} rounds, and of their ratios.

${decisions.join('\n')}

A reader of batches of 500 small messages that has no limit reads ${millions(read.none)} of them. In a process that is in a pool it
reads ${read.pool.toFixed(2)} times as many, and with a limit of that pool, which is asked once a batch, ${read.limit.toFixed(2)} times.`;
console.log(`\n${text}`);
if (!smoke) writeSection('Pools', text);
server.kill('SIGKILL');
rmSync(folder, { recursive: true, force: true });
process.exit(0);
