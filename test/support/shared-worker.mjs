/**
 * A process that calls a bucket, a window and a concurrency limit in Redis until it is told to end. It then prints how many
 * calls of each key passed, when each permit was held on the monotonic clock of the machine, and what the fallback decided.
 *
 *     node shared-worker.mjs PORT '{"limits": {"bucket": {...}, "window": {...}, "concurrency": 5}}'
 */

import { createClient } from 'redis';
import { limiter } from 'sluice';
import { redis } from 'sluice/redis';

const [port, text] = process.argv.slice(2);
const { limits, options } = JSON.parse(text);
const client = createClient({ socket: { port: Number(port), host: '127.0.0.1' } });
client.on('error', () => {});
await client.connect();
const outages = [];
const create = (name) => {
  const backend = redis(client, { onUnavailable: 'local', ...options });
  const api = limiter({ name, limit: { [name]: limits[name] }, backend });
  api.on((event) => {
    if (event.type === 'availability' && !event.isAvailable)
      outages.push(`${name}: ${event.reason}`);
  });
  return api;
};
const [bucket, window, concurrency] = ['bucket', 'window', 'concurrency'].map(create);
process.stdout.write('ready\n');
await new Promise((go) => process.stdin.once('data', go));

const pause = (ms) => new Promise((later) => setTimeout(later, ms));
const machineMs = () => Number(process.hrtime.bigint()) / 1e6;
const passed = { bucket: {}, window: {} };
const held = [];
let isOver = false;
let longestMs = 0;
const timed = async (call) => {
  const since = performance.now();
  const result = await call;
  longestMs = Math.max(longestMs, performance.now() - since);
  return result;
};
const count = async (name, api) => {
  while (!isOver) {
    const key = `k${Math.floor(Date.now() / 500)}`;
    if ((await timed(api.check(key))).verdict === 'allow')
      passed[name][key] = (passed[name][key] ?? 0) + 1;
    await pause(5);
  }
};
const hold = async () => {
  while (!isOver) {
    const permit = await timed(concurrency.tryAcquire('sink'));
    if (permit.verdict === 'allow') {
      const from = machineMs();
      await pause(20);
      held.push([from, machineMs()]);
      permit.settle();
    }
    await pause(5);
  }
};
const loops = Array.from({ length: 4 }, () => [
  count('bucket', bucket),
  count('window', window),
  hold(),
]);

process.stdin.once('data', async () => {
  isOver = true;
  await Promise.all(loops.flat());
  const fallback = [bucket, window, concurrency].map((api) => api.stats().fallback);
  process.stdout.write(`${JSON.stringify({ passed, held, outages, fallback, longestMs })}\n`);
  for (const api of [bucket, window, concurrency]) await api.close();
  client.destroy();
});
