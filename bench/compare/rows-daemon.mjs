/** The daemon: CPU time of its process for each reply. It is started anew in every round. */

import { startDaemon } from '../daemon/process.mjs';
import { programOf } from './builds.mjs';
import { generatorOf, probe, warmUp } from './generators.mjs';
import { onServerCore } from './processes.mjs';

/** Short turns of both builds cancel out other load better; wrk runs for whole seconds. */
const row = (protocol, kind, title) => (connections, depth) => ({
  name: `${title} ${connections} × ${depth}`,
  protocol,
  turns: protocol === 'http' ? 1 : 2,
  load: { kind, connections, depth },
});
const line = row('line', 'line', 'line');
const resp = row('resp', 'cell', 'CL.THROTTLE');
const http = row('http', 'http', 'HTTP GET /check');

export const rows = [
  ...[line(8, 1), line(8, 16), line(8, 256), line(64, 256)],
  ...[resp(8, 1), resp(8, 16), resp(8, 256), resp(64, 256)],
  ...[http(8, 1), http(64, 1), http(8, 16)],
];

/** A limit that is never reached, but slow enough that keys do not become idle between calls. */
const LIMIT = ['--rate', '1000/s', '--burst', '1000000000'];
const ANY = '127.0.0.1:0';

export const spanMs = { short: 400, full: 1000 };
export const secondsEach = 1;
export const prepare = async () => open;

async function open({ folder }) {
  const daemon = await startDaemon([...LIMIT, '--line', ANY, '--resp', ANY, '--http', ANY], {
    within: onServerCore(),
    log: 'ignore',
    program: programOf(folder),
  });
  const targets = {};
  const warm = new Set();
  const targetOf = async (protocol, kind) => {
    const port = daemon.port(protocol);
    const newlines = await probe(port, kind);
    const target = { name: kind, pid: daemon.pid, port, kind, newlines };
    if (newlines !== undefined) await warmUp(target);
    return target;
  };
  return {
    /** Calls per second and CPU time per call, undefined if the build lacks the row. */
    async measure({ name, protocol, load }, ms) {
      targets[load.kind] ??= await targetOf(protocol, load.kind);
      const target = targets[load.kind];
      if (target.newlines === undefined) return undefined;
      const measure = () => generatorOf(load.kind).measure(target, { ...load, ms });
      if (!warm.has(name)) await measure(); // each load has its own compiled code
      warm.add(name);
      return measure();
    },
    close: () => daemon.stop(),
  };
}
