/**
 * How a daemon reaches its peers, as its configuration says.
 *
 * UDP is there or it is not, and a daemon that cannot have it does not start. A server in between may
 * come later than the daemon, and go: until it is there, and whenever it is not, every daemon decides by
 * its own count.
 */

import { nats } from '../../backends/peers/nats-transport.ts';
import { redisChannel } from '../../backends/peers/redis-transport.ts';
import {
  type DatagramHandler,
  type Transport,
  zeroCounts,
} from '../../backends/peers/transport.ts';
import { udp } from '../../backends/peers/udp-transport.ts';
import type { Clock } from '../../core/clock.ts';
import type { Log } from '../../core/log.ts';
import type { TransportConfig } from '../config/peers.ts';
import { NatsConnector } from './nats-connection.ts';
import type { RedisClients } from './redis-connections.ts';

export interface TransportContext {
  readonly clock: Clock;
  readonly log: Log;
  readonly clients: RedisClients;
}

/** @throws {ConfigError} if the package it needs is missing. */
export async function createTransport(
  config: TransportConfig,
  context: TransportContext,
): Promise<Transport> {
  if (config.kind === 'udp') {
    const { clock, log } = context;
    const onMissing = (name: string, reason: string): void =>
      log('warn', 'peers cannot be found, and are looked for again', { name, reason });
    return udp(config.options, { clock, onUnresolved: onMissing });
  }
  if (config.kind === 'redis') {
    return redisChannel(context.clients.clientOf(config.url), config.channel);
  }
  const { clock, log } = context;
  const connector = await NatsConnector.connect(config.servers, { clock, log, section: 'peers' });
  return lazyNatsTransport(connector, config.subject);
}

/** The library's transport on a connection of our own. */
function lazyNatsTransport(connector: NatsConnector, subject: string): Transport {
  let inner: Transport | undefined;
  return {
    name: `nats ${subject}`,
    isLoopback: false,
    get counts() {
      return inner?.counts ?? zeroCounts();
    },
    async open(onDatagram: DatagramHandler) {
      const connection = await connector.connected;
      if (!connection) return;
      const own = nats(connection, subject);
      await own.open(onDatagram);
      inner = own;
    },
    broadcast: (bytes) => inner?.broadcast(bytes),
    send: (to, bytes) => inner?.send(to, bytes),
    async close() {
      await inner?.close();
      await connector.close();
    },
  };
}
