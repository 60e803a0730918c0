/** One measurement of a server: the figures of a generator with a process of its own, and what the server used meanwhile. */

import { spawn } from 'node:child_process';
import { cpuOf } from './process.mjs';

export async function measureLoad(target, { connections, depth, isUnix = false, ms }) {
  const where = isUnix ? { path: target.path } : { port: target.port };
  const { kind, extra } = target;
  const order = { ...where, kind, extra, connections, depth, ms };
  const generator = spawn(process.execPath, ['bench/daemon/load.mjs', JSON.stringify(order)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const killed = () => generator.kill('SIGKILL');
  process.once('exit', killed);
  let said = '';
  let begun;
  let busy = 0;
  generator.stdout.on('data', (chunk) => {
    said += chunk;
    const now = { cpu: cpuOf(target.pid), at: performance.now() };
    begun ??= now;
    busy = ((now.cpu - begun.cpu) * 1000) / (now.at - begun.at);
  });
  const code = await new Promise((ended) => generator.once('exit', ended));
  process.off('exit', killed);
  if (code !== 0) throw new Error(`the generator failed on ${target.name}`);
  const figures = JSON.parse(said.split('\n')[1]);
  return { ...figures, busy, perCore: figures.perSecond / busy };
}
