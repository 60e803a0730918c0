/**
 * One of many pods that divide a limit: takes all it can get, on a clock that is wrong, and tells its parent of it.
 *
 *     { store, id, port, limit, skewMs, options }     as JSON in the first argument
 *     'leave' from the parent                         leaves the pool and ends
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { limiter, systemClock } from 'sluice';
import { pool } from 'sluice/pool';
import { STORES } from './pool-stores.mjs';

const { store, id, port, limit, skewMs, options } = JSON.parse(process.argv[2]);

const TAKE_EVERY_MS = 2;

const clock = {
  now: () => systemClock.now() + skewMs,
  wakeAt: (at, act, keepAlive) => systemClock.wakeAt(at - skewMs, act, keepAlive),
};

const place = pool(await STORES[store].reach(port), { ...options, id, clock });
place.on(() => {}); // outages are told by the parent, who made them
const own = limiter({ limit, backend: place, clock });
let isOver = false;

process.on('message', async (word) => {
  if (word !== 'leave') return;
  isOver = true;
  await place.close();
  process.send({ type: 'left' }, () => process.exit(0));
});
process.on('disconnect', () => process.exit(1));

/** What was taken while one second became another counts for one of them, and nobody can tell which: both are told. */
function take() {
  const from = Math.floor(Date.now() / 1000);
  const taken = own.takeUpTo('', Infinity);
  const to = Math.floor(Date.now() / 1000);
  if (taken > 0) process.send({ type: 'taken', from, to, taken });
}

/** Tells what part it has, and when it last asked a store that answered, on this machine's clock. */
let told;
function tellPart() {
  const { size, rank, syncs, ageMs } = place.view();
  const news = `${size} ${rank} ${syncs}`;
  if (news !== told) process.send({ type: 'part', size, rank, heardAt: Date.now() - ageMs });
  told = news;
}

for (; !isOver; await sleep(TAKE_EVERY_MS)) {
  take();
  tellPart();
}
