/**
 * The HTTP servers that are compared: a bare Node server that replies `ok`, and the HTTP interface of the daemon.
 *
 *     node bench/daemon/http-server.mjs bare|check    listens on a free port and reports it
 *
 * On a message from the parent, the process sends its CPU time. It ends with its parent.
 */

import { createServer } from 'node:http';
import { createServer as createNetServer } from 'node:net';
import { batchClock } from '../../dist/core/clock.js';
import { createHasher } from '../../dist/core/hash.js';
import { readLimits } from '../../dist/daemon/config/limits.js';
import { NO_PATTERNS } from '../../dist/daemon/keys/pattern-table.js';
import { HttpServer } from '../../dist/daemon/protocols/http/server/server.js';
import { LimiterRegistry } from '../../dist/daemon/router/limiter-registry.js';
import { Router } from '../../dist/daemon/router/router.js';

/** Never reached, but slow enough that keys do not become idle between calls. */
const LIMIT = { bucket: { rate: 1000, burst: 1e9 } };

function createDaemonServer() {
  const limits = readLimits({ api: LIMIT }, 'limits');
  const hasher = createHasher([1, 2], 'latin1');
  const clock = batchClock();
  const registry = new LimiterRegistry({
    hasher,
    batchClock: clock,
    backendFor: () => undefined,
  });
  registry.apply(limits);
  const rules = { allow: NO_PATTERNS, deny: NO_PATTERNS, unmatched: 'allow', limits };
  const router = new Router(rules, registry, hasher);
  const context = {
    router,
    clock,
    version: 'bench',
    metrics: async () => '',
    reload: async () => ({ ok: true }),
    isReady: () => true,
    limits: () => ({}),
    backendPages: [],
  };
  const httpServer = new HttpServer(context, { admin: {} });
  const options = { allowHalfOpen: true, noDelay: true };
  return createNetServer(options, (socket) => httpServer.accept(socket, true));
}

const createBareServer = () => createServer((_, response) => response.end('ok'));
const servers = { bare: createBareServer, check: createDaemonServer };

const server = servers[process.argv[2]]();
process.on('message', () => process.send({ cpu: process.cpuUsage() }));
process.on('disconnect', () => process.exit(0));
server.listen(0, '127.0.0.1', () => process.send({ port: server.address().port }));
