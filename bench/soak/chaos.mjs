/**
 * Faults of Redis and of its users, injected into real processes.
 *
 * In each scenario a fleet acquires permits of a spacing all the time, and a fault happens several times. Counted are
 * permits closer than `every`, calls without an answer, the longest gap, and how soon Redis was available to all again.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { judge, now, startFleet } from './fleet.mjs';
import { startRedis } from './server.mjs';

const CALM_MS = 1000;

/** Each fault returns when Redis could answer again. */
const restart = async ({ server }) => {
  await server.kill();
  await server.restart();
  return now();
};

const pause = async ({ server, isShort }) => {
  server.pause();
  await sleep(isShort ? 1000 : 3000);
  server.resume();
  return now();
};

const command =
  (...args) =>
  async ({ server }) => {
    const before = now();
    server.cli(...args);
    return before;
  };

const killWorkers = async ({ fleet }, round) => {
  const before = now();
  await fleet.kill(round);
  return before;
};

const AOF = ['--appendonly', 'yes'];

/**
 * `forgets` is how many permits Redis may lose each time, and so grant again: the last one used and those reserved. A
 * queue has the next permit reserved a little before it is due.
 */
const SCENARIOS = [
  { name: 'kill -9 and restart, appendonly', act: restart, args: AOF, every: 400, isQuick: true },
  { name: 'kill -9 and restart, appendonly', act: restart, args: AOF, every: 20 },
  { name: 'kill -9 and restart, appendonly', act: restart, args: AOF, every: 400, reserve: 4 },
  {
    name: 'kill -9 and restart, no persistence',
    act: restart,
    every: 400,
    forgets: 2,
    isQuick: true,
  },
  { name: 'kill -9 and restart, no persistence', act: restart, every: 400, reserve: 4, forgets: 5 },
  { name: 'SIGSTOP for 3 s', act: pause, every: 20 },
  { name: 'SIGSTOP for 3 s', act: pause, every: 20, reserve: 16, isQuick: true },
  { name: 'FLUSHALL', act: command('FLUSHALL'), every: 100, forgets: 2, isQuick: true },
  { name: 'FLUSHALL', act: command('FLUSHALL'), every: 100, reserve: 4, forgets: 5 },
  { name: 'SCRIPT FLUSH', act: command('SCRIPT', 'FLUSH'), every: 20, isQuick: true },
  { name: 'kill -9 of a worker', act: killWorkers, every: 20 },
  { name: 'kill -9 of a worker', act: killWorkers, every: 20, reserve: 16, isQuick: true },
];

export async function chaos({ isShort }) {
  const results = [];
  for (const scenario of SCENARIOS.filter(({ isQuick }) => isQuick || !isShort)) {
    results.push({ name: scenario.name, ...(await run(scenario, isShort)) });
  }
  return results;
}

async function run({ act, args = [], every, reserve = 0, forgets = 0 }, isShort) {
  const [workers, times, calmMs] = isShort ? [4, 1, CALM_MS / 2] : [8, 5, CALM_MS];
  const server = await startRedis(...args);
  try {
    const limit = { spacing: { every, reserve } };
    const lines = every > 100 ? 1 : 4; // all remaining waiters are served at the end
    const fleet = await startFleet({ port: server.port, limit, workers, lines });
    const recoveries = [];
    await sleep(calmMs);
    for (let round = 0; round < times; round++) {
      recoveries.push(await act({ server, fleet, isShort }, round));
      await sleep(calmMs);
    }
    const totals = await fleet.stop();
    const judged = judge(fleet.grants, every);
    return {
      every,
      reserve,
      times,
      maxExtra: forgets * times,
      ...judged,
      ...totals,
      ...recoveryOf(fleet, recoveries),
    };
  } finally {
    await server.stop();
  }
}

/** From the instant Redis could answer: until the next permit, and until it was available to every worker. */
function recoveryOf({ grants, changes }, recoveries) {
  const nextGrants = recoveries.map((since) => {
    const next = grants.map(({ at }) => at).filter((at) => at >= since);
    return Math.min(...next) - since;
  });
  const lastChanges = recoveries.map((since, n) => {
    const until = recoveries[n + 1] ?? Infinity;
    const seen = changes.filter(({ at, isAvailable }) => isAvailable && at >= since && at < until);
    return Math.max(0, ...seen.map(({ at }) => at - since));
  });
  return { nextGrantMs: Math.max(...nextGrants), strictAfterMs: Math.max(...lastChanges) };
}
