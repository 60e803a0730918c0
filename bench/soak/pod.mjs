/**
 * One of many pods that divide a limit: takes all it can get, on a clock that is wrong, and tells its parent of it.
 *
 *     { id, port, limit, skewMs, options }     as JSON in the first argument
 *     'leave' from the parent                  leaves the pool and ends
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { createClient } from 'redis';
import { limiter, systemClock } from 'sluice';
import { pool, redisStore } from 'sluice/pool';

const { id, port, limit, skewMs, options } = JSON.parse(process.argv[2]);

const TAKE_EVERY_MS = 2;

const clock = {
  now: () => systemClock.now() + skewMs,
  wakeAt: (at, act, keepAlive) => systemClock.wakeAt(at - skewMs, act, keepAlive),
};

const client = createClient({
  socket: { port, host: '127.0.0.1', reconnectStrategy: 50 },
  disableOfflineQueue: true,
});
client.on('error', () => {});
client.connect().catch(() => {}); // it goes on trying
const place = pool(redisStore(client), { ...options, id, clock });
const own = limiter({ limit, share: place, clock });
let isOver = false;

process.on('message', async (word) => {
  if (word !== 'leave') return;
  isOver = true;
  await place.close();
  process.send({ type: 'left' }, () => process.exit(0));
});
process.on('disconnect', () => process.exit(1));

/** What was taken while the second changed counts for one of two, and nobody can tell which: it is told apart. */
function take() {
  const second = Math.floor(Date.now() / 1000);
  const taken = own.take('', Infinity);
  const isSure = Math.floor(Date.now() / 1000) === second;
  if (taken > 0) process.send({ type: 'taken', second, taken, isSure });
}

for (let size; !isOver; await sleep(TAKE_EVERY_MS)) {
  take();
  const view = place.view();
  if (view.size !== size) process.send({ type: 'size', size: view.size });
  size = view.size;
}
