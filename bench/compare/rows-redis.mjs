/** Checks through a Redis: CPU time of the calling process for each decision. */

import { startRedis } from '../soak/server.mjs';
import { measureInProcess, moveToGeneratorCore } from './processes.mjs';
import { hasTool } from './tools.mjs';

export const rows = [1, 64, 512].map((inFlight) => ({
  name: `check through Redis, ${inFlight} in flight`,
  inFlight,
  // Until all code is compiled, a check costs a tenth more; one caller makes few calls in a second.
  warmUpMs: inFlight === 1 ? 3000 : 1000,
}));

export const spanMs = { short: 300, full: 800 };
export const secondsEach = 2;

/** One Redis for all rounds. The builds have keys of their own. */
export async function prepare(defer) {
  if (!hasTool('redis-server')) return undefined;
  const server = await startRedis();
  defer(() => server.stop());
  moveToGeneratorCore(server.pid);
  return async ({ folder, name }) => ({
    measure: (row, ms) => measureInProcess({ ...row, ms, folder, port: server.port, owner: name }),
    close() {},
  });
}
