import {
  isNonEmptyString,
  readOnlyField,
  secretSection,
  withConfigPath,
} from '../../core/config-helpers.ts';
import { isRecord, OptionReader } from '../../core/options.ts';
import { readNatsServers, readRedisServer } from '../connections/server-url.ts';
import type { PeerOptions } from './context.ts';
import type { FleetSecrets } from './datagram-auth.ts';
import { isSubject } from './nats-subject.ts';
import { readPeerOptions, readSecrets } from './options.ts';
import { isMulticastAddress, type UdpOptions, udp } from './udp-transport.ts';

export type TransportConfig =
  | { readonly kind: 'udp'; readonly options: UdpOptions }
  | { readonly kind: 'nats'; readonly servers: readonly string[]; readonly subject: string }
  | { readonly kind: 'redis'; readonly url: string; readonly channel: string };

export interface PeersConfig {
  readonly transport: TransportConfig;
  readonly secrets: FleetSecrets;
  readonly options: PeerOptions;
}

/** Reads the section. Its values may be secret, so errors omit them. */
export function readPeersConfig(value: unknown, path: string): PeersConfig {
  const fields = secretSection(path, value, 'an object with one of udp, nats, redis');
  const transport = readOnlyField(fields, TRANSPORT_READERS);
  const options = readPeerOptions(fields);
  const secrets = fields.tryRead(() => readSecrets(fields));
  if (transport && !fields.has('key') && !isLoopback(transport)) {
    const reason = 'other machines can reach this transport';
    fields.report('key', `a secret that all of the fleet know (or SLUICE_PEERS_KEY): ${reason}`);
  }
  fields.finish();
  return { transport: transport as TransportConfig, secrets: secrets as FleetSecrets, options };
}

/** Whether only this machine can take part. A NATS or Redis server may have clients on other machines. */
const isLoopback = (transport: TransportConfig): boolean =>
  transport.kind === 'udp' && udp(transport.options).isLoopback;

const TRANSPORT_READERS: Readonly<
  Record<TransportConfig['kind'], (value: unknown, path: string) => TransportConfig>
> = {
  udp(value, path) {
    const options = udpOptionsOf(value);
    withConfigPath(path.slice(0, path.lastIndexOf('.')), () => udp(options)); // validates the options
    return { kind: 'udp', options };
  },

  nats(value, path) {
    const fields = OptionReader.collecting(path, isRecord(value) ? value : { servers: value });
    const servers = readNatsServers(fields);
    const subject =
      fields.optional('subject', isSubject, 'a subject without wildcards') ?? 'sluice.peers';
    fields.finish();
    return { kind: 'nats', servers, subject };
  },

  redis(value, path) {
    const { url, fields } = readRedisServer(value, path);
    const channel = fields.optional('channel', isNonEmptyString, 'a name') ?? 'sluice:peers';
    fields.finish();
    return { kind: 'redis', url, channel };
  },
};

/** Reads UDP options. A single address is a multicast group if it is in the multicast range, otherwise a node. */
function udpOptionsOf(value: unknown): UdpOptions {
  if (isRecord(value)) return value as unknown as UdpOptions;
  const only = Array.isArray(value) && value.length === 1 ? value[0] : value;
  return isNonEmptyString(only) && isMulticastAddress(only)
    ? { group: only }
    : ({ peers: value } as { peers: readonly string[] });
}
