/**
 * A process with one limiter: acts on commands of its parent, and writes what happens to its permits into a file.
 *
 *     node worker.mjs '{ file, limit, backend, … }'     settings as JSON, see `backends` and `connect` below
 *     { id, act, … } from the parent                    one of `commands`; the reply is { id, result }
 *
 * A line of the file is one event of one call, on the monotonic clock of the machine and on its wall clock, both in ms:
 *
 *     {"n":7,"type":"call",…}  {"n":7,"type":"grant","cost":2,"dueAt":…}  {"n":7,"type":"back","cost":1}
 *
 * The types: `call`, `grant` or `refuse`, `back` (given back), `settle`, `end` (the signal of the permit aborted).
 *
 * Lines are written synchronously, so a killed process loses none. After `close` nothing keeps the process alive but what
 * the limiter and its clients have left behind.
 */

import { lookup } from 'node:dns';
import { openSync, writeSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect as connectNats } from '@nats-io/transport-node';
import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { limiter, systemClock } from 'sluice';
import { etcdStore, pool, redisStore } from 'sluice/pool';
import { natsStore } from 'sluice/pool/nats';
import { redis } from 'sluice/redis';

const settings = JSON.parse(process.argv[2]);
const { file, limit, backend = 'local', options = {}, port, lookupMs = 0 } = settings;

const RETRY_MS = 50;
const KEY = 'key';

const records = openSync(file, 'a');
const record = (n, type, more = {}) => {
  const at = Number(process.hrtime.bigint()) / 1e6;
  writeSync(records, `${JSON.stringify({ n, type, at, wall: Date.now(), ...more })}\n`);
};

/** A DNS look-up that takes longer. */
const slowLookup = (name, how, done) => setTimeout(() => lookup(name, how, done), lookupMs);

const address =
  lookupMs > 0
    ? { host: 'localhost', port, lookup: slowLookup, family: 4 }
    : { host: '127.0.0.1', port };

async function connectIoRedis(more) {
  const client = new Redis({ ...address, lazyConnect: true, ...more });
  client.on('error', () => {});
  await client.connect();
  return { client, end: () => client.disconnect() };
}

/** The clients of Redis as docs/reference/redis.md sets them up; `ioredis-defaults` is ioredis as it comes. */
const connect = {
  async 'node-redis'() {
    const socket = { ...address, reconnectStrategy: RETRY_MS };
    const client = createClient({ socket, disableOfflineQueue: true });
    client.on('error', () => {});
    await client.connect();
    return { client, end: () => client.destroy() };
  },
  ioredis: () =>
    connectIoRedis({
      enableOfflineQueue: false,
      maxRetriesPerRequest: 1,
      retryStrategy: () => RETRY_MS,
    }),
  'ioredis-defaults': () => connectIoRedis({}),
};

const stores = {
  async redis() {
    const { client, end } = await connect['node-redis']();
    return { store: redisStore(client), end };
  },
  async nats() {
    const servers = `127.0.0.1:${port}`;
    const connection = await connectNats({
      servers,
      maxReconnectAttempts: -1,
      reconnectTimeWait: RETRY_MS,
    });
    return { store: natsStore(connection), end: () => connection.close() };
  },
  async etcd() {
    const store = etcdStore({ endpoints: [`http://127.0.0.1:${port}`] });
    return { store, end: () => store.close() };
  },
};

/** The backend of the limiter, and how to end its connection. */
const backends = {
  local: async () => ({}),
  async redis() {
    const { client, end } = await connect[settings.client]();
    return { backend: redis(client, options), end };
  },
  async pool() {
    const { store, end } = await stores[settings.store]();
    const membership = pool(store, options);
    membership.on(() => {}); // the parent causes the outages and reports them
    return { backend: membership, end };
  },
};

const made = await backends[backend]();
const api = limiter({ name: 'faults', limit, ...(made.backend && { backend: made.backend }) });

let calls = 0;
let isOver = false;
const held = new Map();

async function take({ max = Infinity }) {
  const n = calls++;
  record(n, 'call');
  const takenAt = systemClock.now();
  const cost = await api.takeUpTo(KEY, max);
  if (cost > 0) {
    record(n, 'grant', { cost });
    held.set(n, takenAt);
  } else record(n, 'refuse');
  return { n, cost };
}

async function decide(method, cost = 1) {
  const n = calls++;
  record(n, 'call');
  const result = await api[method](KEY, cost);
  const { verdict, dueAt, fencingToken } = result;
  if (verdict === 'allow') record(n, 'grant', { cost, dueAt, fencingToken });
  else record(n, 'refuse');
  if (result.settle) held.set(n, result);
  if (settings.hasSignals) result.signal?.addEventListener('abort', () => record(n, 'end'));
  return { n, verdict };
}

function settle({ n, outcome, cost = 1 }) {
  record(n, outcome === 'ignored' ? 'back' : 'settle', { cost });
  held.get(n).settle({ outcome });
  held.delete(n);
}

/** One caller: acquires, holds, settles, again and again. */
async function acquireInLoop({ method = 'acquire', holdMs = 0, pauseMs = 10 }) {
  while (!isOver) {
    const { n, verdict } = await decide(method);
    if (verdict === 'allow') {
      if (holdMs > 0) await sleep(holdMs);
      if (held.has(n)) settle({ n, outcome: 'ok' });
    }
    if (verdict !== 'allow' || method === 'check') await sleep(pauseMs);
  }
}

/** Takes all there is, every few milliseconds. */
async function takeInLoop({ everyMs }) {
  for (; !isOver; await sleep(everyMs)) await take({});
}

const commands = {
  take,
  decide: ({ method, cost }) => decide(method, cost),
  settle,
  async giveBack({ n, unused, isTimed }) {
    record(n, 'back', { cost: unused });
    await api.giveBack(KEY, unused, ...(isTimed ? [held.get(n)] : []));
  },
  loop: ({ callers, ...how }) => {
    for (let n = 0; n < callers; n++) {
      const holdMs = (how.holdMs ?? 0) * (0.6 + (0.8 * n) / callers); // not in step
      acquireInLoop({ ...how, holdMs });
    }
  },
  spend: (how) => {
    takeInLoop(how);
  },
  async close() {
    isOver = true;
    await api.close();
    await made.backend?.close?.();
    made.end?.();
    process.disconnect();
  },
};

process.on('message', async ({ id, act, ...more }) => {
  const result = await commands[act](more);
  if (process.connected) process.send({ id, result: result ?? {} });
});
process.on('disconnect', () => {
  if (!isOver) process.exit(1); // the parent is gone
});

if (!settings.isCold) await api.inspect(KEY); // the first call is over before the run starts
process.send({ id: 0, result: {} });
