/**
 * The cost of a pool: up to 1,000 members that sync with a real Redis, and decisions per second with and without a pool.
 *
 *     npm run bench:pool                written to bench/RESULTS.md
 *     npm run bench:pool -- --smoke     a short run with few members, writes nothing
 *
 * Each member has its own connection, as pods have. All members are in this process, so the latency of a sync here is
 * mostly waiting for this process. The time in Redis comes from Redis itself.
 */

import { createClient } from 'redis';
import { limiter } from 'sluice';
import { memoryStore, pool, redisStore } from 'sluice/pool';
import { cpuOf } from './daemon/process.mjs';
import { machineLine, median, millions, row, writeSection } from './report.mjs';
import { startRedis } from './soak/server.mjs';

const smoke = process.argv.includes('--smoke');
const COUNTS = smoke ? [20] : [10, 100, 1000];
const SPAN_MS = smoke ? 300 : 5000;
const ROUNDS = smoke ? 1 : 9;
const ROUND_MS = smoke ? 20 : 300;
const AGREED_WITHIN_MS = 60_000;

const later = (ms) => new Promise((done) => setTimeout(done, ms));

const server = await startRedis('--maxclients', '5000');
const { port } = server;

async function connect() {
  const client = createClient({ socket: { port, host: '127.0.0.1', reconnectStrategy: 50 } });
  client.on('error', () => {});
  await client.connect();
  return client;
}

/** Number of script calls in Redis, and their total time. */
async function scriptsOf(client) {
  const stats = /cmdstat_evalsha:calls=(\d+),usec=(\d+)/.exec(await client.info('commandstats'));
  return { calls: Number(stats?.[1] ?? 0), us: Number(stats?.[2] ?? 0) };
}

/** A store that records the duration of each sync. */
function timed(store, durations) {
  return {
    ...store,
    async sync(...args) {
      const since = performance.now();
      const reply = await store.sync(...args);
      durations.push(performance.now() - since);
      return reply;
    },
  };
}

async function measure(count) {
  const monitor = await connect();
  const durations = [];
  const clients = await Promise.all(Array.from({ length: count }, connect));
  const since = performance.now();
  const members = [];
  for (const [n, client] of clients.entries()) {
    const name = `bench ${count}`;
    members.push(pool(timed(redisStore(client), durations), { name, id: `pod-${n}`, sync: 100 }));
    if (n % 10 === 9) await later(1); // pods do not start in the same instant
  }
  const hasAgreed = ({ size, rank, isAgreed }) => size === count && rank >= 0 && isAgreed;
  while (!members.every((member) => hasAgreed(member.view()))) {
    if (performance.now() - since > AGREED_WITHIN_MS)
      throw new Error(`expected ${count} members to agree within ${AGREED_WITHIN_MS} ms`);
    await later(20);
  }
  const agreedMs = performance.now() - since;
  const syncs = () => members.reduce((sum, member) => sum + member.view().syncs, 0);
  const failures = () => members.reduce((sum, member) => sum + member.view().failures, 0);
  durations.length = 0;
  const start = [performance.now(), syncs(), cpuOf(server.pid), await scriptsOf(monitor)];
  const failed = failures();
  await later(SPAN_MS);
  const seconds = (performance.now() - start[0]) / 1000;
  const scripts = await scriptsOf(monitor);
  const figures = {
    count,
    agreedMs,
    syncs: (syncs() - start[1]) / seconds,
    cpu: (cpuOf(server.pid) - start[2]) / seconds,
    scriptUs: (scripts.us - start[3].us) / (scripts.calls - start[3].calls),
    syncMs: median(durations),
    failures: failures() - failed,
  };
  await Promise.all(members.map((member) => member.close()));
  for (const client of [...clients, monitor]) client.destroy();
  return figures;
}

/** Decisions per second of one limiter. */
function rate(api) {
  const BATCH = 4096;
  let done = 0;
  let allowed = 0;
  const start = performance.now();
  let now = start;
  while (now - start < ROUND_MS) {
    for (let n = 0; n < BATCH; n++) allowed += api.check('alice').verdict === 'allow' ? 1 : 0;
    done += BATCH;
    now = performance.now();
  }
  if (allowed === 0) throw new Error('expected allowed calls, got none');
  return done / ((now - start) / 1000);
}

/** The same limit without a pool and in a pool of three, alternating. */
async function compare(limit) {
  const store = memoryStore();
  const members = ['one', 'two', 'three'].map((id) =>
    pool(store, { id, memberTimeout: 1000, sync: 100 }),
  );
  const [member] = members;
  const limiters = { alone: limiter({ limit }), pooled: limiter({ limit, backend: member }) };
  while (member.view().size < 3 || member.view().rank < 0) await later(10);
  await later(1000); // a new size takes effect in the next second
  const rates = { alone: [], pooled: [] };
  for (const key of ['alone', 'pooled']) rate(limiters[key]); // warm up
  for (let round = 0; round < ROUNDS; round++) {
    for (const key of round % 2 ? ['pooled', 'alone'] : ['alone', 'pooled']) {
      rates[key].push(rate(limiters[key]));
      await later(30); // lets the members sync
    }
  }
  await Promise.all(members.map((one) => one.close()));
  const ratios = rates.pooled.map((pooled, round) => pooled / rates.alone[round]);
  return { alone: median(rates.alone), pooled: median(rates.pooled), ratio: median(ratios) };
}

/** Messages per second of a reader of batches that parses a small JSON document per message. */
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
    await new Promise(setImmediate); // the next batch comes from the event loop
    now = performance.now();
  }
  if (sum !== done) throw new Error(`expected ${done} messages, got ${sum}`);
  return done / ((now - start) / 1000);
}

/** A reader in a process without a pool, in a process with a pool, and with a limit of that pool. */
async function readers() {
  const rates = { none: [], pool: [], limit: [] };
  const store = memoryStore();
  await reading(); // warm up
  for (let round = 0; round < ROUNDS; round++) {
    rates.none.push(await reading());
    const member = pool(store, { id: `reader ${round}`, memberTimeout: 400, sync: 100 });
    rates.pool.push(await reading());
    const api = limiter({ limit: LIMITS.ramp, backend: member });
    while (member.view().rank < 0 || api.takeUpTo('', 1) === 0) await later(10);
    rates.limit.push(await reading(api));
    await member.close();
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
    'CPU per sync',
    'script time per sync',
    'sync latency',
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
  const { alone, pooled, ratio } = await compare(limit);
  decisions.push(row([name, millions(alone), millions(pooled), ratio.toFixed(2)]));
}
const read = await readers();
const text = `Members that sync every 100 ms with one Redis, each on its own connection, for ${SPAN_MS / 1000} s
(\`npm run bench:pool\`; ${machineLine()}). CPU is the total of Redis, network included; script time is
wall-clock time. All members are in one process on the same machine as Redis, so the sync latency is mostly
waiting for that process.

${table.join('\n')}

Decisions per second of one limit, alone and in a pool of three; medians of ${ROUNDS} rounds, and of their ratios.

${decisions.join('\n')}

A reader of batches of 500 small messages without a limit reads ${millions(read.none)}. In a process that is a member of a pool it
reads ${read.pool.toFixed(2)} times as many, and with a limit of that pool, checked once per batch, ${read.limit.toFixed(2)} times.`;
console.log(`\n${text}`);
if (!smoke) writeSection('Pools', text);
await server.stop();
process.exit(0);
