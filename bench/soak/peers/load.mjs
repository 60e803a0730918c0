/**
 * One client that calls all daemons of a fleet in turn, and its record: the time of each call, of each admitted call with its
 * node, and of each reply. A worker thread sends the calls, so that nothing here delays them.
 */

import { Worker } from 'node:worker_threads';

/** One clock for all threads. */
export const now = () => Number(process.hrtime.bigint()) / 1e6;

export function startLoad(lines, perSecond, key) {
  const calls = [];
  const admitted = [];
  const replies = [];
  const worker = new Worker(new URL('./load-worker.mjs', import.meta.url), {
    workerData: { lines, perSecond, key },
  });
  const ended = new Promise((resolve) => worker.once('exit', resolve));
  worker.on('message', (batch) => {
    calls.push(...batch.calls);
    for (const reply of batch.replies) {
      replies.push(reply);
      if (reply.isAllowed) admitted.push({ at: reply.at, node: reply.node, client: 0 });
    }
  });
  return {
    calls,
    admitted,
    replies,
    async stop() {
      worker.postMessage('stop');
      await ended;
    },
  };
}
