export type { EtcdConnectionOptions } from './endpoints.ts';
export type { EtcdOnUnavailable } from './operations.ts';
export { type EtcdOptions, etcd } from './options.ts';
export type { EtcdTls } from './transport.ts';
