/** Processes that split a limit and agree how many they are: `sluice/pool`. */

export type { EtcdTls } from '../etcd/http.ts';
export type { AgreementOptions, Claim, SyncAnswer, SyncRequest } from '../share/pool/agreement.ts';
export { memoryStore } from '../share/pool/memory.ts';
export type { PoolEvent, PoolFallback, PoolListener, PoolView } from '../share/pool/pool.ts';
export { type RedisStoreOptions, redisStore } from '../share/pool/redis.ts';
export type { PoolMemberRecord, PoolStore } from '../share/pool/store.ts';
export { type DnsPoolOptions, dnsPool } from './dns.ts';
export { type EtcdStoreOptions, etcdStore } from './etcd.ts';
export { type Environment, fixedPool, poolFromEnvironment } from './fixed.ts';
export { type PoolOptions, type PoolPlace, pool } from './pool.ts';
