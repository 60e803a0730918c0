/**
 * One of many workers that share a limit through Redis: acquires permits as fast as it can, on a skewed clock, and reports
 * each to its parent.
 *
 *     { limit, port, client, skewMs, lines, work, options }     as JSON in the first argument; `lines` loops run at once
 *     'stop' from the parent                                    no new calls; reports how many had no answer
 *
 * With `work: { port, longs }` each permit is held for a call to that port, in the first `longs` loops for a long one.
 */

import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { limiter, systemClock } from 'sluice';
import { redis } from 'sluice/redis';

const { limit, port, client: kind, skewMs, lines, work, options } = JSON.parse(process.argv[2]);

/** How long remaining waiters are given at the end. */
const DRAIN_MS = 15_000;

async function connected() {
  if (kind === 'ioredis') {
    const client = new Redis(port, '127.0.0.1', {
      retryStrategy: () => 50,
      maxRetriesPerRequest: 1,
      enableOfflineQueue: false,
      lazyConnect: true,
    });
    client.on('error', () => {});
    await client.connect();
    return client;
  }
  const client = createClient({
    socket: { port, host: '127.0.0.1', reconnectStrategy: 50 },
    disableOfflineQueue: true,
  });
  client.on('error', () => {});
  await client.connect();
  return client;
}

const skewedClock = {
  now: () => systemClock.now() + skewMs,
  wakeAt: (at, callback, keepAlive) => systemClock.wakeAt(at - skewMs, callback, keepAlive),
};

const client = await connected();
const api = limiter({ name: 'soak', limit, backend: redis(client, options), clock: skewedClock });
let isOver = false;
let asked = 0;
let answered = 0;

const report = (message) => process.send?.({ ...message, at: systemClock.now() });

api.on((event) => {
  const { type, isAvailable } = event;
  if (type === 'availability') report({ type, isAvailable });
});

/** The call that a permit is for; the server decides how long it takes. */
async function call(isLong) {
  const socket = connect(work.port, '127.0.0.1');
  socket.on('error', () => {}).resume();
  socket.write(isLong ? 'long' : 'short');
  await once(socket, 'close');
}

async function runLoop(n) {
  while (!isOver) {
    asked++;
    const result = await api.acquire('token');
    answered++;
    if (result.verdict === 'allow') {
      report({ type: 'grant', dueAt: result.dueAt, waitedMs: result.waitedMs });
      if (work) await call(n < work.longs);
      result.settle();
    } else {
      report({ type: 'refused' });
      await sleep(10);
    }
  }
}

process.on('message', async (command) => {
  if (command !== 'stop') return;
  isOver = true;
  await Promise.race([running, sleep(DRAIN_MS)]);
  const { fallback } = api.stats();
  process.send({ type: 'over', asked, lost: asked - answered, fallback }, () => process.exit(0));
});
process.on('disconnect', () => process.exit(1));

await api.inspect('token'); // connected before the run starts
report({ type: 'ready' });
const running = Promise.all(Array.from({ length: lines }, (_, n) => runLoop(n)));
