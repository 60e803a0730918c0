/**
 * One client that asks all daemons of a fleet in turn, and everything it was told: when each call was made, when each was let
 * through and by whom, how long each answer took. It asks in a thread of its own, which nothing here holds up.
 */

import { Worker } from 'node:worker_threads';

/** One clock for all threads. */
export const now = () => Number(process.hrtime.bigint()) / 1e6;

export function startLoad(lines, perSecond, key) {
  const asked = [];
  const admitted = [];
  const answers = [];
  const asker = new Worker(new URL('./asker.mjs', import.meta.url), {
    workerData: { lines, perSecond, key },
  });
  const ended = new Promise((resolve) => asker.once('exit', resolve));
  asker.on('message', (news) => {
    asked.push(...news.asked);
    for (const answer of news.answers) {
      answers.push(answer);
      if (answer.isServed) admitted.push({ at: answer.at, node: answer.node, client: 0 });
    }
  });
  return {
    asked,
    admitted,
    answers,
    async stop() {
      asker.postMessage('stop');
      await ended;
    },
  };
}
