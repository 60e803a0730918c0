/**
 * Datagrams as they are: to a multicast group, or to each of a list of addresses.
 *
 *     udp({ group: '239.0.0.1:7613' })                         whoever is in the group
 *     udp({ peers: ['10.0.0.1:7613', '10.0.0.2:7613'] })       these
 *     udp({ peers: 'sluice.internal:7613' })                   all that the name stands for, looked up again and again
 *
 * Everything is sent from the socket that also hears, so an answer goes where the question came from. In
 * a group there is one more, as nodes on one machine share the group's port and a datagram to that port
 * alone would reach any of them:
 *
 *     group:port   ──▶ hears what is said to all
 *     own port     ──▶ says everything, hears what is said to this node
 */

import { lookup } from 'node:dns/promises';
import { isIP } from 'node:net';
import { type Clock, systemClock } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import { OptionReader } from '../../core/options.ts';
import { emitProcessWarning } from '../../core/process-warning.ts';
import {
  type Address,
  familyOf,
  isLinkScoped,
  isLoopbackHost,
  isMulticast,
  loopbackHostOf,
  parseHostPort,
  wildcardHostOf,
  zoneOf,
} from './address.ts';
import { AddressResolver, MAX_ADDRESSES, RESOLVE_RETRY_MS } from './resolver.ts';
import type { Transport } from './transport.ts';
import { UdpSockets } from './udp-sockets.ts';

/** To a group, or to a list of peers. */
export type UdpOptions = UdpGroupOptions | UdpPeersOptions;

/** A multicast group. */
export interface UdpGroupOptions {
  /** Group and port, such as `239.0.0.1:7613`, `[ff05::7613]:7613` or `[ff02::7613%eth0]:7613`. */
  readonly group: string;
  /** Address of the interface to use, for IPv6 with its name: `::%eth0`. `127.0.0.1`: this machine only. */
  readonly interface?: string;
  /** How many routers a datagram passes at most, plus one (default 1: none). */
  readonly ttl?: number;
  /** The port that answers come to (default: any that is free). */
  readonly answerPort?: number;
}

/** A list of addresses, or a name that stands for all of them. */
export interface UdpPeersOptions {
  /** Addresses or names with their port. A name stands for every address it resolves to. */
  readonly peers: string | readonly string[];
  /** Where to listen (default: the port of the first peer, on loopback if all peers are there). */
  readonly bind?: string;
  /** How often names are looked up again (default 30 s, at least 1 s). */
  readonly resolveEvery?: string | number;
}

/** What it takes from the world, for tests. */
export interface UdpDependencies {
  readonly clock?: Clock;
  /** All addresses of a name. */
  readonly resolve?: (name: string, family: 4 | 6) => Promise<readonly string[]>;
  /** Hears of a name that was never found, once. Default: a warning of the process. */
  readonly onUnresolved?: (name: string, reason: string) => void;
}

/** @throws {ConfigError} if an address makes no sense. */
export function udp(options: UdpOptions, dependencies: UdpDependencies = {}): Transport {
  const fields = new OptionReader('udp', options);
  const isGroup = fields.has('group');
  if (isGroup === fields.has('peers')) {
    throw new ConfigError('udp', 'an object with either `group` or `peers`', options);
  }
  return isGroup ? multicastTransport(fields) : unicastTransport(fields, dependencies);
}

function multicastTransport(fields: OptionReader): Transport {
  const text = String(fields.get('group'));
  const given = readHostPort(fields.pathOf('group'), text);
  if (!isMulticast(given.host)) fields.throwFor('group', 'a multicast address and a port');
  const face = fields.get('interface');
  const isFace = typeof face === 'string' && isIP(face.split('%')[0]) === isIP(given.host);
  if (face !== undefined && !isFace) {
    fields.throwFor(
      'interface',
      `the address of an interface, as ${exampleInterfaceOf(given.host)}`,
    );
  }
  // Such an address of IPv6 means nothing without the link it is on, and either of the two may name it.
  const link = zoneOf(String(face ?? '')) ?? zoneOf(given.host);
  if (link === undefined && isLinkScoped(given.host)) {
    fields.throwFor('group', 'a group with its interface, such as `[ff02::7613%eth0]:7613`');
  }
  const zone = link === undefined ? '' : `%${link}`;
  const group = { host: given.host.split('%')[0] + zone, port: given.port };
  const own = (face as string | undefined) ?? (link === undefined ? undefined : `::${zone}`);
  const ttl = fields.number('ttl', { min: 0, max: 255, integer: true }, 1);
  const port = fields.number('answerPort', { min: 0, max: 65_535, integer: true }, 0);
  fields.finish();
  const isLoopback = own !== undefined && isLoopbackHost(own.split('%')[0]);
  const sockets = new UdpSockets(`udp ${text}`, isLoopback, familyOf(group.host));
  return {
    ...sockets.transportBase(),
    async open(onDatagram) {
      await sockets.open(onDatagram, async () => {
        const all = await sockets.bindSocket(group);
        if (own === undefined) all.addMembership(group.host);
        else all.addMembership(group.host, own);
        const host = isLoopback ? own.split('%')[0] : wildcardHostOf(group.host);
        const sendSocket = await sockets.bindSocket({ host, port });
        if (own !== undefined) sendSocket.setMulticastInterface(own);
        sendSocket.setMulticastTTL(ttl);
        sendSocket.setMulticastLoopback(true); // others on this machine want to hear it too
        return sendSocket;
      });
    },
    broadcast: (bytes) => sockets.send(group, bytes),
  };
}

function unicastTransport(fields: OptionReader, dependencies: UdpDependencies): Transport {
  const {
    clock = systemClock,
    resolve = resolveByDns,
    onUnresolved = warnUnresolved,
  } = dependencies;
  const given = fields.get('peers');
  const texts: readonly unknown[] = Array.isArray(given) ? given : [given];
  if (texts.length === 0 || texts.length > MAX_ADDRESSES) {
    fields.throwFor('peers', `1 to ${MAX_ADDRESSES} addresses`);
  }
  const peers = texts.map((text, n) =>
    readHostPort(
      Array.isArray(given) ? `${fields.pathOf('peers')}[${n}]` : fields.pathOf('peers'),
      text,
    ),
  );
  if (peers.some(({ host }) => isMulticast(host))) {
    fields.throwFor('peers', 'no groups: a node is in one, which is `group`');
  }
  const areLoopback = peers.every(({ host }) => isLoopbackHost(host));
  const bind = fields.has('bind')
    ? readHostPort(fields.pathOf('bind'), fields.get('bind'))
    : {
        host: areLoopback ? loopbackHostOf(peers[0].host) : wildcardHostOf(peers[0].host),
        port: peers[0].port,
      };
  if (isIP(bind.host) === 0) fields.throwFor('bind', 'an address of this machine, and a port');
  const stranger = peers.find(
    ({ host }) => isIP(host) !== 0 && familyOf(host) !== familyOf(bind.host),
  );
  if (stranger) fields.throwFor('peers', `addresses like ${bind.host}, all of IPv4 or all of IPv6`);
  const refreshMs = Math.max(RESOLVE_RETRY_MS, fields.duration('resolveEvery', 30_000));
  fields.finish();
  const isLoopback = areLoopback && isLoopbackHost(bind.host);
  const sockets = new UdpSockets(`udp ${texts.join(' ')}`, isLoopback, familyOf(bind.host));
  const resolver = new AddressResolver(peers, {
    clock,
    refreshMs,
    onUnresolved,
    resolve: (name) => resolve(name, familyOf(bind.host)),
    isOpen: () => sockets.isOpen,
    isSelf: (address) => sockets.isSelf(address),
  });
  return {
    ...sockets.transportBase(),
    async open(onDatagram) {
      await sockets.open(onDatagram, () => sockets.bindSocket(bind));
      await resolver.refresh();
    },
    broadcast(bytes) {
      for (const address of resolver.addresses) sockets.send(address, bytes);
    },
    async close() {
      resolver.close();
      await sockets.close();
    },
  };
}

const warnUnresolved = (name: string, reason: string): void =>
  emitProcessWarning('PEERS', `peers cannot be found: ${name}: ${reason}`, name);

const resolveByDns = async (name: string, family: 4 | 6): Promise<readonly string[]> =>
  (await lookup(name, { all: true, family })).map(({ address }) => address);

const exampleInterfaceOf = (host: string): string =>
  familyOf(host) === 6 ? '`::%eth0`' : '`192.168.1.7`';

/** Whether `host:port` is the address of a group. */
export const isMulticastAddress = (text: string): boolean =>
  isMulticast(parseHostPort(text)?.host ?? '');

function readHostPort(field: string, value: unknown): Address {
  const address = typeof value === 'string' ? parseHostPort(value) : undefined;
  if (address) return address;
  throw new ConfigError(field, 'a host and a port, such as `10.0.0.1:7613`', value);
}
