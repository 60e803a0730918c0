/** One of several workers that check an etcd limit as fast as they can; the bucket never runs empty. */

import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { limiter } from 'sluice';
import { etcd } from 'sluice/etcd';

const { endpoints, keys, inFlight, durationMs } = JSON.parse(process.argv[2]);
const RETRY_MS = 10;
const limit = { bucket: { rate: 1e6, burst: 1e6 } };
const api = limiter({ name: 'speed', limit, backend: etcd({ endpoints }) });

process.on('disconnect', () => process.exit(1));
await api.check('first'); // connected before the run starts
process.send({ type: 'ready' });
await once(process, 'message');

const times = [];
const until = performance.now() + durationMs;
async function runLoop() {
  while (performance.now() < until) {
    const since = performance.now();
    const { verdict } = await api.check(`key ${Math.floor(keys * Math.random())}`);
    if (verdict === 'allow') times.push(performance.now() - since);
    else await sleep(RETRY_MS); // refusals during an outage are immediate
  }
}
await Promise.all(Array.from({ length: inFlight }, runLoop));
const { fallback } = api.stats();
await api.close();
process.send({ type: 'over', times, fallback }, () => process.exit(0));
