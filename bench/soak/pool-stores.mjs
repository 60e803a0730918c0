/**
 * The stores of pools: how each is started, how pods connect to it, and how its data is deleted while it runs.
 *
 * Clients reconnect every 50 ms, so that recovery times measure the pool and not the back-off of a client.
 */

import { Kvm } from '@nats-io/kv';
import { connect } from '@nats-io/transport-node';
import { createClient } from 'redis';
import { etcdStore, redisStore } from 'sluice/pool';
import { natsStore } from 'sluice/pool/nats';
import { startEtcd, startJetStream, startRedis } from './server.mjs';

const RETRY_MS = 50;

const redis = {
  title: 'Redis',
  start: () => startRedis(),
  async reach(port) {
    const socket = { port, host: '127.0.0.1', reconnectStrategy: RETRY_MS };
    const client = createClient({ socket, disableOfflineQueue: true });
    client.on('error', () => {});
    client.connect().catch(() => {}); // it keeps reconnecting
    return redisStore(client);
  },
  deleteData: async (server) => server.cli('FLUSHALL'),
};

const nats = {
  title: 'NATS',
  start: startJetStream,
  async reach(port) {
    const connecting = { waitOnFirstConnect: true, maxReconnectAttempts: -1 };
    const reconnecting = { reconnectTimeWait: RETRY_MS, reconnectJitter: 0 };
    return natsStore(
      await connect({ servers: `127.0.0.1:${port}`, ...connecting, ...reconnecting }),
    );
  },
  async deleteData({ port }) {
    const connection = await connect({ servers: `127.0.0.1:${port}` });
    await (await new Kvm(connection).open('sluice-pools')).destroy();
    await connection.close();
  },
};

/** The range of all keys, in base64. */
const ALL_KEYS = { key: 'AA==', range_end: 'AA==' };

const etcd = {
  title: 'etcd',
  start: startEtcd,
  reach: async (port) => etcdStore({ endpoints: [`http://127.0.0.1:${port}`] }),
  async deleteData({ port }) {
    const url = `http://127.0.0.1:${port}/v3/kv/deleterange`;
    const { ok, status } = await fetch(url, { method: 'POST', body: JSON.stringify(ALL_KEYS) });
    if (!ok) throw new Error(`etcd did not delete its data: ${status}`);
  },
};

export const STORES = { redis, nats, etcd };
