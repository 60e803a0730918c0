/** Worker processes that share one spacing limit over Redis, and figures of their grants on Redis's clock. */

import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { systemClock } from 'sluice';

const WORKER = fileURLToPath(new URL('./worker.mjs', import.meta.url));

/** Rounding error of large timestamps. */
const EPSILON_MS = 0.001;

/** Clock skew: spread evenly over the workers, up to this much in either direction. */
const SKEW_MS = 5000;

export const now = () => systemClock.now();

/** Starts workers, alternating between the two Redis clients, and waits until all are ready. */
export async function startFleet({ port, limit, workers, lines = 4, work, options = {} }) {
  const grants = [];
  const changes = [];
  const ends = [];
  const members = Array.from({ length: workers }, (_, n) => {
    const skewMs = workers === 1 ? 0 : -SKEW_MS + (2 * SKEW_MS * n) / (workers - 1);
    const client = n % 2 ? 'ioredis' : 'node-redis';
    const setup = JSON.stringify({ limit, port, client, skewMs, lines, work, options });
    const child = fork(WORKER, [setup]);
    child.on('message', (message) => {
      if (message.type === 'grant') grants.push({ ...message, worker: n });
      if (message.type === 'availability') changes.push({ ...message, worker: n });
      if (message.type === 'over') ends.push(message);
    });
    return child;
  });
  await Promise.all(members.map((child) => once(child, 'message')));
  return {
    grants,
    changes,
    members,
    /** Simulates a crash. */
    async kill(n) {
      const exited = once(members[n], 'exit');
      members[n].kill('SIGKILL');
      await exited;
    },
    async stop() {
      const alive = members.filter((child) => child.exitCode === null && child.signalCode === null);
      const exits = alive.map((child) => once(child, 'exit'));
      for (const child of alive) child.send('stop');
      await Promise.all(exits);
      return {
        asked: sum(ends.map(({ asked }) => asked)),
        lost: sum(ends.map(({ lost }) => lost)) + alive.length - ends.length,
        fallback: sum(ends.map(({ fallback }) => fallback)),
      };
    },
  };
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

/** Figures of the grants under a spacing limit. */
export function judge(grants, everyMs) {
  const times = grants.map(({ dueAt }) => dueAt).toSorted((a, b) => a - b);
  const gaps = times.slice(1).map((at, n) => ({ at, ms: at - times[n] }));
  const spanMs = times.at(-1) - times[0];
  const byWorker = countBy(grants);
  return {
    grants: grants.length,
    tooClose: gaps.filter(({ ms }) => ms < everyMs - EPSILON_MS).length,
    extra: extraOf(times, everyMs),
    leastGapMs: Math.min(...gaps.map(({ ms }) => ms)),
    longestGapMs: Math.max(...gaps.map(({ ms }) => ms)),
    utilisation: (gaps.length * everyMs) / spanMs,
    /** The part of the permits that followed within 1.25 intervals: a stall of the machine delays one of them. */
    onTime: gaps.filter(({ ms }) => ms <= 1.25 * everyMs).length / gaps.length,
    /** Jain's fairness index over the workers: (Σx)² / (nΣx²). */
    fairness: sum(byWorker) ** 2 / (byWorker.length * sum(byWorker.map((x) => x * x))),
    /** Time from when a permit became valid until the worker had it. */
    lateMs: quantiles(grants.map(({ at, dueAt }) => at - dueAt)),
  };
}

/** Overshoot: the most grants above what fits, over all spans. */
function extraOf(times, everyMs) {
  let extra = 0;
  for (let from = 0; from < times.length; from++) {
    for (let to = from + 1; to < times.length; to++) {
      const fit = Math.floor((times[to] - times[from] + EPSILON_MS) / everyMs) + 1;
      extra = Math.max(extra, to - from + 1 - fit);
    }
  }
  return extra;
}

const countBy = (grants) => {
  const counts = new Map();
  for (const { worker } of grants) counts.set(worker, (counts.get(worker) ?? 0) + 1);
  return [...counts.values()];
};

function quantiles(values) {
  const sorted = values.toSorted((a, b) => a - b);
  const at = (fraction) =>
    sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * fraction))];
  return { p50: at(0.5), p99: at(0.99), max: sorted.at(-1) };
}
