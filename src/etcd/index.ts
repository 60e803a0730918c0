/** The door of `sluice/etcd`. */

export type { OnNoQuorum } from '../share/etcd/share.ts';
export { type EtcdOptions, etcd } from './etcd.ts';
export type { EtcdTls } from './http.ts';
export type { EtcdPlace } from './place.ts';
