/** Runs Node scripts as child processes, two at a time; each prints its result as one line of JSON. */

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const MAX_PROCESSES = 2;
const MAX_OUT_BYTES = 64 * 2 ** 20;

const run = promisify(execFile);

/** The results of all jobs, in their order. A job is a list of arguments for `node`. */
export async function runAll(jobs, onProgress) {
  const results = new Array(jobs.length);
  let next = 0;
  let done = 0;
  const work = async () => {
    while (next < jobs.length) {
      const n = next++;
      const { stdout } = await run(process.execPath, jobs[n], { maxBuffer: MAX_OUT_BYTES });
      results[n] = JSON.parse(stdout);
      onProgress(`${++done} of ${jobs.length}: ${jobs[n].join(' ')}`);
    }
  };
  await Promise.all(Array.from({ length: MAX_PROCESSES }, work));
  return results;
}
