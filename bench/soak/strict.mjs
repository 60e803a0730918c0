/** Strictness: eight workers on clocks ten seconds apart ask for all they can get. */

import { setTimeout as sleep } from 'node:timers/promises';
import { judge, startFleet } from './fleet.mjs';
import { startRedis } from './server.mjs';

const CASES = [
  { every: 20, reserve: 0 },
  { every: 100, reserve: 0 },
  { every: 20, reserve: 16 },
  { every: 100, reserve: 16 },
];

const WORKERS = 8;

export async function strict({ isShort }) {
  const server = await startRedis();
  const results = [];
  try {
    for (const { every, reserve } of CASES.filter((one) => !isShort || one.every === 20)) {
      server.cli('FLUSHALL');
      server.cli('CONFIG', 'RESETSTAT');
      const limit = { spacing: { every, reserve } };
      const fleet = await startFleet({ port: server.port, limit, workers: WORKERS });
      await sleep(isShort ? 1500 : 20_000);
      const end = await fleet.stop();
      results.push({ every, reserve, ...judge(fleet.grants, every), ...end, calls: calls(server) });
    }
  } finally {
    await server.stop();
  }
  return results;
}

const calls = (server) =>
  Number(/cmdstat_evalsha:calls=(\d+)/.exec(server.cli('INFO', 'commandstats'))?.[1]);
