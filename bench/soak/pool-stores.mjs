/**
 * The stores that pods may meet in: how each is started, how pods reach it, and how it forgets everything while it runs.
 *
 * Clients try again every 50 ms, so that what is measured is the pool and not how patient a client is.
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
    client.connect().catch(() => {}); // it goes on trying
    return redisStore(client);
  },
  forget: async (server) => server.cli('FLUSHALL'),
};

const nats = {
  title: 'NATS',
  start: startJetStream,
  async reach(port) {
    const patience = { waitOnFirstConnect: true, maxReconnectAttempts: -1 };
    const again = { reconnectTimeWait: RETRY_MS, reconnectJitter: 0 };
    return natsStore(await connect({ servers: `127.0.0.1:${port}`, ...patience, ...again }));
  },
  async forget({ port }) {
    const connection = await connect({ servers: `127.0.0.1:${port}` });
    await (await new Kvm(connection).open('sluice-pools')).destroy();
    await connection.close();
  },
};

/** From the first key there can be to the last, as base64 has it. */
const ALL_KEYS = { key: 'AA==', range_end: 'AA==' };

const etcd = {
  title: 'etcd',
  start: startEtcd,
  reach: async (port) => etcdStore({ endpoints: [`http://127.0.0.1:${port}`] }),
  async forget({ port }) {
    const url = `http://127.0.0.1:${port}/v3/kv/deleterange`;
    const { ok, status } = await fetch(url, { method: 'POST', body: JSON.stringify(ALL_KEYS) });
    if (!ok) throw new Error(`etcd would not forget: ${status}`);
  },
};

export const STORES = { redis, nats, etcd };
