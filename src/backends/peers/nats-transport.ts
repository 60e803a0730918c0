/**
 * Transport over NATS, on the user's connection: every node subscribes to one subject.
 *
 *     nats(await connect({ servers }), 'sluice.peers')
 *
 * Messages have no sender address, so replies are broadcast, too, and other nodes ignore them. While the connection is
 * down, datagrams are dropped and not buffered: peers request missing reports.
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

/** Creates a transport for `peers`. @throws {ConfigError} if the connection or the subject is invalid. */
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

  /** Waits until the server has received the published bytes; until then they are in the client's memory. */
  const confirm = (): void => {
    if (isConfirming) return;
    isConfirming = true;
    const bytes = unconfirmedBytes;
    connection
      .flush()
      .catch(() => {}) // the connection is closed, and the bytes are lost
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
    isLoopback: false, // any client of the server can take part
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
      const closing = subscription;
      subscription = undefined;
      monitor?.stop();
      if (!connection.isClosed()) closing?.unsubscribe();
    },
  };
}

interface ConnectionMonitor {
  isConnected: boolean;
  stop(): void;
}

function monitorConnection(connection: NatsConnection): ConnectionMonitor {
  const events = connection.status();
  const monitor = { isConnected: true, stop: () => (events as { stop?(): void }).stop?.() };
  const follow = async (): Promise<void> => {
    for await (const { type } of events) {
      if (type === 'disconnect' || type === 'close') monitor.isConnected = false;
      else if (type === 'reconnect') monitor.isConnected = true;
    }
  };
  follow().catch(() => {});
  return monitor;
}
