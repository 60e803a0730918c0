/**
 * A fleet that keeps limits together, as a configuration spells it: how its daemons reach each other, and
 * the options of `sluice/peers`.
 *
 *     peers:
 *       udp: 239.0.0.1:7613                           # a group
 *       udp: [10.0.0.1:7613, 10.0.0.2:7613]           # or a list, or a name
 *       udp: { group: 239.0.0.1:7613, ttl: 4 }        # or with options of its own
 *       nats: { servers: nats://10.0.0.9:4222, subject: sluice.peers }
 *       redis: { url: redis://10.0.0.9:6379, channel: sluice:peers }
 *       key: at-least-sixteen-characters
 */

import { isSubject } from '../../backends/peers/nats-subject.ts';
import { readKey, readPeerOptions } from '../../backends/peers/options.ts';
import type { PeerOptions } from '../../backends/peers/context.ts';
import { isMulticastAddress, type UdpOptions, udp } from '../../backends/peers/udp-transport.ts';
import { ConfigError } from '../../core/errors.ts';
import { isRecord, OptionReader } from '../../core/options.ts';
import { readRedisUrl, redactIfUrl } from './redis.ts';

export type TransportConfig =
  | { readonly kind: 'udp'; readonly options: UdpOptions }
  | { readonly kind: 'nats'; readonly servers: readonly string[]; readonly subject: string }
  | { readonly kind: 'redis'; readonly url: string; readonly channel: string };

export interface PeersConfig {
  readonly transport: TransportConfig;
  readonly key: string | undefined;
  readonly options: PeerOptions;
}

const TRANSPORTS = ['udp', 'nats', 'redis'] as const;

const MAX_SERVERS = 64;

/** Reads the section; undefined if there is none. What it holds is secret, and is not shown. */
export function readPeers(value: unknown, path: string): PeersConfig | undefined {
  if (value === undefined || value === false) return undefined;
  const expected = `an object with one of ${TRANSPORTS.join(', ')}`;
  if (!isRecord(value)) throw new ConfigError(path, expected, 'something else');
  const fields = OptionReader.collecting(path, value);
  const ways = TRANSPORTS.filter((way) => fields.has(way));
  const options = readPeerOptions(fields);
  const key = fields.tryRead(() => readKey(fields));
  const transport = fields.tryRead(() => {
    const [way, ...others] = ways;
    if (way && others.length === 0)
      return TRANSPORT_READERS[way](fields.get(way), fields.pathOf(way));
    throw new ConfigError(path, expected, ways.join(' and ') || 'none');
  });
  if (transport && !fields.has('key') && !isLoopback(transport)) {
    fields.report(
      'key',
      'a secret that all of the fleet know (or SLUICE_PEERS_KEY), as it reaches further than this machine',
    );
  }
  fields.finish();
  return { transport: transport as TransportConfig, key, options };
}

/** Whether nobody but this machine can take part. Who reaches a server between them always can. */
const isLoopback = (transport: TransportConfig): boolean =>
  transport.kind === 'udp' && udp(transport.options).isLoopback;

const TRANSPORT_READERS: Readonly<
  Record<(typeof TRANSPORTS)[number], (value: unknown, path: string) => TransportConfig>
> = {
  udp(value, path) {
    const options = udpOptionsOf(value);
    try {
      udp(options); // so that what is wrong with it is known now
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      throw error.prefixedWith(path.slice(0, path.lastIndexOf('.')));
    }
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
    const fields = OptionReader.collecting(
      path,
      isRecord(value) ? value : { url: redactIfUrl(value) },
    );
    const url = fields.tryRead(() =>
      readRedisUrl(isRecord(value) ? value.url : value, fields.pathOf('url')),
    );
    fields.get('url');
    const channel = fields.optional('channel', isNonEmptyString, 'a name') ?? 'sluice:peers';
    fields.finish();
    return { kind: 'redis', url: url as string, channel };
  },
};

/** Addresses of NATS, whose passwords are not shown. */
export function readNatsServers(fields: OptionReader): readonly string[] {
  const given = fields.get('servers');
  const servers = Array.isArray(given) ? given : [given];
  const areServers = servers.length <= MAX_SERVERS && servers.every(isNonEmptyString);
  fields.tryRead(() => {
    if (areServers && servers.length > 0) return;
    throw new ConfigError(fields.pathOf('servers'), 'addresses such as nats://127.0.0.1:4222', '…');
  });
  return servers;
}

/** An address alone is a group if it can be one, else that of somebody. */
function udpOptionsOf(value: unknown): UdpOptions {
  if (isRecord(value)) return value as unknown as UdpOptions;
  const only = Array.isArray(value) && value.length === 1 ? value[0] : value;
  return isNonEmptyString(only) && isMulticastAddress(only)
    ? { group: only }
    : ({ peers: value } as { peers: readonly string[] });
}

const isNonEmptyString = (value: unknown): value is string =>
  typeof value === 'string' && value !== '';
