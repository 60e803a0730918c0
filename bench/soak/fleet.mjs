/** Many workers on one limit, and what came out of it: grants on Redis's clock, gaps, stalls. */

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { systemClock } from 'sluice';

const WORKER = fileURLToPath(new URL('./worker.mjs', import.meta.url));

/** Times far from zero are rounded to less than a thousandth of a millisecond. */
const DUST_MS = 0.001;

/** Clocks are wrong by up to so much, evenly spread over the workers. */
const SKEW_MS = 5000;

export const now = () => systemClock.now();

/** Starts workers, half of them on each client, and waits until all of them are at it. */
export async function startFleet({ port, limit, workers, lines = 4, work, options = {} }) {
  const grants = [];
  const changes = [];
  const ends = [];
  const members = Array.from({ length: workers }, (_, n) => {
    const skewMs = workers === 1 ? 0 : -SKEW_MS + (2 * SKEW_MS * n) / (workers - 1);
    const client = n % 2 ? 'ioredis' : 'node-redis';
    const own = JSON.stringify({ limit, port, client, skewMs, lines, work, options });
    const child = fork(WORKER, [own]);
    child.on('message', (news) => {
      if (news.type === 'grant') grants.push({ ...news, worker: n });
      if (news.type === 'availability') changes.push({ ...news, worker: n });
      if (news.type === 'over') ends.push(news);
    });
    return child;
  });
  await Promise.all(members.map((child) => once(child, 'message')));
  return {
    grants,
    changes,
    members,
    /** As a crash would. */
    async kill(n) {
      const gone = once(members[n], 'exit');
      members[n].kill('SIGKILL');
      await gone;
    },
    async stop() {
      const left = members.filter((child) => child.exitCode === null && child.signalCode === null);
      const gone = left.map((child) => once(child, 'exit'));
      for (const child of left) child.send('stop');
      await Promise.all(gone);
      return {
        asked: sum(ends.map(({ asked }) => asked)),
        lost: sum(ends.map(({ lost }) => lost)) + left.length - ends.length,
        fallback: sum(ends.map(({ fallback }) => fallback)),
      };
    },
  };
}

const sum = (values) => values.reduce((all, value) => all + value, 0);

/** What the grants of a fleet say about a spacing. */
export function judge(grants, everyMs) {
  const times = grants.map(({ dueAt }) => dueAt).toSorted((a, b) => a - b);
  const gaps = times.slice(1).map((at, n) => ({ at, ms: at - times[n] }));
  const spanMs = times.at(-1) - times[0];
  const byWorker = countBy(grants);
  return {
    grants: grants.length,
    tooClose: gaps.filter(({ ms }) => ms < everyMs - DUST_MS).length,
    extra: extraOf(times, everyMs),
    leastGapMs: Math.min(...gaps.map(({ ms }) => ms)),
    longestGapMs: Math.max(...gaps.map(({ ms }) => ms)),
    utilisation: (gaps.length * everyMs) / spanMs,
    /** (Σx)² / (nΣx²): 1 if every worker got as many as every other. */
    fairness: sum(byWorker) ** 2 / (byWorker.length * sum(byWorker.map((x) => x * x))),
    /** From the instant a permit was good to the instant the worker had it. */
    lateMs: quantiles(grants.map(({ at, dueAt }) => at - dueAt)),
  };
}

/** How many more there are, in whatever stretch of time has most too many, than fit in it. */
function extraOf(times, everyMs) {
  let most = 0;
  for (let from = 0; from < times.length; from++) {
    for (let to = from + 1; to < times.length; to++) {
      const fit = Math.floor((times[to] - times[from] + DUST_MS) / everyMs) + 1;
      most = Math.max(most, to - from + 1 - fit);
    }
  }
  return most;
}

const countBy = (grants) => {
  const counts = new Map();
  for (const { worker } of grants) counts.set(worker, (counts.get(worker) ?? 0) + 1);
  return [...counts.values()];
};

function quantiles(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (part) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))];
  return { p50: at(0.5), p99: at(0.99), max: sorted.at(-1) };
}
