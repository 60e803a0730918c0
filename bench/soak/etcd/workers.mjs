/** Workers in one network, and what they told. */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

/** Clocks are wrong by up to so much, evenly spread over the workers. */
const SKEW_MS = 3_600_000;

export const machineNow = () => Number(process.hrtime.bigint()) / 1e6;

/** Starts one where `within` says, and waits until it is at it. */
export async function startProcess(within, file, setting, onNews) {
  const path = fileURLToPath(new URL(file, import.meta.url));
  const [command, ...args] = [...within, process.execPath, path, JSON.stringify(setting)];
  const child = spawn(command, args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  child.on('message', onNews);
  const exit = once(child, 'exit').then(([code]) => {
    throw new Error(`${file} ended with ${code} before it was ready`);
  });
  await Promise.race([once(child, 'message'), exit]);
  exit.catch(() => {}); // later on it ends when it is told to
  return child;
}

/** Each asks another member first. */
export const turned = (endpoints, n) =>
  endpoints.map((_, at) => endpoints[(at + n) % endpoints.length]);

export async function startWorkers({ within, endpoints, workers, ...setting }) {
  const starts = [];
  const asks = [];
  const children = await Promise.all(
    Array.from({ length: workers }, (_, n) => {
      const skewMs = -SKEW_MS + (2 * SKEW_MS * n) / (workers - 1);
      const own = { ...setting, skewMs, endpoints: turned(endpoints, n) };
      return startProcess(within, './worker.mjs', own, ({ type, ...news }) => {
        if (type === 'start') starts.push({ ...news, worker: n });
        if (type === 'ask') asks.push(news);
      });
    }),
  );
  return {
    starts,
    asks,
    async stop() {
      const gone = children.map((child) => once(child, 'exit'));
      for (const child of children) child.send('stop');
      await Promise.all(gone);
    },
  };
}
