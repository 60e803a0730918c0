/** Limits that a fleet keeps without a server: `sluice/peers`. */

export type { FleetView } from './fleet.ts';
export { type Peers, type PeersOptions, peers } from './peers.ts';
export type { Transport } from './transport.ts';
