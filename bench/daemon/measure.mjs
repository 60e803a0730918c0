/** One measurement of a server: the figures of a load generator in its own process, and the CPU use of the server; `alsoCpu`: CPU seconds of further processes. */

import { spawn } from 'node:child_process';
import { cpuOf } from './process.mjs';

export async function measureLoad(
  target,
  { connections, depth, isUnix = false, ms, alsoCpu = () => 0 },
) {
  const where = isUnix ? { path: target.path } : { port: target.port };
  const { kind, extra, newlines } = target;
  const options = { ...where, kind, extra, newlines, connections, depth, ms };
  const generator = spawn(process.execPath, ['bench/daemon/load.mjs', JSON.stringify(options)], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const kill = () => generator.kill('SIGKILL');
  process.once('exit', kill);
  let output = '';
  let start;
  let busy = 0;
  let alsoBusy = 0;
  generator.stdout.on('data', (chunk) => {
    output += chunk;
    const now = { cpu: cpuOf(target.pid), also: alsoCpu(), at: performance.now() };
    start ??= now;
    alsoBusy = ((now.also - start.also) * 1000) / (now.at - start.at);
    busy = ((now.cpu - start.cpu) * 1000) / (now.at - start.at);
  });
  const code = await new Promise((ended) => generator.once('exit', ended));
  process.off('exit', kill);
  if (code !== 0) throw new Error(`the load generator failed on ${target.name}`);
  const figures = JSON.parse(output.split('\n')[1]);
  return { ...figures, busy, alsoBusy, perCore: figures.perSecond / busy };
}
