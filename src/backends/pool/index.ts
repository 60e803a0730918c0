/** The pool backend: processes divide a limit and agree on their number (`sluice/pool`). */

export type { EtcdTls } from '../etcd/transport.ts';
export type { AgreementOptions, Claim, SyncRequest, SyncResponse } from './agreement.ts';
export { type DnsPoolOptions, dnsPool } from './dns-size.ts';
export { type EtcdStoreOptions, etcdStore } from './etcd-store.ts';
export { memoryStore } from './memory-store.ts';
export { type PoolMembership, type PoolOptions, pool } from './options.ts';
export type { PoolEvent, PoolListener, PoolOnUnavailable, PoolView } from './pool.ts';
export { type RedisStoreOptions, redisStore } from './redis-store.ts';
export { type Environment, fixedPool, poolFromEnvironment } from './static-size.ts';
export type { PoolMemberRecord, PoolStore } from './store.ts';
