/**
 * What can go wrong with a Redis and with those who use it, done to real processes.
 *
 * In each story a fleet takes permits of a spacing all the time; something happens, several times; then it
 * is over when the last permits are in. Told are grants closer than they may be, calls that never got an
 * answer, the longest time nobody got a permit, and how soon everybody was decided by Redis again.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { judge, now, startFleet } from './fleet.mjs';
import { startRedis } from './server.mjs';

const CALM_MS = 1000;

/** Something happens to a stage; what it gives is when Redis could answer again. */
const restart = async ({ server }) => {
  await server.kill();
  await server.restart();
  return now();
};

const stop = async ({ server, isShort }) => {
  server.pause();
  await sleep(isShort ? 1000 : 3000);
  server.resume();
  return now();
};

const command =
  (...words) =>
  async ({ server }) => {
    const before = now();
    server.cli(...words);
    return before;
  };

const killWorkers = async ({ fleet }, turn) => {
  const before = now();
  await fleet.kill(turn);
  return before;
};

const AOF = ['--appendonly', 'yes'];

/**
 * `forgets` is how many places Redis may forget each time: it cannot keep others away from those. That is
 * the last one used, and those reserved; a line has the next one reserved a moment before it opens.
 */
const STORIES = [
  { name: 'kill -9, start again, appendonly', act: restart, args: AOF, every: 400, isQuick: true },
  { name: 'kill -9, start again, appendonly', act: restart, args: AOF, every: 20 },
  { name: 'kill -9, start again, appendonly', act: restart, args: AOF, every: 400, reserve: 4 },
  {
    name: 'kill -9, start again, nothing kept',
    act: restart,
    every: 400,
    forgets: 2,
    isQuick: true,
  },
  { name: 'kill -9, start again, nothing kept', act: restart, every: 400, reserve: 4, forgets: 5 },
  { name: 'SIGSTOP for 3 s', act: stop, every: 20 },
  { name: 'SIGSTOP for 3 s', act: stop, every: 20, reserve: 16, isQuick: true },
  { name: 'FLUSHALL', act: command('FLUSHALL'), every: 100, forgets: 2, isQuick: true },
  { name: 'FLUSHALL', act: command('FLUSHALL'), every: 100, reserve: 4, forgets: 5 },
  { name: 'SCRIPT FLUSH', act: command('SCRIPT', 'FLUSH'), every: 20, isQuick: true },
  { name: 'kill -9 of a worker', act: killWorkers, every: 20 },
  { name: 'kill -9 of a worker', act: killWorkers, every: 20, reserve: 16, isQuick: true },
];

export async function chaos({ isShort }) {
  const results = [];
  for (const story of STORIES.filter(({ isQuick }) => isQuick || !isShort)) {
    results.push({ name: story.name, ...(await play(story, isShort)) });
  }
  return results;
}

async function play({ act, args = [], every, reserve = 0, forgets = 0 }, isShort) {
  const [workers, times, calmMs] = isShort ? [4, 1, CALM_MS / 2] : [8, 5, CALM_MS];
  const server = await startRedis(...args);
  try {
    const limit = { spacing: { every, reserve } };
    const lines = every > 100 ? 1 : 4; // those who wait at the end are all served
    const fleet = await startFleet({ port: server.port, limit, workers, lines });
    const backs = [];
    await sleep(calmMs);
    for (let turn = 0; turn < times; turn++) {
      backs.push(await act({ server, fleet, isShort }, turn));
      await sleep(calmMs);
    }
    const end = await fleet.stop();
    const seen = judge(fleet.grants, every);
    return {
      every,
      reserve,
      times,
      mayExtra: forgets * times,
      ...seen,
      ...end,
      ...after(fleet, backs),
    };
  } finally {
    await server.stop();
  }
}

/** From the instant Redis could answer to the next permit, and until nobody did without it. */
function after({ grants, changes }, backs) {
  const nextGrants = backs.map((back) => {
    const next = grants.map(({ at }) => at).filter((at) => at >= back);
    return Math.min(...next) - back;
  });
  const lastChanges = backs.map((back, n) => {
    const until = backs[n + 1] ?? Infinity;
    const own = changes.filter(({ at, isAvailable }) => isAvailable && at >= back && at < until);
    return Math.max(0, ...own.map(({ at }) => at - back));
  });
  return { nextGrantMs: Math.max(...nextGrants), strictAfterMs: Math.max(...lastChanges) };
}
