/** Work for several processes: each is `node` with some words and answers in one line of JSON; two go on at a time. */

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const AT_ONCE = 2;
const MAX_OUT_BYTES = 64 * 2 ** 20;

const run = promisify(execFile);

/** What each list of words came to, in their order. */
export async function playAll(jobs, told) {
  const results = new Array(jobs.length);
  let next = 0;
  let done = 0;
  const work = async () => {
    while (next < jobs.length) {
      const n = next++;
      const { stdout } = await run(process.execPath, jobs[n], { maxBuffer: MAX_OUT_BYTES });
      results[n] = JSON.parse(stdout);
      told(`${++done} of ${jobs.length}: ${jobs[n].join(' ')}`);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return results;
}
