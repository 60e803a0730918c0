/** Exports of `sluice/etcd`. */

export type { OnNoQuorum } from './backend.ts';
export type { EtcdConnectionOptions } from './endpoints.ts';
export { type EtcdOptions, etcd } from './options.ts';
export type { EtcdTls } from './transport.ts';
