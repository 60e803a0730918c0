/**
 * A member of a pool: takes all units it can get, with a skewed clock, and reports them to its parent.
 *
 *     { store, id, port, limit, skewMs, options }     as JSON in the first argument
 *     'leave' from the parent                         leaves the pool and exits
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

const membership = pool(await STORES[store].reach(port), { ...options, id, clock });
membership.on(() => {}); // the parent causes the outages and reports them
const quota = limiter({ limit, backend: membership, clock });
let isOver = false;

process.on('message', async (command) => {
  if (command !== 'leave') return;
  isOver = true;
  await membership.close();
  process.send({ type: 'left' }, () => process.exit(0));
});
process.on('disconnect', () => process.exit(1));

/** Units taken across the border of a second belong to either one, so both are reported. */
function take() {
  const from = Math.floor(Date.now() / 1000);
  const taken = quota.takeUpTo('', Infinity);
  const to = Math.floor(Date.now() / 1000);
  if (taken > 0) process.send({ type: 'taken', from, to, taken });
}

/** Reports its position in the pool, and the time of the last successful sync on this machine's clock. */
let reported;
function reportPart() {
  const { size, rank, syncs, ageMs } = membership.view();
  const part = `${size} ${rank} ${syncs}`;
  if (part !== reported) process.send({ type: 'part', size, rank, syncedAt: Date.now() - ageMs });
  reported = part;
}

for (; !isOver; await sleep(TAKE_EVERY_MS)) {
  take();
  reportPart();
}
