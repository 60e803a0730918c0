/** Processes on cores of their own: measured ones on the last core that this process may use, load generators on the first. */

import { execFileSync, fork } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { hasTool } from './tools.mjs';

/** A list such as `0-3,8`. */
const ALLOWED = /Cpus_allowed_list:\s*(\S+)/.exec(readFileSync('/proc/self/status', 'utf8'))[1];
const [FIRST, LAST] = [ALLOWED.match(/\d+/g).at(0), ALLOWED.match(/\d+/g).at(-1)];
const hasCores = () => FIRST !== LAST && hasTool('taskset');

/** Words before a command. */
export const onServerCore = () => (hasCores() ? ['taskset', '-c', LAST] : []);
export const onGeneratorCore = () => (hasCores() ? ['taskset', '-c', FIRST] : []);

export function moveToGeneratorCore(pid) {
  if (hasCores()) execFileSync('taskset', ['-apc', FIRST, `${pid}`], { stdio: 'ignore' });
}

/** Starts a Node script on the core of servers. It ends with this process. */
export function forkMeasured(script, words) {
  const [execPath, ...execArgv] = [...onServerCore(), process.execPath];
  const child = fork(script, words, { execPath, execArgv });
  const kill = () => child.kill('SIGKILL');
  process.once('exit', kill);
  child.once('exit', () => process.off('exit', kill));
  return child;
}

const MEASURE_CALLS = fileURLToPath(new URL('./measure-calls.mjs', import.meta.url));

/**
 * Measures calls of the library in a process of their own, so that the code of one row is not compiled for the calls of
 * another. Undefined if the build lacks the row.
 */
export async function measureInProcess(options) {
  const child = forkMeasured(MEASURE_CALLS, [JSON.stringify(options)]);
  let result;
  child.once('message', (message) => {
    result = message;
  });
  const [code] = await once(child, 'exit');
  if (code !== 0) throw new Error(`the measurement of "${options.name}" ended with ${code}`);
  return result.figures;
}
