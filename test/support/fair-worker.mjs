/**
 * A process whose callers acquire in a loop from a limit in Redis, with a fair queue. When it is told to end, it prints each
 * permit's flow, due time and waiting time, and when the machine did not let the process run.
 *
 *     node fair-worker.mjs PORT '{"limit": {...}, "flows": [{"flow": "a", "callers": 4}]}'
 */

import { createClient } from 'redis';
import { limiter } from 'sluice';
import { redis } from 'sluice/redis';

const [port, text] = process.argv.slice(2);
const { limit, order, flows } = JSON.parse(text);
const client = createClient({ socket: { port: Number(port), host: '127.0.0.1' } });
client.on('error', () => {});
await client.connect();
const backend = redis(client, { fairQueue: true, deadline: '2s' });
const api = limiter({ name: 'api', limit, queue: { order }, backend });
await api.acquire('warm-up'); // subscribed from here on
process.stdout.write('ready\n');
await new Promise((go) => process.stdin.once('data', go));

/** Times in which a timer of 5 ms did not fire, on the wall clock, which is Redis's too. */
const stalls = [];
const wallClock = () => performance.timeOrigin + performance.now();
let lastBeatAt = wallClock();
setInterval(() => {
  const now = wallClock();
  if (now - lastBeatAt > 8) stalls.push([lastBeatAt, now]);
  lastBeatAt = now;
}, 5);

const permits = [];
let isOver = false;
const loop = async ({ callers: _, ...options }) => {
  while (!isOver) {
    const since = performance.now();
    const permit = await api.acquire('key', 1, options);
    if (permit.verdict !== 'allow') {
      if (permit.reason !== 'too-long') return;
      continue; // its `wait` has passed
    }
    permits.push([options.tenant ?? options.flow, permit.dueAt, performance.now() - since]);
    permit.settle();
  }
};
for (const flow of flows) for (let n = 0; n < flow.callers; n++) void loop(flow);

process.stdin.once('data', async () => {
  isOver = true;
  process.stdout.write(`${JSON.stringify({ permits, stalls })}\n`);
  await api.close();
  client.destroy();
  process.exit(0);
});
