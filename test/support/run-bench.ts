/** Runs a script of `bench/` in a child process. */

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const run = promisify(execFile);

/**
 * The JSON output of a script. It ends long before `maxMs`, which is a safety net. A script whose expectation
 * failed exits with an error but still prints its output, for the test to judge.
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
