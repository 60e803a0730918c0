/**
 * One of several workers that share a spacing through etcd, on a clock that is wrong by up to an hour.
 *
 *     { limit, endpoints, skewMs, lines, deadlineMs }     as JSON in the first argument; `lines` loops wait for permits
 *     'stop' from the parent                              no new calls; exits when pending calls have ended
 *
 * One more loop checks every few milliseconds. For each permit it reports when it was granted (the limiter's last reading
 * of its clock) and when the caller received it; for each check how long it took, without stalls of this process. All
 * times are on the machine's monotonic clock, which is the same in all processes.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { limiter, systemClock } from 'sluice';
import { etcd } from 'sluice/etcd';
import { onStall } from '../stalls.mjs';

const { limit, endpoints, skewMs, lines, deadlineMs } = JSON.parse(process.argv[2]);

const CHECK_EVERY_MS = 25;
const MAX_WAIT_MS = 500;
/** Pause after a refusal: refusals during an outage are immediate. */
const RETRY_MS = 10;

/** The last time the limiter read its clock. */
let readAt = 0;

const skewedClock = {
  now: () => {
    readAt = machineNow();
    return systemClock.now() + skewMs;
  },
  wakeAt: (at, callback, keepAlive) => systemClock.wakeAt(at - skewMs, callback, keepAlive),
};
const machineNow = () => Number(process.hrtime.bigint()) / 1e6;

const backend = etcd({ endpoints, deadline: deadlineMs });
const api = limiter({ name: 'soak', limit, backend, clock: skewedClock });
let isOver = false;

const report = (message) => process.send?.(message);

let stalledMs = 0;
onStall(({ from, to }) => {
  stalledMs += to - from;
});

async function waitLoop() {
  while (!isOver) {
    const result = await api.acquire('token', 1, { wait: MAX_WAIT_MS });
    const start = { type: 'start', at: readAt, receivedAt: machineNow() };
    if (result.verdict === 'allow') {
      report(start);
      result.settle();
    } else await sleep(RETRY_MS);
  }
}

async function checkLoop() {
  while (!isOver) {
    const since = machineNow() - stalledMs;
    const { verdict } = await api.check('token');
    const start = { type: 'start', at: readAt, receivedAt: machineNow() };
    const at = start.receivedAt;
    if (verdict === 'allow') report(start);
    report({ type: 'check', at, ms: at - stalledMs - since, verdict });
    await sleep(CHECK_EVERY_MS * (0.5 + Math.random()));
  }
}

process.on('message', async () => {
  isOver = true;
  await running;
  await api.close();
  process.send({ type: 'over' }, () => process.exit(0));
});
process.on('disconnect', () => process.exit(1));

await api.inspect('token'); // connected before the run starts
report({ type: 'ready' });
const running = Promise.all([checkLoop(), ...Array.from({ length: lines }, waitLoop)]);
