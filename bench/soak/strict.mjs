/** Strictness: eight workers on clocks ten seconds apart ask for all they can get. */

import { setTimeout as sleep } from 'node:timers/promises';
import { judge, startFleet } from './fleet.mjs';
import { longWay, startRedis } from './server.mjs';

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
      const way = farMs > 0 ? await longWay(server.port, farMs) : { port: server.port, end() {} };
      const options = farMs > 0 ? { deadline: 10 * farMs } : {};
      const lines = every > 100 ? 1 : 4;
      const fleet = await startFleet({ port: way.port, limit, workers: WORKERS, lines, options });
      await sleep(isShort ? 1500 : 12_000);
      const end = await fleet.stop();
      way.end();
      const seen = judge(fleet.grants, every);
      results.push({ every, reserve, farMs, ...seen, ...end, calls: calls(server) });
    }
  } finally {
    await server.stop();
  }
  return results;
}

const calls = (server) =>
  Number(/cmdstat_evalsha:calls=(\d+)/.exec(server.cli('INFO', 'commandstats'))?.[1]);
