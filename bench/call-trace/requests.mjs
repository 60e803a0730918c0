/**
 * The requests that are traced: by each protocol, adapter and backend. Each returns a `send` for one request.
 *
 * The modules of dist/ are traced, not the bundles: entries then name source files.
 */

import { once } from 'node:events';
import { createServer, get } from 'node:http';
import { connect } from 'node:net';
import { createClient } from 'redis';
import { throttleFetch } from '../../dist/adapters/fetch.js';
import { rateLimit as node } from '../../dist/adapters/node.js';
import { etcd } from '../../dist/backends/etcd/index.js';
import { groups } from '../../dist/backends/groups/index.js';
import { peers, udp } from '../../dist/backends/peers/index.js';
import { memoryStore, pool } from '../../dist/backends/pool/index.js';
import { redis } from '../../dist/backends/redis/index.js';
import { connect as connectClient } from '../../dist/client/index.js';
import { readConfig } from '../../dist/daemon/config/read.js';
import { Daemon } from '../../dist/daemon/daemon.js';
import { all, limiter, throttle } from '../../dist/index.js';
import { freePort, freeUdpPorts } from '../ports.mjs';
import { startEtcd, startRedis } from '../soak/server.mjs';

/** Never exhausted: every decision is an allow. */
const BUCKET = { bucket: { rate: '1000/s', burst: 1000 } };

/** Under the debugger every reply is slow: with the default deadline the fallback would be traced. */
const PATIENT = { deadline: '30s' };

/** Polls until a condition holds. */
async function until(name, holds) {
  const deadline = performance.now() + 10_000;
  while (!holds()) {
    if (performance.now() > deadline) throw new Error(`${name}: not ready within 10 s`);
    await new Promise((later) => setTimeout(later, 10));
  }
}

async function startDaemon() {
  const at = '127.0.0.1:0';
  const { config } = readConfig({
    listen: { line: at, resp: at, http: at },
    overload: { maxAge: '1h' }, // under the debugger every check is slow
    limits: { api: BUCKET },
  });
  const daemon = await Daemon.start(config, { log: () => {}, load: () => config, version: '0' });
  const portOf = (protocol) =>
    daemon.addresses.find((address) => address.protocol === protocol).listen.port;
  return { portOf, stop: () => daemon.stop() };
}

/** A connection to a daemon that sends the same request each time. */
async function throughDaemon(protocol, request) {
  const daemon = await startDaemon();
  const socket = connect({ port: daemon.portOf(protocol), host: '127.0.0.1' });
  await once(socket, 'connect');
  return {
    async send() {
      socket.write(request);
      await once(socket, 'data');
    },
    async stop() {
      socket.destroy();
      await daemon.stop();
    },
  };
}

const HTTP_GET = 'GET /check?key=alice HTTP/1.1\r\nHost: h\r\n\r\n';
const JSON_BODY = '{"key":"alice"}';
const HTTP_POST = `POST /check HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: ${JSON_BODY.length}\r\n\r\n${JSON_BODY}`;

/** A limiter in this process; the caller closes its backend. */
const inProcess = (backend) => {
  const api = limiter({ name: 'api', limit: BUCKET, ...(backend && { backend }) });
  return { send: () => api.check('alice'), api };
};

async function throughRedis(options) {
  const server = await startRedis();
  const client = await createClient({ url: `redis://127.0.0.1:${server.port}` }).connect();
  const { send, api } = inProcess(redis(client, { ...PATIENT, ...options }));
  return {
    send,
    stop: async () => {
      await api.close();
      client.destroy();
      await server.stop();
    },
  };
}

export const REQUESTS = {
  'library: check': async () => inProcess(),
  'library: tryAcquire and settle': async () => {
    const { api } = inProcess();
    return { send: () => api.tryAcquire('alice').settle() };
  },
  'library: acquire and settle': async () => {
    const { api } = inProcess();
    return { send: async () => (await api.acquire('alice')).settle() };
  },
  'library: adaptive, acquire and settle': async () => {
    const api = limiter({ name: 'api', limit: { adaptive: {} } });
    return { send: async () => (await api.acquire('alice')).settle({ rttMs: 5 }) };
  },
  'library: all of two limiters': async () => {
    const both = all([inProcess().api, { limiter: inProcess().api, key: '*' }]);
    return { send: () => both.check('alice') };
  },
  'library: throttle(fn)': async () => {
    const work = throttle(() => 1, { limit: BUCKET });
    return { send: () => work() };
  },
  'library: throttleFetch': async () => {
    const fetch = throttleFetch(async () => new Response('ok'), { limit: BUCKET });
    return { send: () => fetch('http://127.0.0.1/') };
  },
  'library: adapter for node:http': async () => {
    const guard = node({ limit: BUCKET });
    const server = createServer((request, response) =>
      guard(request, response, () => response.end('ok')),
    );
    await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
    const { port } = server.address();
    return {
      send: async () => {
        const [response] = await once(get({ port, host: '127.0.0.1', agent: false }), 'response');
        await once(response.resume(), 'end');
      },
      stop: () => server.close(),
    };
  },
  'daemon: line': () => throughDaemon('line', 'alice\n'),
  'daemon: RESP, CL.THROTTLE': () => throughDaemon('resp', 'CL.THROTTLE alice 15 30 60 1\r\n'),
  'daemon: RESP, SLUICE.CHECK': () => throughDaemon('resp', 'SLUICE.CHECK api alice\r\n'),
  'daemon: RESP, SLUICE.CHECK by pattern': () => throughDaemon('resp', 'SLUICE.CHECK * alice\r\n'),
  'daemon: HTTP, GET': () => throughDaemon('http', HTTP_GET),
  'daemon: HTTP, POST': () => throughDaemon('http', HTTP_POST),
  client: async () => {
    const daemon = await startDaemon();
    const client = connectClient({ at: `127.0.0.1:${daemon.portOf('resp')}`, ...PATIENT });
    return {
      send: () => client.isAllowed('alice'),
      stop: async () => {
        await client.close();
        await daemon.stop();
      },
    };
  },
  'backend: peers': async () => {
    const ports = await freeUdpPorts(2);
    const addresses = ports.map((port) => `127.0.0.1:${port}`);
    const nodes = addresses.map((bind, n) =>
      peers({ transport: udp({ peers: addresses, bind }), key: 'k'.repeat(32), name: `node ${n}` }),
    );
    const [{ send }] = nodes.map((node) => inProcess(node));
    await until('peers', () => nodes.every((node) => node.view().peers.length === 1));
    return { send, stop: () => Promise.all(nodes.map((node) => node.close())) };
  },
  'backend: pool': async () => {
    const store = memoryStore();
    const backend = pool(store);
    const { send } = inProcess(backend);
    await until('pool', () => backend.view().isAgreed && backend.view().size === 1);
    return { send, stop: () => backend.close() };
  },
  'backend: groups': async () => {
    const port = await freePort();
    const backend = groups({
      self: 'eu',
      groups: { eu: {}, us: { at: `http://127.0.0.1:${port}` } },
      key: 'k'.repeat(32),
    });
    return { ...inProcess(backend), stop: () => backend.close() };
  },
  'backend: redis': () => throughRedis({}),
  'backend: redis, prefetch': () => throughRedis({ prefetch: 100 }),
  'backend: etcd': async () => {
    const server = await startEtcd();
    const backend = etcd({ endpoints: [`http://127.0.0.1:${server.port}`], ...PATIENT });
    const { send, api } = inProcess(backend);
    return {
      send,
      stop: async () => {
        await api.close();
        await server.stop();
      },
    };
  },
};
