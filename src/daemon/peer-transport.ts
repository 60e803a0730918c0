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
  if (config.kind === 'udp') return udp(config.options, { clock: setting.clock });
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
      const options = { servers: [...servers], name: 'sluice', timeout: CONNECT_WITHIN_MS };
      return await connect({ ...options, maxReconnectAttempts: -1 });
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
