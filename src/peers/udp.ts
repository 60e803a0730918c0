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

import { createSocket, type RemoteInfo, type Socket } from 'node:dgram';
import { lookup } from 'node:dns/promises';
import { isIP, isIPv6 } from 'node:net';
import { alarm, type Clock, type Millis, systemClock } from '../clock.ts';
import { ConfigError, reasonOf } from '../errors.ts';
import { Fields } from '../options.ts';
import { warn } from '../warning.ts';
import { type Hear, noCounts, SENDING_BYTES_MAX, type Transport } from './transport.ts';

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

/** Addresses a node sends to at most; those beyond are not sent to. */
const ADDRESSES_MAX = 4096;

/** A name that could not be looked up is tried again so soon, and keeps the addresses it had. */
const RESOLVE_AGAIN_MS: Millis = 1000;

/** Bytes that may wait to be read: a fleet may speak all at once. */
const RECEIVE_BUFFER_BYTES = 4 * 1024 * 1024;

interface Address {
  readonly host: string;
  readonly port: number;
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
  const wire = new Wire(`udp ${text}`, isLoopback, familyOf(group.host));
  return {
    ...wire.common(),
    async open(hear) {
      await wire.open(hear, async () => {
        const all = await wire.socket(group);
        if (own === undefined) all.addMembership(group.host);
        else all.addMembership(group.host, own);
        const host = isLoopback ? own.split('%')[0] : anyOf(group.host);
        const speaker = await wire.socket({ host, port });
        if (own !== undefined) speaker.setMulticastInterface(own);
        speaker.setMulticastTTL(ttl);
        speaker.setMulticastLoopback(true); // others on this machine want to hear it too
        return speaker;
      });
    },
    broadcast: (bytes) => wire.put(group, bytes),
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
  const wire = new Wire(`udp ${texts.join(' ')}`, isLoopback, familyOf(bind.host));
  const names = peers.filter(({ host }) => isIP(host) === 0);
  const found = new Map<Address, readonly Address[]>();
  const missing = new Set<string>();
  let everybody: readonly Address[] = [];
  let cancel = (): void => {};

  const gather = (): void => {
    const all = new Map<string, Address>();
    for (const peer of peers) {
      for (const own of found.get(peer) ?? (isIP(peer.host) ? [peer] : [])) {
        if (all.size < ADDRESSES_MAX && !wire.isOwn(own)) all.set(textOf(own), own);
      }
    }
    everybody = [...all.values()];
  };
  const look = async (peer: Address): Promise<boolean> => {
    try {
      const hosts = await resolve(peer.host, familyOf(bind.host));
      found.set(
        peer,
        hosts.map((host) => ({ host, port: peer.port })),
      );
      if (hosts.length > 0) return true;
      throw new Error('it has no address');
    } catch (error) {
      // One that was known goes on as it was; one that never was may be misspelt.
      const isKnown = (found.get(peer) ?? []).length > 0;
      if (!isKnown && !missing.has(peer.host)) onMissing(peer.host, reasonOf(error));
      if (!isKnown) missing.add(peer.host);
      return false;
    }
  };
  const lookAll = async (): Promise<void> => {
    const areFound = await Promise.all(names.map(look));
    if (!wire.isOpen) return;
    gather();
    if (names.length === 0) return;
    const afterMs = areFound.includes(false) ? RESOLVE_AGAIN_MS : everyMs;
    cancel = alarm(clock, clock.now() + afterMs, () => void lookAll(), false);
  };
  return {
    ...wire.common(),
    async open(hear) {
      await wire.open(hear, () => wire.socket(bind));
      await lookAll();
    },
    broadcast(bytes) {
      for (const peer of everybody) wire.put(peer, bytes);
    },
    async close() {
      cancel();
      await wire.close();
    },
  };
}

/** The sockets of one transport: what comes in, what goes out, and what went wrong. */
class Wire {
  readonly #name: string;
  readonly #isLoopback: boolean;
  readonly #family: 4 | 6;
  readonly #sockets: Socket[] = [];
  readonly #counts = noCounts();
  #speaker: Socket | undefined;
  #own: Address | undefined;
  #hear: Hear | undefined;
  /** How often it was closed: whoever opens it sees whether that happened meanwhile. */
  #closings = 0;

  constructor(name: string, isLoopback: boolean, family: 4 | 6) {
    this.#name = name;
    this.#isLoopback = isLoopback;
    this.#family = family;
  }

  get isOpen(): boolean {
    return this.#hear !== undefined;
  }

  /** What is the same for groups and lists. */
  common(): Pick<Transport, 'name' | 'isLoopback' | 'counts' | 'send' | 'close'> {
    return {
      name: this.#name,
      isLoopback: this.#isLoopback,
      counts: this.#counts,
      send: (to, bytes) => {
        const address = addressIn(to);
        if (address) this.put(address, bytes);
        else this.#counts.failed++;
      },
      close: () => this.close(),
    };
  }

  async open(hear: Hear, sockets: () => Promise<Socket>): Promise<void> {
    const closings = this.#closings;
    try {
      const speaker = await sockets();
      if (closings !== this.#closings) throw new Error('it was closed before it was open');
      this.#speaker = speaker;
    } catch (error) {
      await this.close();
      throw error;
    }
    const { address, port } = this.#speaker.address();
    this.#own = { host: address, port };
    this.#hear = hear;
  }

  /** One that hears at an address. */
  async socket({ host, port }: Address): Promise<Socket> {
    const socket = createSocket({
      type: this.#family === 6 ? 'udp6' : 'udp4',
      reuseAddr: isMulticast(host),
      // Only addresses come here; looking them up would cost a turn of the loop for each datagram.
      lookup: (own, _options, tell) => tell(null, own, this.#family),
    });
    socket.unref(); // to hear what others do is no reason for a process to go on
    this.#sockets.push(socket);
    socket.on('message', (bytes, from) => this.#arrive(bytes, from));
    await new Promise<void>((ready, fail) => {
      socket.once('error', fail);
      socket.bind({ address: host, port }, () => {
        socket.off('error', fail);
        socket.on('error', () => this.#counts.failed++);
        ready();
      });
    });
    try {
      socket.setRecvBufferSize(RECEIVE_BUFFER_BYTES);
    } catch {
      // then the system's own will have to do
    }
    return socket;
  }

  #arrive(bytes: Uint8Array, { address, port }: RemoteInfo): void {
    // Nobody else should be able to get here; should the system see that otherwise, it ends here.
    if (this.#isLoopback && !isLoopbackHost(address)) return;
    if (!this.#hear) return;
    this.#counts.heard++;
    this.#hear(bytes, textOf({ host: address, port }));
  }

  put({ host, port }: Address, bytes: Uint8Array): void {
    const speaker = this.#speaker;
    if (!speaker) return;
    if (this.#isLoopback && !isLoopbackHost(host) && !isMulticast(host)) return;
    const counts = this.#counts;
    try {
      if (speaker.getSendQueueSize() > SENDING_BYTES_MAX) {
        counts.dropped++;
        return;
      }
      speaker.send(bytes, port, host, (error) => {
        if (error) counts.failed++;
        else counts.sent++;
      });
    } catch {
      counts.failed++;
    }
  }

  isOwn({ host, port }: Address): boolean {
    return this.#own?.host === host && this.#own.port === port;
  }

  async close(): Promise<void> {
    this.#closings++;
    this.#hear = undefined;
    this.#speaker = undefined;
    const closing = this.#sockets.splice(0).map((socket) => {
      socket.removeAllListeners('message');
      return new Promise<void>((closed) => {
        try {
          socket.close(() => closed());
        } catch {
          closed(); // one that could not be bound
        }
      });
    });
    await Promise.all(closing);
  }
}

const warnOfMissing = (name: string, reason: string): void =>
  warn('PEERS', `peers cannot be found: ${name}: ${reason}`, name);

const resolveByDns = async (name: string, family: 4 | 6): Promise<readonly string[]> =>
  (await lookup(name, { all: true, family })).map(({ address }) => address);

const familyOf = (host: string): 4 | 6 => (isIPv6(host.split('%')[0]) ? 6 : 4);

const anyOf = (host: string): string => (familyOf(host) === 6 ? '::' : '0.0.0.0');

const loopbackOf = (host: string): string => (familyOf(host) === 6 ? '::1' : '127.0.0.1');

const exampleOf = (host: string): string => (familyOf(host) === 6 ? '`::%eth0`' : '`192.168.1.7`');

/** The interface behind an address of IPv6, if it names one. */
const zoneOf = (host: string): string | undefined => host.split('%')[1];

/** A group of IPv6 that is another one on each link (`ff02::`, or `ff01::` within a machine). */
const isOfOneLink = (host: string): boolean => /^ff.[12]:/i.test(host);

const isLoopbackHost = (host: string): boolean =>
  host === '::1' || host === 'localhost' || (isIP(host) === 4 && host.startsWith('127.'));

/** Whether `host:port` is the address of a group. */
export const isGroup = (text: string): boolean => isMulticast(addressIn(text)?.host ?? '');

function isMulticast(host: string): boolean {
  if (isIP(host) === 6) return /^ff/i.test(host);
  const first = Number(host.split('.')[0]);
  return isIP(host) === 4 && first >= 224 && first < 240;
}

const textOf = ({ host, port }: Address): string =>
  host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;

/** `host:port`, `[address]:port`. */
function addressIn(text: string): Address | undefined {
  const [, bracketed, plain, digits] = /^(?:\[([^\]]+)\]|([^:[\]\s]+)):(\d{1,5})$/.exec(text) ?? [];
  const host = bracketed ?? plain;
  const port = Number(digits);
  if (host === undefined || port < 1 || port > 65_535) return undefined;
  if (bracketed !== undefined && !isIPv6(bracketed.split('%')[0])) return undefined;
  if (bracketed === undefined && /^[\d.]+$/.test(host) && isIP(host) === 0) return undefined;
  return { host, port };
}

function addressOf(field: string, value: unknown): Address {
  const address = typeof value === 'string' ? addressIn(value) : undefined;
  if (address) return address;
  throw new ConfigError(field, 'a host and a port, such as `10.0.0.1:7613`', value);
}
