/**
 * Who is compared over HTTP: a bare server of Node that answers nothing useful, and the daemon's surface.
 *
 *     node bench/daemon/http-server.mjs bare|check    listens on a port the system picks, and says which
 *
 * A message from the parent is answered with the processor time used so far; the process ends when the
 * parent goes.
 */

import { createServer } from 'node:http';
import { createServer as createNetServer } from 'node:net';
import { heldClock } from '../../dist/core/clock.js';
import { hasher } from '../../dist/core/hash.js';
import { readLimits } from '../../dist/daemon/config/limits.js';
import { httpSurface } from '../../dist/daemon/protocols/http/server/server.js';
import { Shelf } from '../../dist/daemon/router/limiter-registry.js';
import { Gate } from '../../dist/daemon/router/router.js';

/** Never reached, and keys are not as good as new a moment later. */
const LIMIT = { bucket: { rate: 1000, burst: 1e9 } };

function checking() {
  const limits = readLimits({ api: LIMIT }, 'limits');
  const own = hasher([1, 2]);
  const held = heldClock();
  const shelf = new Shelf({ hasher: own, held, shareOf: () => undefined });
  shelf.stock(limits);
  const rules = { allow: [], deny: [], unmatched: 'allow', limits };
  const gate = new Gate(rules, shelf, own);
  const setting = {
    gate,
    clock: held,
    version: 'bench',
    metrics: () => '',
    reload: async () => ({ ok: true }),
    isReady: () => true,
    limits: () => ({}),
    rules: () => rules,
  };
  const surface = httpSurface(setting, { admin: {} });
  const options = { allowHalfOpen: true, noDelay: true };
  return createNetServer(options, (socket) => surface.accept(socket, true));
}

const servers = { bare: () => createServer((_, response) => response.end('ok')), check: checking };

const server = servers[process.argv[2]]();
process.on('message', () => process.send({ cpu: process.cpuUsage() }));
process.on('disconnect', () => process.exit(0));
server.listen(0, '127.0.0.1', () => process.send({ port: server.address().port }));
