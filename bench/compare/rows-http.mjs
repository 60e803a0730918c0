/** Servers with the middleware: CPU time of the server for each request. They are started anew in every round. */

import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { generatorOf, probe, warmUp } from './generators.mjs';
import { forkMeasured } from './processes.mjs';

const SCRIPT = fileURLToPath(new URL('../http-servers.mjs', import.meta.url));
const LOAD = { kind: 'root', connections: 8, depth: 16 };

export const rows = ['node:http', 'Express'].map((framework) => ({
  name: `${framework} with middleware`,
  framework,
  load: LOAD,
}));

async function start(framework, folder) {
  const server = forkMeasured(SCRIPT, [framework, 'sluice', folder]);
  const [message] = await Promise.race([once(server, 'message'), once(server, 'exit')]);
  if (message?.port === undefined) return undefined;
  const { port } = message;
  const target = { name: framework, pid: server.pid, port, kind: LOAD.kind };
  target.newlines = await probe(port, LOAD.kind);
  await warmUp(target);
  const stop = async () => {
    server.disconnect();
    await once(server, 'exit');
  };
  return { target, stop };
}

export const spanMs = { short: 1000, full: 1000 };
export const secondsEach = 1.5;
export const prepare = async () => open;

async function open({ folder }) {
  const servers = new Map();
  return {
    async measure({ framework, load }, ms) {
      if (!servers.has(framework)) servers.set(framework, await start(framework, folder));
      const target = servers.get(framework)?.target;
      return target && generatorOf(load.kind).measure(target, { ...load, ms });
    },
    async close() {
      for (const server of servers.values()) await server?.stop();
    },
  };
}
