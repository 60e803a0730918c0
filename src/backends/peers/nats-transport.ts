/**
 * Through a NATS server, on a connection of the user's own: everybody hears one subject.
 *
 *     nats(await connect({ servers }), 'sluice.peers')
 *
 * NATS knows no sender, so an answer goes to everybody too, and those it is not meant for pass it over.
 * While the connection is down datagrams are dropped, not saved up: peers ask for what they missed.
 */

import type { NatsConnection, Subscription } from '@nats-io/transport-node';
import { ConfigError } from '../../core/errors.ts';
import { isSubject } from './nats-subject.ts';
import {
  type DatagramHandler,
  MAX_SEND_QUEUE_BYTES,
  type Transport,
  zeroCounts,
} from './transport.ts';

/** A transport for `peers`. @throws {ConfigError} if the subject cannot be published to. */
export function nats(connection: NatsConnection, subject = 'sluice.peers'): Transport {
  if (typeof connection?.publish !== 'function') {
    throw new ConfigError('nats', 'a connection of @nats-io/transport-node', connection);
  }
  if (!isSubject(subject)) {
    throw new ConfigError('subject', 'a subject without wildcards', subject);
  }
  const counts = zeroCounts();
  let subscription: Subscription | undefined;
  let monitor: ConnectionMonitor | undefined;
  let unconfirmedBytes = 0;
  let isConfirming = false;

  /** Asks the server whether it has come so far: what it has not taken yet waits in memory. */
  const confirm = (): void => {
    if (isConfirming) return;
    isConfirming = true;
    const bytes = unconfirmedBytes;
    connection
      .flush()
      .catch(() => {}) // then it is gone with the connection
      .then(() => {
        isConfirming = false;
        unconfirmedBytes -= bytes;
        if (unconfirmedBytes > 0) confirm();
      });
  };
  const broadcast = (bytes: Uint8Array): void => {
    if (!subscription) return;
    if (!monitor?.isConnected || unconfirmedBytes > MAX_SEND_QUEUE_BYTES) {
      counts.dropped++;
      return;
    }
    try {
      connection.publish(subject, bytes);
      counts.sent++;
      unconfirmedBytes += bytes.length;
      confirm();
    } catch {
      counts.failed++;
    }
  };
  return {
    name: `nats ${subject}`,
    isLoopback: false, // whoever reaches the server takes part
    counts,
    async open(onDatagram: DatagramHandler) {
      monitor = monitorConnection(connection);
      subscription = connection.subscribe(subject, {
        callback: (error, message) => {
          if (error || !subscription) return;
          counts.received++;
          onDatagram(message.data, '');
        },
      });
      await connection.flush();
    },
    broadcast,
    send: (_to, bytes) => broadcast(bytes),
    async close() {
      const own = subscription;
      subscription = undefined;
      monitor?.stop();
      if (!connection.isClosed()) own?.unsubscribe();
    },
  };
}

interface ConnectionMonitor {
  isConnected: boolean;
  stop(): void;
}

/** Whether the connection is up. */
function monitorConnection(connection: NatsConnection): ConnectionMonitor {
  const told = connection.status();
  const monitor = { isConnected: true, stop: () => (told as { stop?(): void }).stop?.() };
  const follow = async (): Promise<void> => {
    for await (const { type } of told) {
      if (type === 'disconnect' || type === 'close') monitor.isConnected = false;
      else if (type === 'reconnect') monitor.isConnected = true;
    }
  };
  follow().catch(() => {});
  return monitor;
}
