/**
 * One of many workers that share a limit through Redis: takes permits as fast as it gets them, on a
 * clock that is wrong, and tells its parent of every one.
 *
 *     { limit, port, client, skewMs, lines, work, options }     as JSON in the first argument
 *     'stop' from the parent                                    no new calls; says how many have no answer
 *
 * With `work: { port, longs }` each permit is held for a call to that port, the first `longs` lines for a long one.
 */

import { once } from 'node:events';
import { connect } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { limiter, systemClock } from 'sluice';
import { redis } from 'sluice/redis';

const { limit, port, client: kind, skewMs, lines, work, options } = JSON.parse(process.argv[2]);

/** How long those who still wait at the end are given. */
const ANSWERS_WITHIN_MS = 15_000;

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

const skewed = {
  now: () => systemClock.now() + skewMs,
  wakeAt: (at, act, keepAlive) => systemClock.wakeAt(at - skewMs, act, keepAlive),
};

const client = await connected();
const api = limiter({ name: 'soak', limit, backend: redis(client, options), clock: skewed });
let isOver = false;
let asked = 0;
let answered = 0;

const tell = (news) => process.send?.({ ...news, at: systemClock.now() });

api.on((event) => {
  const { type, isAvailable } = event;
  if (type === 'availability') tell({ type, isAvailable });
});

/** What a permit is for: a call that takes as long as the other side likes. */
async function call(isLong) {
  const socket = connect(work.port, '127.0.0.1');
  socket.on('error', () => {}).resume();
  socket.write(isLong ? 'long' : 'short');
  await once(socket, 'close');
}

async function line(n) {
  while (!isOver) {
    asked++;
    const entry = await api.acquire('token');
    answered++;
    if (entry.verdict === 'allow') {
      tell({ type: 'grant', dueAt: entry.dueAt, waitedMs: entry.waitedMs });
      if (work) await call(n < work.longs);
      entry.settle();
    } else {
      tell({ type: 'refused' });
      await sleep(10);
    }
  }
}

process.on('message', async (word) => {
  if (word !== 'stop') return;
  isOver = true;
  await Promise.race([running, sleep(ANSWERS_WITHIN_MS)]);
  const { fallback } = api.stats();
  process.send({ type: 'over', asked, lost: asked - answered, fallback }, () => process.exit(0));
});
process.on('disconnect', () => process.exit(1));

await api.inspect('token'); // the way is known before the race begins
tell({ type: 'ready' });
const running = Promise.all(Array.from({ length: lines }, (_, n) => line(n)));
