/** Pool stores with a server of their own, which a test may kill. */

import { setTimeout as sleep } from 'node:timers/promises';
import { connect, type NatsConnection } from '@nats-io/transport-node';
import { etcdStore } from '../../src/backends/pool/etcd-store.ts';
import { natsStore } from '../../src/backends/pool/nats-store.ts';
import { type Clock, systemClock } from '../../src/core/clock.ts';
import type { PoolStoreHarness } from './pool-store-contract.ts';
import { type Service, startEtcd, startJetStream } from './services.ts';

type PoolStage = PoolStoreHarness & { readonly server: Service };

const inRealTime = { clock: systemClock, advance: (ms: number): Promise<void> => sleep(ms) };

export async function etcdStage(): Promise<PoolStage> {
  const server = await startEtcd();
  const endpoints = [`http://127.0.0.1:${server.port}`];
  const store = (clock: Clock) => etcdStore({ endpoints, clock, deadline: '2s' });
  return { ...inRealTime, server, store, stop: () => server.stop() };
}

export async function natsStage(): Promise<PoolStage & { readonly connection: NatsConnection }> {
  const server = await startJetStream();
  const options = { maxReconnectAttempts: -1, reconnectTimeWait: 50, reconnectJitter: 10 };
  const connection = await connect({ servers: `127.0.0.1:${server.port}`, ...options });
  const stop = async (): Promise<void> => {
    await connection.close();
    await server.stop();
  };
  const store = (clock: Clock) => natsStore(connection, { clock, deadline: '2s' });
  return { ...inRealTime, server, connection, store, stop };
}
