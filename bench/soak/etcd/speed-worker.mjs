/** One of several workers that ask etcd as fast as they can; the limit is wide enough for all of them. */

import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';
import { limiter } from 'sluice';
import { etcd } from 'sluice/etcd';

const { endpoints, keys, atOnce, lastsMs } = JSON.parse(process.argv[2]);
const REFUSED_MS = 10;
const limit = { bucket: { rate: 1e6, burst: 1e6 } };
const api = limiter({ name: 'speed', limit, backend: etcd({ endpoints }) });

process.on('disconnect', () => process.exit(1));
await api.check('first'); // the way is known before the race begins
process.send({ type: 'ready' });
await once(process, 'message');

const times = [];
const until = performance.now() + lastsMs;
async function ask() {
  while (performance.now() < until) {
    const since = performance.now();
    const { verdict } = await api.check(`key ${Math.floor(keys * Math.random())}`);
    if (verdict === 'allow') times.push(performance.now() - since);
    else await sleep(REFUSED_MS); // while nobody can decide, that is at once
  }
}
await Promise.all(Array.from({ length: atOnce }, ask));
const { fallback } = api.stats();
await api.close();
process.send({ type: 'over', times, fallback }, () => process.exit(0));
