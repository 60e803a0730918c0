/**
 * One of several workers that share a spacing through etcd, on a clock that is wrong by up to an hour.
 *
 *     { limit, endpoints, skewMs, lines, deadlineMs }     as JSON in the first argument
 *     'stop' from the parent                              no new calls; it ends when those under way have ended
 *
 * Some of its callers wait for permits, one asks every few milliseconds. Of each permit it tells when it was handed out, which is
 * when the limiter looked at its clock last, and when the caller had it; of each ask how long it took. All on the machine's
 * monotonic clock, which is the same in all processes.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { limiter, systemClock } from 'sluice';
import { etcd } from 'sluice/etcd';

const { limit, endpoints, skewMs, lines, deadlineMs } = JSON.parse(process.argv[2]);

const ASK_EVERY_MS = 25;
const PATIENCE_MS = 500;
/** Who is refused lets others do something: while nobody can decide, that is at once. */
const REFUSED_MS = 10;

/** When the limiter looked at its clock last. */
let lookedAt = 0;

const skewed = {
  now: () => {
    lookedAt = machineNow();
    return systemClock.now() + skewMs;
  },
  wakeAt: (at, act, keepAlive) => systemClock.wakeAt(at - skewMs, act, keepAlive),
};
const machineNow = () => Number(process.hrtime.bigint()) / 1e6;

const backend = etcd({ endpoints, deadline: deadlineMs });
const api = limiter({ name: 'soak', limit, backend, clock: skewed });
let isOver = false;

const tell = (news) => process.send?.(news);

async function line() {
  while (!isOver) {
    const entry = await api.acquire('token', 1, { wait: PATIENCE_MS });
    const start = { type: 'start', at: lookedAt, hadAt: machineNow() };
    if (entry.verdict === 'allow') {
      tell(start);
      entry.settle();
    } else await sleep(REFUSED_MS);
  }
}

async function asker() {
  while (!isOver) {
    const since = machineNow();
    const { verdict } = await api.check('token');
    const start = { type: 'start', at: lookedAt, hadAt: machineNow() };
    const at = start.hadAt;
    if (verdict === 'allow') tell(start);
    tell({ type: 'ask', at, ms: at - since, verdict });
    await sleep(ASK_EVERY_MS * (0.5 + Math.random()));
  }
}

process.on('message', async () => {
  isOver = true;
  await running;
  await api.close();
  process.send({ type: 'over' }, () => process.exit(0));
});
process.on('disconnect', () => process.exit(1));

await api.inspect('token'); // the way is known before the race begins
tell({ type: 'ready' });
const running = Promise.all([asker(), ...Array.from({ length: lines }, line)]);
