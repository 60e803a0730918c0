/** Limits that a fleet keeps without a server: `sluice/peers`. NATS has an entry of its own: `sluice/nats`. */

export type { PeerView } from '../share/peers/peers.ts';
export type { PeerCounts } from '../share/peers/voice.ts';
export type { FleetView } from './fleet.ts';
export { type Peers, type PeersOptions, peers } from './peers.ts';
export { redisChannel } from './redis.ts';
export type { Hear, Transport, TransportCounts } from './transport.ts';
export { type UdpGroupOptions, type UdpOptions, type UdpPeersOptions, udp } from './udp.ts';
