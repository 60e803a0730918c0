/** Every way an ask can come in, and everybody who can decide it: each makes something that asks once. */

import { once } from 'node:events';
import { createServer, get } from 'node:http';
import { connect } from 'node:net';
import { createClient } from 'redis';
import { all, limiter, throttle } from 'sluice';
import { connect as connectClient } from 'sluice/client';
import { etcd } from 'sluice/etcd';
import { throttleFetch } from 'sluice/fetch';
import { groups } from 'sluice/groups';
import { rateLimit as node } from 'sluice/node';
import { peers, udp } from 'sluice/peers';
import { memoryStore, pool } from 'sluice/pool';
import { redis } from 'sluice/redis';
import { readConfig } from '../../dist/daemon/config/read.js';
import { Daemon } from '../../dist/daemon/daemon.js';
import { freePort, freeUdpPorts } from '../ports.mjs';
import { startEtcd, startRedis } from '../soak/server.mjs';

/** Never reached: every answer is yes. */
const BUCKET = { bucket: { rate: '1000/s', burst: 1000 } };

/** Waits until it holds, and says what did not. */
async function until(what, holds) {
  const by = performance.now() + 10_000;
  while (!holds()) {
    if (performance.now() > by) throw new Error(`${what}: not within 10 s`);
    await new Promise((later) => setTimeout(later, 10));
  }
}

async function daemon() {
  const at = '127.0.0.1:0';
  const { config } = readConfig({
    listen: { line: at, resp: at, http: at },
    limits: { api: BUCKET },
  });
  const own = await Daemon.start(config, { log: () => {}, load: () => config, version: '0' });
  const portOf = (surface) => own.addresses.find((place) => place.surface === surface).listen.port;
  return { portOf, stop: () => own.stop() };
}

/** A connection to a daemon on which a question is asked again and again. */
async function talk(surface, question) {
  const own = await daemon();
  const socket = connect({ port: own.portOf(surface), host: '127.0.0.1' });
  await once(socket, 'connect');
  return {
    async ask() {
      socket.write(question);
      await once(socket, 'data');
    },
    async stop() {
      socket.destroy();
      await own.stop();
    },
  };
}

const HTTP_QUESTION = 'GET /check?key=alice HTTP/1.1\r\nHost: h\r\n\r\n';
const POST = '{"key":"alice"}';
const LONG_WAY = `POST /check HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: ${POST.length}\r\n\r\n${POST}`;

/** A limiter here, with a share that is closed at the end. */
const here = (backend, extra = {}) => {
  const own = limiter({ name: 'api', limit: BUCKET, ...(backend && { backend }), ...extra });
  return { ask: () => own.check('alice'), own };
};

async function throughRedis(options) {
  const server = await startRedis();
  const client = await createClient({ url: `redis://127.0.0.1:${server.port}` }).connect();
  const { ask, own } = here(redis(client, options));
  return {
    ask,
    stop: async () => {
      await own.close();
      client.destroy();
      await server.stop();
    },
  };
}

export const ROADS = {
  'library: check': async () => here(),
  'library: tryAcquire and settle': async () => {
    const { own } = here();
    return { ask: () => own.tryAcquire('alice').settle() };
  },
  'library: acquire and settle': async () => {
    const { own } = here();
    return { ask: async () => (await own.acquire('alice')).settle() };
  },
  'library: a limit that learns, acquire and settle': async () => {
    const own = limiter({ name: 'api', limit: { adaptive: {} } });
    return { ask: async () => (await own.acquire('alice')).settle({ rttMs: 5 }) };
  },
  'library: all of two limiters': async () => {
    const both = all([here().own, { limiter: here().own, key: '*' }]);
    return { ask: () => both.check('alice') };
  },
  'library: a function': async () => {
    const work = throttle(() => 1, { limit: BUCKET });
    return { ask: () => work() };
  },
  'library: a fetch': async () => {
    const fetch = throttleFetch(async () => new Response('ok'), { limit: BUCKET });
    return { ask: () => fetch('http://127.0.0.1/') };
  },
  'library: in front of node:http': async () => {
    const guard = node({ limit: BUCKET });
    const server = createServer((request, response) =>
      guard(request, response, () => response.end('ok')),
    );
    await new Promise((ready) => server.listen(0, '127.0.0.1', ready));
    const { port } = server.address();
    return {
      ask: async () => {
        const [response] = await once(get({ port, host: '127.0.0.1', agent: false }), 'response');
        await once(response.resume(), 'end');
      },
      stop: () => server.close(),
    };
  },
  'daemon: line': () => talk('line', 'alice\n'),
  'daemon: RESP, CL.THROTTLE': () => talk('resp', 'CL.THROTTLE alice 15 30 60 1\r\n'),
  'daemon: RESP, a limit of the file': () => talk('resp', 'SLUICE.CHECK api alice\r\n'),
  'daemon: HTTP': () => talk('http', HTTP_QUESTION),
  'daemon: HTTP, the long way': () => talk('http', LONG_WAY),
  client: async () => {
    const own = await daemon();
    const client = connectClient({ at: `127.0.0.1:${own.portOf('resp')}`, deadline: '30s' });
    return {
      ask: () => client.isAllowed('alice'),
      stop: async () => {
        await client.close();
        await own.stop();
      },
    };
  },
  'backend: peers': async () => {
    const ports = await freeUdpPorts(2);
    const addresses = ports.map((port) => `127.0.0.1:${port}`);
    const fleets = addresses.map((bind, n) =>
      peers({ transport: udp({ peers: addresses, bind }), key: 'k'.repeat(32), name: `node ${n}` }),
    );
    const [{ ask }] = fleets.map((fleet) => here(fleet));
    await until('peers', () => fleets.every((fleet) => fleet.view().peers.length === 1));
    return { ask, stop: () => Promise.all(fleets.map((fleet) => fleet.close())) };
  },
  'backend: pool': async () => {
    const store = memoryStore();
    const own = pool(store);
    const { ask } = here(own);
    await until('pool', () => own.view().isAgreed && own.view().size === 1);
    return { ask, stop: () => own.close() };
  },
  'backend: groups': async () => {
    const port = await freePort();
    const own = groups({
      self: 'eu',
      groups: { eu: {}, us: { at: `http://127.0.0.1:${port}` } },
      key: 'k'.repeat(32),
    });
    return { ...here(own), stop: () => own.close() };
  },
  'backend: redis': () => throughRedis({}),
  'backend: redis, permits taken ahead': () => throughRedis({ prefetch: 100 }),
  'backend: etcd': async () => {
    const server = await startEtcd();
    const backend = etcd({ endpoints: [`http://127.0.0.1:${server.port}`] });
    const { ask, own } = here(backend);
    return {
      ask,
      stop: async () => {
        await own.close();
        await server.stop();
      },
    };
  },
};
