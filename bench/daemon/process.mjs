/** The daemon as a process of its own for measurements, and what it uses. */

import { execFileSync, spawn } from 'node:child_process';
import { readFileSync } from 'node:fs';

const TICKS = Number(execFileSync('getconf', ['CLK_TCK'], { encoding: 'utf8' }));

/** Starts it and waits until it listens. Addresses it picked are in `at`, by surface. */
export async function startDaemon(args, env = {}) {
  const child = spawn(process.execPath, ['dist/cli/main.js', 'serve', ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
    env: { ...process.env, ...env },
  });
  process.once('exit', () => child.kill('SIGKILL'));
  let said = '';
  await new Promise((ready, failed) => {
    child.once('exit', () => failed(new Error(`the daemon ended: ${said}`)));
    child.stdout.on('data', (chunk) => {
      said += chunk;
      if (said.includes('ready\n')) ready();
    });
  });
  child.removeAllListeners('exit');
  const at = { line: [], resp: [], http: [] };
  for (const [, surface, where] of said.matchAll(/^ {2}(line|resp|http) +(\S+)/gm))
    at[surface].push(where);
  const port = (surface) => Number(at[surface][0].split(':').at(-1));
  const stop = (signal = 'SIGTERM') =>
    new Promise((ended) => {
      child.once('exit', ended);
      child.kill(signal);
    });
  return { pid: child.pid, at, port, stop };
}

/** Processor seconds a process has used. */
export function cpuOf(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return (Number(fields[11]) + Number(fields[12])) / TICKS;
}

/** Bytes of memory a process holds. */
export const memoryOf = (pid) =>
  Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))[1]) * 1024;
