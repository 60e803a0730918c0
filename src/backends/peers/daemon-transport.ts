/**
 * A daemon that cannot open its UDP socket does not start. A NATS or Redis server may become available later, and may
 * fail: meanwhile every daemon decides by its own count.
 */

import { NatsConnector } from '../connections/nats-connection.ts';
import type { BackendStartContext } from '../daemon-backend.ts';
import type { TransportConfig } from './daemon-config.ts';
import { nats } from './nats-transport.ts';
import { redisChannel } from './redis-transport.ts';
import { type DatagramHandler, type Transport, zeroCounts } from './transport.ts';
import { udp } from './udp-transport.ts';

/** Creates the configured transport. @throws {ConfigError} if the required package is missing. */
export async function createTransport(
  config: TransportConfig,
  { clock, log, connections }: BackendStartContext,
): Promise<Transport> {
  if (config.kind === 'udp') {
    const onUnresolved = (name: string, reason: string): void =>
      log('warn', 'peer name not resolved, trying again', { name, reason });
    return udp(config.options, { clock, onUnresolved });
  }
  if (config.kind === 'redis') {
    return redisChannel(connections.redisClient(config.url), config.channel);
  }
  const connector = await NatsConnector.connect(config.servers, { clock, log, section: 'peers' });
  return lazyNatsTransport(connector, config.subject);
}

/** The NATS transport on a connection that may be established later. */
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
      const transport = nats(connection, subject);
      await transport.open(onDatagram);
      inner = transport;
    },
    broadcast: (bytes) => inner?.broadcast(bytes),
    send: (to, bytes) => inner?.send(to, bytes),
    async close() {
      await inner?.close();
      await connector.close();
    },
  };
}
