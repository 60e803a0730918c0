/** Exports of `sluice/etcd`. */

export type { EtcdOnUnavailable } from './backend.ts';
export type { EtcdConnectionOptions } from './endpoints.ts';
export { type EtcdOptions, etcd } from './options.ts';
export type { EtcdTls } from './transport.ts';
