/** Workers in one network, and what they reported. */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

/** Clock offsets are spread evenly over the workers, from minus to plus this. */
const SKEW_MS = 3_600_000;

export const machineNow = () => Number(process.hrtime.bigint()) / 1e6;

/** Starts a worker in the network of `within`, and waits until it is ready. */
export async function startProcess(within, file, setting, onMessage) {
  const path = fileURLToPath(new URL(file, import.meta.url));
  const [command, ...args] = [...within, process.execPath, path, JSON.stringify(setting)];
  const child = spawn(command, args, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  child.on('message', onMessage);
  const exit = once(child, 'exit').then(([code]) => {
    throw new Error(`${file} ended with ${code} before it was ready`);
  });
  await Promise.race([once(child, 'message'), exit]);
  exit.catch(() => {}); // it exits later on command
  return child;
}

/** Each worker begins with another member. */
export const rotated = (endpoints, n) =>
  endpoints.map((_, at) => endpoints[(at + n) % endpoints.length]);

export async function startWorkers({ within, endpoints, workers, ...setting }) {
  const starts = [];
  const checks = [];
  const children = await Promise.all(
    Array.from({ length: workers }, (_, n) => {
      const skewMs = -SKEW_MS + (2 * SKEW_MS * n) / (workers - 1);
      const options = { ...setting, skewMs, endpoints: rotated(endpoints, n) };
      return startProcess(within, './worker.mjs', options, ({ type, ...message }) => {
        if (type === 'start') starts.push({ ...message, worker: n });
        if (type === 'check') checks.push(message);
      });
    }),
  );
  return {
    starts,
    checks,
    async stop() {
      const exits = children.map((child) => once(child, 'exit'));
      for (const child of children) child.send('stop');
      await Promise.all(exits);
    },
  };
}
