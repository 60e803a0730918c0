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
import { Fields } from '../../core/options.ts';
import { warn } from '../../core/process-warning.ts';
import {
  type Address,
  addressIn,
  anyOf,
  familyOf,
  isLoopbackHost,
  isMulticast,
  isOfOneLink,
  loopbackOf,
  zoneOf,
} from './address.ts';
import { ADDRESSES_MAX, RESOLVE_AGAIN_MS, Reach } from './resolver.ts';
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
export interface UdpWorld {
  readonly clock?: Clock;
  /** All addresses of a name. */
  readonly resolve?: (name: string, family: 4 | 6) => Promise<readonly string[]>;
  /** Hears of a name that was never found, once. Default: a warning of the process. */
  readonly onMissing?: (name: string, reason: string) => void;
}

/** @throws {ConfigError} if an address makes no sense. */
export function udp(options: UdpOptions, world: UdpWorld = {}): Transport {
  const fields = new Fields('udp', options);
  const isGroup = fields.has('group');
  if (isGroup === fields.has('peers')) {
    throw new ConfigError('udp', 'an object with either `group` or `peers`', options);
  }
  return isGroup ? groupOf(fields) : peersOf(fields, world);
}

function groupOf(fields: Fields): Transport {
  const text = String(fields.raw('group'));
  const given = addressOf(fields.at('group'), text);
  if (!isMulticast(given.host)) fields.fail('group', 'a multicast address and a port');
  const face = fields.raw('interface');
  const isFace = typeof face === 'string' && isIP(face.split('%')[0]) === isIP(given.host);
  if (face !== undefined && !isFace) {
    fields.fail('interface', `the address of an interface, as ${exampleOf(given.host)}`);
  }
  // Such an address of IPv6 means nothing without the link it is on, and either of the two may name it.
  const link = zoneOf(String(face ?? '')) ?? zoneOf(given.host);
  if (link === undefined && isOfOneLink(given.host)) {
    fields.fail('group', 'a group with its interface, such as `[ff02::7613%eth0]:7613`');
  }
  const zone = link === undefined ? '' : `%${link}`;
  const group = { host: given.host.split('%')[0] + zone, port: given.port };
  const own = (face as string | undefined) ?? (link === undefined ? undefined : `::${zone}`);
  const ttl = fields.number('ttl', { min: 0, max: 255, whole: true }, 1);
  const port = fields.number('answerPort', { min: 0, max: 65_535, whole: true }, 0);
  fields.done();
  const isLoopback = own !== undefined && isLoopbackHost(own.split('%')[0]);
  const sockets = new UdpSockets(`udp ${text}`, isLoopback, familyOf(group.host));
  return {
    ...sockets.common(),
    async open(hear) {
      await sockets.open(hear, async () => {
        const all = await sockets.socket(group);
        if (own === undefined) all.addMembership(group.host);
        else all.addMembership(group.host, own);
        const host = isLoopback ? own.split('%')[0] : anyOf(group.host);
        const speaker = await sockets.socket({ host, port });
        if (own !== undefined) speaker.setMulticastInterface(own);
        speaker.setMulticastTTL(ttl);
        speaker.setMulticastLoopback(true); // others on this machine want to hear it too
        return speaker;
      });
    },
    broadcast: (bytes) => sockets.put(group, bytes),
  };
}

function peersOf(fields: Fields, world: UdpWorld): Transport {
  const { clock = systemClock, resolve = resolveByDns, onMissing = warnOfMissing } = world;
  const given = fields.raw('peers');
  const texts: readonly unknown[] = Array.isArray(given) ? given : [given];
  if (texts.length === 0 || texts.length > ADDRESSES_MAX) {
    fields.fail('peers', `1 to ${ADDRESSES_MAX} addresses`);
  }
  const peers = texts.map((text, n) =>
    addressOf(Array.isArray(given) ? `${fields.at('peers')}[${n}]` : fields.at('peers'), text),
  );
  if (peers.some(({ host }) => isMulticast(host))) {
    fields.fail('peers', 'no groups: a node is in one, which is `group`');
  }
  const areLoopback = peers.every(({ host }) => isLoopbackHost(host));
  const bind = fields.has('bind')
    ? addressOf(fields.at('bind'), fields.raw('bind'))
    : { host: areLoopback ? loopbackOf(peers[0].host) : anyOf(peers[0].host), port: peers[0].port };
  if (isIP(bind.host) === 0) fields.fail('bind', 'an address of this machine, and a port');
  const stranger = peers.find(
    ({ host }) => isIP(host) !== 0 && familyOf(host) !== familyOf(bind.host),
  );
  if (stranger) fields.fail('peers', `addresses like ${bind.host}, all of IPv4 or all of IPv6`);
  const everyMs = Math.max(RESOLVE_AGAIN_MS, fields.duration('resolveEvery', 30_000));
  fields.done();
  const isLoopback = areLoopback && isLoopbackHost(bind.host);
  const sockets = new UdpSockets(`udp ${texts.join(' ')}`, isLoopback, familyOf(bind.host));
  const reach = new Reach(peers, {
    clock,
    everyMs,
    onMissing,
    resolve: (name) => resolve(name, familyOf(bind.host)),
    isOpen: () => sockets.isOpen,
    isOwn: (address) => sockets.isOwn(address),
  });
  return {
    ...sockets.common(),
    async open(hear) {
      await sockets.open(hear, () => sockets.socket(bind));
      await reach.look();
    },
    broadcast(bytes) {
      for (const address of reach.addresses) sockets.put(address, bytes);
    },
    async close() {
      reach.close();
      await sockets.close();
    },
  };
}

const warnOfMissing = (name: string, reason: string): void =>
  warn('PEERS', `peers cannot be found: ${name}: ${reason}`, name);

const resolveByDns = async (name: string, family: 4 | 6): Promise<readonly string[]> =>
  (await lookup(name, { all: true, family })).map(({ address }) => address);

const exampleOf = (host: string): string => (familyOf(host) === 6 ? '`::%eth0`' : '`192.168.1.7`');

/** Whether `host:port` is the address of a group. */
export const isGroup = (text: string): boolean => isMulticast(addressIn(text)?.host ?? '');

function addressOf(field: string, value: unknown): Address {
  const address = typeof value === 'string' ? addressIn(value) : undefined;
  if (address) return address;
  throw new ConfigError(field, 'a host and a port, such as `10.0.0.1:7613`', value);
}
