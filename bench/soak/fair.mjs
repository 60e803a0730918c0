/** Fair queue: order of service, use of the rate and calls per permit, for waiters in eight limiters with one connection each. */

import { createClient } from 'redis';
import { limiter } from 'sluice';
import { redis } from 'sluice/redis';
import { delayingProxy, startRedis } from './server.mjs';

const LIMITERS = 8;

/** Spacings, on loopback or with a delay in each direction. */
const CASES = [
  { every: 10, waiters: 400 },
  { every: 20, waiters: 400 },
  { every: 100, waiters: 200 },
  { every: 20, waiters: 400, farMs: 40 },
  { every: 100, waiters: 200, farMs: 40 },
];

const SHORT_CASES = [{ every: 25, waiters: 40 }];

export async function fair({ isShort }) {
  const results = [];
  for (const each of isShort ? SHORT_CASES : CASES) results.push(await run(each));
  return results;
}

async function run({ every, waiters, farMs = 0 }) {
  const server = await startRedis();
  const proxy = await delayingProxy(server.port, farMs);
  const port = farMs > 0 ? proxy.port : server.port;
  const clients = [];
  const apis = [];
  for (let n = 0; n < LIMITERS; n++) {
    const client = createClient({ socket: { port, host: '127.0.0.1' } });
    client.on('error', () => {});
    clients.push(await client.connect());
    const backend = redis(client, { fairQueue: true, deadline: 100 + 10 * farMs });
    apis.push(limiter({ name: 'fair', limit: { spacing: { every } }, backend }));
  }
  const calls = () => {
    const stats = server.cli('INFO', 'commandstats');
    return Number(/cmdstat_evalsha:calls=(\d+)/.exec(stats)?.[1] ?? 0);
  };
  try {
    for (const api of apis) await api.acquire('token'); // all are subscribed from here on
    const before = calls();
    const permits = [];
    const waiting = [];
    for (let n = 0; n < waiters; n++) {
      const api = apis[n % LIMITERS];
      waiting.push(api.acquire('token').then(({ dueAt }) => permits.push({ n, dueAt })));
      // A barrier: earlier commands have arrived. Far away, waiters of one limiter join together, in order.
      if (farMs === 0 || n % LIMITERS === LIMITERS - 1) await clients[n % LIMITERS].ping();
    }
    await Promise.all(waiting);
    permits.sort((a, b) => a.dueAt - b.dueAt);
    const gaps = permits.slice(1).map(({ dueAt }, n) => dueAt - permits[n].dueAt);
    // The order of joining is known only as far as a barrier separates two waiters.
    const known = farMs === 0 ? 1 : LIMITERS;
    const outOfOrder = permits.filter(
      ({ n }, place) => Math.floor(n / known) !== Math.floor(place / known),
    );
    return {
      waiters,
      every,
      farMs,
      limiters: LIMITERS,
      outOfOrder: outOfOrder.length,
      tooClose: gaps.filter((gap) => gap < every - 1e-3).length,
      utilisation: ((waiters - 1) * every) / (permits.at(-1).dueAt - permits[0].dueAt),
      callsPerPermit: (calls() - before) / waiters,
    };
  } finally {
    for (const api of apis) await api.close();
    for (const client of clients) client.destroy();
    proxy.end();
    await server.stop();
  }
}
