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
import type { PeerOptions } from '../../backends/peers/settings.ts';
import { isGroup, type UdpOptions, udp } from '../../backends/peers/udp-transport.ts';
import { ConfigError } from '../../core/errors.ts';
import { Fields, isRecord } from '../../core/options.ts';
import { readRedisUrl, safe } from './redis.ts';

export type TransportConfig =
  | { readonly kind: 'udp'; readonly options: UdpOptions }
  | { readonly kind: 'nats'; readonly servers: readonly string[]; readonly subject: string }
  | { readonly kind: 'redis'; readonly url: string; readonly channel: string };

export interface PeersConfig {
  readonly transport: TransportConfig;
  readonly key: string | undefined;
  readonly options: PeerOptions;
}

const WAYS = ['udp', 'nats', 'redis'] as const;

const SERVERS_MAX = 64;

/** Reads the section; undefined if there is none. What it holds is secret, and is not shown. */
export function readPeers(value: unknown, path: string): PeersConfig | undefined {
  if (value === undefined || value === false) return undefined;
  const expected = `an object with one of ${WAYS.join(', ')}`;
  if (!isRecord(value)) throw new ConfigError(path, expected, 'something else');
  const fields = Fields.patient(path, value);
  const ways = WAYS.filter((way) => fields.has(way));
  const options = readPeerOptions(fields);
  const key = fields.attempt(() => readKey(fields));
  const transport = fields.attempt(() => {
    const [way, ...others] = ways;
    if (way && others.length === 0) return READ[way](fields.raw(way), fields.at(way));
    throw new ConfigError(path, expected, ways.join(' and ') || 'none');
  });
  if (transport && !fields.has('key') && !isLoopback(transport)) {
    fields.complain(
      'key',
      'a secret that all of the fleet know (or SLUICE_PEERS_KEY), as it reaches further than this machine',
    );
  }
  fields.done();
  return { transport: transport as TransportConfig, key, options };
}

/** Whether nobody but this machine can take part. Who reaches a server between them always can. */
const isLoopback = (transport: TransportConfig): boolean =>
  transport.kind === 'udp' && udp(transport.options).isLoopback;

const READ: Readonly<
  Record<(typeof WAYS)[number], (value: unknown, path: string) => TransportConfig>
> = {
  udp(value, path) {
    const options = udpOptions(value);
    try {
      udp(options); // so that what is wrong with it is known now
    } catch (error) {
      if (!(error instanceof ConfigError)) throw error;
      throw error.within(path.slice(0, path.lastIndexOf('.')));
    }
    return { kind: 'udp', options };
  },

  nats(value, path) {
    const fields = Fields.patient(path, isRecord(value) ? value : { servers: value });
    const servers = readServers(fields);
    const subject =
      fields.optional('subject', isSubject, 'a subject without wildcards') ?? 'sluice.peers';
    fields.done();
    return { kind: 'nats', servers, subject };
  },

  redis(value, path) {
    const fields = Fields.patient(path, isRecord(value) ? value : { url: safe(value) });
    const url = fields.attempt(() =>
      readRedisUrl(isRecord(value) ? value.url : value, fields.at('url')),
    );
    fields.raw('url');
    const channel = fields.optional('channel', isText, 'a name') ?? 'sluice:peers';
    fields.done();
    return { kind: 'redis', url: url as string, channel };
  },
};

/** Addresses of NATS, whose passwords are not shown. */
export function readServers(fields: Fields): readonly string[] {
  const given = fields.raw('servers');
  const servers = Array.isArray(given) ? given : [given];
  const areServers = servers.length <= SERVERS_MAX && servers.every(isText);
  fields.attempt(() => {
    if (areServers && servers.length > 0) return;
    throw new ConfigError(fields.at('servers'), 'addresses such as nats://127.0.0.1:4222', '…');
  });
  return servers;
}

/** An address alone is a group if it can be one, else that of somebody. */
function udpOptions(value: unknown): UdpOptions {
  if (isRecord(value)) return value as unknown as UdpOptions;
  const only = Array.isArray(value) && value.length === 1 ? value[0] : value;
  return isText(only) && isGroup(only)
    ? { group: only }
    : ({ peers: value } as { peers: readonly string[] });
}

const isText = (value: unknown): value is string => typeof value === 'string' && value !== '';
