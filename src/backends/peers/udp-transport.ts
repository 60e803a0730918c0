/**
 * Transport over UDP, to a multicast group or to each address of a list.
 *
 *     udp({ group: '239.0.0.1:7613' })                         all members of the group
 *     udp({ peers: ['10.0.0.1:7613', '10.0.0.2:7613'] })       these addresses
 *     udp({ peers: 'sluice.internal:7613' })                   all addresses of the name, resolved periodically
 *
 * Datagrams are sent from a socket that also receives, so a reply goes to the source of the request. A group needs a
 * second socket: nodes on one machine share the group's port, and a unicast datagram to it would reach any of them.
 *
 *     group:port        ──▶ receives broadcasts
 *     replyPort         ──▶ sends all datagrams, receives unicast datagrams
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
import { MAX_PEERS } from './messages.ts';
import { createResolver, RESOLVE_RETRY_MS } from './resolver.ts';
import type { Transport } from './transport.ts';
import { udpTransport } from './udp-sockets.ts';

/** A multicast group or a list of peers. */
export type UdpOptions = UdpGroupOptions | UdpPeersOptions;

/** A multicast group. */
export interface UdpGroupOptions {
  /** Group and port, such as `239.0.0.1:7613`, `[ff05::7613]:7613` or `[ff02::7613%eth0]:7613`. */
  readonly group: string;
  /** Address of the interface, for IPv6 with its name: `::%eth0`. `127.0.0.1`: this machine only. */
  readonly interface?: string | undefined;
  /** Multicast TTL: the number of network hops (default 1: no router). */
  readonly ttl?: number | undefined;
  /** Port for replies (default: any free port). */
  readonly replyPort?: number | undefined;
}

/** A list of addresses, or a name that resolves to all of them. */
export interface UdpPeersOptions {
  /** Addresses or names, with port. A name stands for all addresses to which it resolves. */
  readonly peers: string | readonly string[];
  /** Listening address. Default: the port of the first peer, on loopback if all peers are. */
  readonly bind?: string | undefined;
  /** Interval of DNS lookups (default 30 s, at least 1 s). */
  readonly resolveEvery?: string | number | undefined;
}

/** Dependencies that tests replace. */
export interface UdpDependencies {
  readonly clock?: Clock;
  readonly resolve?: (name: string, family: 4 | 6) => Promise<readonly string[]>;
  /** Called once for a name that has never resolved. Default: a process warning. */
  readonly onUnresolved?: (name: string, reason: string) => void;
}

/** Creates a transport for `peers`. @throws {ConfigError} if an address is invalid. */
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
  const address = readHostPort(fields.pathOf('group'), text);
  if (!isMulticast(address.host)) fields.throwFor('group', 'a multicast address and a port');
  const interfaceOption = fields.get('interface');
  const isInterface =
    typeof interfaceOption === 'string' &&
    isIP(interfaceOption.split('%')[0]) === isIP(address.host);
  if (interfaceOption !== undefined && !isInterface) {
    const example = familyOf(address.host) === 6 ? '`::%eth0`' : '`192.168.1.7`';
    fields.throwFor('interface', `the address of an interface, such as ${example}`);
  }
  // A link-scoped IPv6 group needs its link; either of the two options may contain it.
  const link = zoneOf(String(interfaceOption ?? '')) ?? zoneOf(address.host);
  if (link === undefined && isLinkScoped(address.host)) {
    fields.throwFor('group', 'a group with its interface, such as `[ff02::7613%eth0]:7613`');
  }
  const zone = link === undefined ? '' : `%${link}`;
  const group = { host: address.host.split('%')[0] + zone, port: address.port };
  const interfaceAddress =
    (interfaceOption as string | undefined) ?? (link === undefined ? undefined : `::${zone}`);
  const ttl = fields.number('ttl', { min: 0, max: 255, integer: true }, 1);
  const port = fields.number('replyPort', { min: 0, max: 65_535, integer: true }, 0);
  fields.finish();
  const isLoopback =
    interfaceAddress !== undefined && isLoopbackHost(interfaceAddress.split('%')[0]);
  const targets = [group];
  return udpTransport({
    name: `udp ${text}`,
    isLoopback,
    family: familyOf(group.host),
    async bind(bindSocket) {
      const groupSocket = await bindSocket(group);
      if (interfaceAddress === undefined) groupSocket.addMembership(group.host);
      else groupSocket.addMembership(group.host, interfaceAddress);
      const host = isLoopback ? interfaceAddress.split('%')[0] : wildcardHostOf(group.host);
      const sendSocket = await bindSocket({ host, port });
      if (interfaceAddress !== undefined) sendSocket.setMulticastInterface(interfaceAddress);
      sendSocket.setMulticastTTL(ttl);
      sendSocket.setMulticastLoopback(true); // for other nodes on this machine
      return sendSocket;
    },
    targets: () => targets,
  });
}

function unicastTransport(fields: OptionReader, dependencies: UdpDependencies): Transport {
  const { clock = systemClock, resolve = resolveByDns } = dependencies;
  const { onUnresolved = warnUnresolved } = dependencies;
  const listed = fields.get('peers');
  const texts: readonly unknown[] = Array.isArray(listed) ? listed : [listed];
  if (texts.length === 0 || texts.length > MAX_PEERS) {
    fields.throwFor('peers', `1 to ${MAX_PEERS} addresses`);
  }
  const path = fields.pathOf('peers');
  const peers = texts.map((text, n) =>
    readHostPort(Array.isArray(listed) ? `${path}[${n}]` : path, text),
  );
  if (peers.some(({ host }) => isMulticast(host))) {
    fields.throwFor('peers', 'unicast addresses; a multicast group goes into `group`');
  }
  const areLoopback = peers.every(({ host }) => isLoopbackHost(host));
  const bind = fields.has('bind')
    ? readHostPort(fields.pathOf('bind'), fields.get('bind'))
    : {
        host: areLoopback ? loopbackHostOf(peers[0].host) : wildcardHostOf(peers[0].host),
        port: peers[0].port,
      };
  if (isIP(bind.host) === 0) fields.throwFor('bind', 'an IP address of this machine and a port');
  const mismatch = peers.find(
    ({ host }) => isIP(host) !== 0 && familyOf(host) !== familyOf(bind.host),
  );
  if (mismatch) fields.throwFor('peers', `addresses of the same IP family as ${bind.host}`);
  const refreshMs = Math.max(RESOLVE_RETRY_MS, fields.duration('resolveEvery', 30_000));
  fields.finish();
  const family = familyOf(bind.host);
  const transport = udpTransport({
    name: `udp ${texts.join(' ')}`,
    isLoopback: areLoopback && isLoopbackHost(bind.host),
    family,
    bind: (bindSocket) => bindSocket(bind),
    targets: () => resolver.addresses,
    onOpen: () => resolver.refresh(),
    onClose: () => resolver.close(),
  });
  const resolver = createResolver(peers, {
    clock,
    refreshMs,
    onUnresolved,
    resolve: (name) => resolve(name, family),
    isOpen: transport.isOpen,
    isSelf: transport.isSelf,
  });
  return transport;
}

const warnUnresolved = (name: string, reason: string): void =>
  emitProcessWarning('PEERS', `peer name does not resolve: ${name}: ${reason}`, name);

const resolveByDns = async (name: string, family: 4 | 6): Promise<readonly string[]> =>
  (await lookup(name, { all: true, family })).map(({ address }) => address);

export const isMulticastAddress = (text: string): boolean =>
  isMulticast(parseHostPort(text)?.host ?? '');

function readHostPort(field: string, value: unknown): Address {
  const address = typeof value === 'string' ? parseHostPort(value) : undefined;
  if (address) return address;
  throw new ConfigError(field, 'a host and a port, such as `10.0.0.1:7613`', value);
}
