export type { FleetView } from './node.ts';
export { type PeersMembership, type PeersOptions, peers } from './options.ts';
export type { PeerView } from './peer-table.ts';
export { redisChannel } from './redis-transport.ts';
export type { PeerCounts } from './sender.ts';
export type { DatagramHandler, Transport, TransportCounts } from './transport.ts';
export {
  type UdpGroupOptions,
  type UdpOptions,
  type UdpPeersOptions,
  udp,
} from './udp-transport.ts';
