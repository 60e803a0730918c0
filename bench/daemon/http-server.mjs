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
import { batchClock } from '../../dist/core/clock.js';
import { createHasher } from '../../dist/core/hash.js';
import { readLimits } from '../../dist/daemon/config/limits.js';
import { HttpServer } from '../../dist/daemon/protocols/http/server/server.js';
import { LimiterRegistry } from '../../dist/daemon/router/limiter-registry.js';
import { Router } from '../../dist/daemon/router/router.js';

/** Never reached, and keys are not as good as new a moment later. */
const LIMIT = { bucket: { rate: 1000, burst: 1e9 } };

function checking() {
  const limits = readLimits({ api: LIMIT }, 'limits');
  const own = createHasher([1, 2]);
  const clock = batchClock();
  const registry = new LimiterRegistry({
    hasher: own,
    batchClock: clock,
    backendFor: () => undefined,
  });
  registry.apply(limits);
  const rules = { allow: [], deny: [], unmatched: 'allow', limits };
  const router = new Router(rules, registry, own);
  const context = {
    router,
    clock,
    version: 'bench',
    metrics: () => '',
    reload: async () => ({ ok: true }),
    isReady: () => true,
    limits: () => ({}),
    routesConfig: () => rules,
  };
  const surface = new HttpServer(context, { admin: {} });
  const options = { allowHalfOpen: true, noDelay: true };
  return createNetServer(options, (socket) => surface.accept(socket, true));
}

const servers = { bare: () => createServer((_, response) => response.end('ok')), check: checking };

const server = servers[process.argv[2]]();
process.on('message', () => process.send({ cpu: process.cpuUsage() }));
process.on('disconnect', () => process.exit(0));
server.listen(0, '127.0.0.1', () => process.send({ port: server.address().port }));
