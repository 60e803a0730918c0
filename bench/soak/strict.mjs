/** Strictness: eight workers with clocks ten seconds apart acquire permits as fast as they can. */

import { setTimeout as sleep } from 'node:timers/promises';
import { judge, startFleet } from './fleet.mjs';
import { delayingProxy, startRedis } from './server.mjs';

const CASES = [
  { every: 20, reserve: 0 },
  { every: 100, reserve: 0 },
  { every: 20, reserve: 16 },
  { every: 100, reserve: 16 },
  { every: 100, reserve: 0, farMs: 40 },
  { every: 100, reserve: 16, farMs: 40 },
  { every: 1000, reserve: 0, farMs: 40 },
];

const WORKERS = 8;

/** Fewer prove little: a loaded machine gets more time. */
const MIN_GRANTS = 40;

export async function strict({ isShort }) {
  const server = await startRedis();
  const results = [];
  try {
    for (const { every, reserve, farMs = 0 } of CASES.filter(
      (one) => !isShort || one.every === 20,
    )) {
      server.cli('FLUSHALL');
      server.cli('CONFIG', 'RESETSTAT');
      const limit = { spacing: { every, reserve } };
      const proxy =
        farMs > 0 ? await delayingProxy(server.port, farMs) : { port: server.port, end() {} };
      const options = farMs > 0 ? { deadline: 10 * farMs } : isShort ? { deadline: 1000 } : {};
      const lines = every > 100 ? 1 : 4;
      const fleet = await startFleet({ port: proxy.port, limit, workers: WORKERS, lines, options });
      await sleep(isShort ? 1500 : 12_000);
      for (let n = 0; n < 100 && fleet.grants.length < MIN_GRANTS; n++) await sleep(100);
      const totals = await fleet.stop();
      proxy.end();
      const judged = judge(fleet.grants, every);
      results.push({ every, reserve, farMs, ...judged, ...totals, calls: callsOf(server) });
    }
  } finally {
    await server.stop();
  }
  return results;
}

const callsOf = (server) =>
  Number(/cmdstat_evalsha:calls=(\d+)/.exec(server.cli('INFO', 'commandstats'))?.[1]);
