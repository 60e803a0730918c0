/** One of several workers that ask etcd as fast as they can; the limit is wide enough for all of them. */

import { once } from 'node:events';
import { limiter } from 'sluice';
import { etcd } from 'sluice/etcd';

const { endpoints, keys, atOnce, lastsMs } = JSON.parse(process.argv[2]);
const limit = { bucket: { rate: 1e6, burst: 1e6 } };
const api = limiter({ name: 'speed', limit, share: etcd({ endpoints }) });

process.on('disconnect', () => process.exit(1));
await api.ask('first'); // the way is known before the race begins
process.send({ type: 'ready' });
await once(process, 'message');

const times = [];
const until = performance.now() + lastsMs;
async function ask(n) {
  for (let at = n; performance.now() < until; at += atOnce) {
    const since = performance.now();
    await api.ask(`key ${at % keys}`);
    times.push(performance.now() - since);
  }
}
await Promise.all(Array.from({ length: atOnce }, (_, n) => ask(n)));
const { makeshift } = api.stats();
await api.close();
process.send({ type: 'over', times, makeshift }, () => process.exit(0));
