/**
 * How a daemon reaches its peers, as its configuration says.
 *
 * UDP is there or it is not, and a daemon that cannot have it does not start. A server in between may
 * come later than the daemon, and go: until it is there, and whenever it is not, every daemon decides by
 * its own count.
 */

import { alarm, type Clock, type Millis } from '../clock.ts';
import { ConfigError, reasonOf } from '../errors.ts';
import { nats } from '../peers/nats.ts';
import { redisChannel } from '../peers/redis.ts';
import { type Hear, noCounts, type Transport } from '../peers/transport.ts';
import { udp } from '../peers/udp.ts';
import type { TransportConfig } from './config/peers.ts';
import type { Log } from './log.ts';
import type { RedisClients } from './redis-clients.ts';

/** How long a server may take to answer, and how soon it is tried again if it did not. */
const CONNECT_WITHIN_MS: Millis = 2000;
const CONNECT_AGAIN_MS: Millis = 1000;

export interface TransportSetting {
  readonly clock: Clock;
  readonly log: Log;
  readonly clients: RedisClients;
}

/** @throws {ConfigError} if the package it needs is missing. */
export async function transportOf(
  config: TransportConfig,
  setting: TransportSetting,
): Promise<Transport> {
  if (config.kind === 'udp') {
    const { clock, log } = setting;
    const onMissing = (name: string, reason: string): void =>
      log('warn', 'peers cannot be found, and are looked for again', { name, reason });
    return udp(config.options, { clock, onMissing });
  }
  if (config.kind === 'redis') {
    return redisChannel(setting.clients.clientOf(config.url), config.channel);
  }
  return throughNats(config, await natsPackage(), setting);
}

type NatsPackage = typeof import('@nats-io/transport-node');
type NatsConnection = Awaited<ReturnType<NatsPackage['connect']>>;

async function natsPackage(): Promise<NatsPackage> {
  try {
    return await import('@nats-io/transport-node');
  } catch (error) {
    const expected = `left out, or the package "@nats-io/transport-node" installed (${reasonOf(error)})`;
    throw new ConfigError('peers.nats', expected, 'nats');
  }
}

/** The library's transport on a connection of our own, which is tried for until there is one. */
function throughNats(
  { servers, subject }: Extract<TransportConfig, { kind: 'nats' }>,
  { connect }: NatsPackage,
  { clock, log }: TransportSetting,
): Transport {
  let connection: NatsConnection | undefined;
  let inner: Transport | undefined;
  let isClosed = false;
  let cancel = (): void => {};
  let told = '';

  const tryFor = async (): Promise<NatsConnection | undefined> => {
    try {
      return await connect({
        ...whereAndWho(servers),
        name: 'sluice',
        timeout: CONNECT_WITHIN_MS,
        maxReconnectAttempts: -1,
      });
    } catch (error) {
      const reason = reasonOf(error);
      if (reason !== told) log('warn', 'peers out of reach', { through: 'nats', reason });
      told = reason;
      return undefined;
    }
  };
  const later = (): Promise<void> =>
    new Promise((resolve) => {
      const stop = alarm(clock, clock.now() + CONNECT_AGAIN_MS, resolve, false);
      cancel = () => {
        stop();
        resolve();
      };
    });

  return {
    name: `nats ${subject}`,
    isLoopback: false,
    get counts() {
      return inner?.counts ?? noCounts();
    },
    async open(hear: Hear) {
      while (!isClosed && !connection) {
        connection = await tryFor();
        if (!connection) await later();
      }
      if (isClosed || !connection) return void (await connection?.close());
      if (told !== '') log('info', 'peers in reach again', { through: 'nats' });
      tellOf(connection, log).catch(() => {}); // it ends with the connection
      const own = nats(connection, subject);
      await own.open(hear);
      inner = own;
    },
    broadcast: (bytes) => inner?.broadcast(bytes),
    send: (to, bytes) => inner?.send(to, bytes),
    async close() {
      isClosed = true;
      cancel();
      await inner?.close();
      await connection?.close();
    },
  };
}

/** Tells when the server goes and comes back: that all peers are gone has another reason then. */
async function tellOf(connection: NatsConnection, log: Log): Promise<void> {
  const through = 'nats';
  for await (const { type } of connection.status()) {
    if (type === 'disconnect') log('warn', 'peers out of reach', { through, reason: type });
    else if (type === 'reconnect') log('info', 'peers in reach again', { through });
  }
}

/** What NATS is told of its servers: who we are may stand in an address, and its package does not look there. */
export function whereAndWho(servers: readonly string[]): {
  readonly servers: string[];
  readonly user?: string;
  readonly pass?: string;
  readonly token?: string;
} {
  const named = servers.map((server) => /^(?:([a-z]+:\/\/)?(.*)@)?(.*)$/is.exec(server) ?? []);
  const [, , who] = named.find(([, , own]) => own) ?? [];
  const bare = named.map(([, scheme = '', , rest]) => scheme + rest);
  if (who === undefined) return { servers: bare };
  const [first, ...others] = who.split(':');
  if (others.length === 0) return { servers: bare, token: plain(first) };
  return { servers: bare, user: plain(first), pass: plain(others.join(':')) };
}

/** As it was before it was written into an address. */
function plain(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // it was not written as one
  }
}
