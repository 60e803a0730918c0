/** What `bench/` shows, played in a process of its own. */

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const run = promisify(execFile);

/**
 * What a play tells as JSON. It ends by itself long before `maxMs`, which is for what nobody thought of. If something
 * did not hold it ends with an error, too, and it is for the test to say what.
 */
export async function runBench<T>(maxMs: number, script: string, ...words: string[]): Promise<T> {
  const args = [`bench/${script}`, ...words, '--json'];
  const { stdout } = await run(process.execPath, args, { timeout: maxMs }).catch(
    (error: { stdout?: string }) => {
      if (error.stdout) return { stdout: error.stdout };
      throw error;
    },
  );
  return JSON.parse(stdout);
}
