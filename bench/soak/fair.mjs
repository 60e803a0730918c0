/** Fair queue: order of service and calls per permit, for two hundred waiters in eight limiters with one connection each. */

import { createClient } from 'redis';
import { limiter } from 'sluice';
import { redis } from 'sluice/redis';
import { startRedis } from './server.mjs';

const LIMITERS = 8;

export async function fair({ isShort }) {
  const [waiters, every] = isShort ? [40, 25] : [200, 100];
  const server = await startRedis();
  const clients = [];
  const apis = [];
  for (let n = 0; n < LIMITERS; n++) {
    const client = createClient({ socket: { port: server.port, host: '127.0.0.1' } });
    client.on('error', () => {});
    clients.push(await client.connect());
    const backend = redis(client, { fairQueue: true });
    apis.push(limiter({ name: 'fair', limit: { spacing: { every } }, backend }));
  }
  const calls = () => {
    const stats = server.cli('INFO', 'commandstats');
    return Number(/cmdstat_evalsha:calls=(\d+)/.exec(stats)?.[1] ?? 0);
  };
  try {
    for (const api of apis) await api.acquire('token'); // all are subscribed from here on
    const before = calls();
    const order = [];
    const due = [];
    const waiting = [];
    for (let n = 0; n < waiters; n++) {
      const api = apis[n % LIMITERS];
      waiting.push(
        api.acquire('token').then(({ dueAt }) => {
          order.push(n);
          due.push(dueAt);
        }),
      );
      await clients[n % LIMITERS].ping(); // a barrier: earlier commands have arrived
    }
    await Promise.all(waiting);
    const gaps = due.slice(1).map((at, n) => at - due[n]);
    return [
      {
        waiters,
        every,
        limiters: LIMITERS,
        outOfOrder: order.filter((n, position) => n !== position).length,
        tooClose: gaps.filter((gap) => gap < every - 1e-6).length,
        utilisation: ((waiters - 1) * every) / (due.at(-1) - due[0]),
        callsPerPermit: (calls() - before) / waiters,
      },
    ];
  } finally {
    for (const api of apis) await api.close();
    for (const client of clients) client.destroy();
    await server.stop();
  }
}
