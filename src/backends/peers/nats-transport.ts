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
import { type Hear, noCounts, SENDING_BYTES_MAX, type Transport } from './transport.ts';

/** A transport for `peers`. @throws {ConfigError} if the subject cannot be published to. */
export function nats(connection: NatsConnection, subject = 'sluice.peers'): Transport {
  if (typeof connection?.publish !== 'function') {
    throw new ConfigError('nats', 'a connection of @nats-io/transport-node', connection);
  }
  if (!isSubject(subject)) {
    throw new ConfigError('subject', 'a subject without wildcards', subject);
  }
  const counts = noCounts();
  let subscription: Subscription | undefined;
  let watch: Watch | undefined;
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
    if (!watch?.isUp || unconfirmedBytes > SENDING_BYTES_MAX) {
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
    async open(hear: Hear) {
      watch = watchOf(connection);
      subscription = connection.subscribe(subject, {
        callback: (error, message) => {
          if (error || !subscription) return;
          counts.heard++;
          hear(message.data, '');
        },
      });
      await connection.flush();
    },
    broadcast,
    send: (_to, bytes) => broadcast(bytes),
    async close() {
      const own = subscription;
      subscription = undefined;
      watch?.end();
      if (!connection.isClosed()) own?.unsubscribe();
    },
  };
}

interface Watch {
  isUp: boolean;
  end(): void;
}

/** Whether the connection is up. */
function watchOf(connection: NatsConnection): Watch {
  const told = connection.status();
  const watch = { isUp: true, end: () => (told as { stop?(): void }).stop?.() };
  const follow = async (): Promise<void> => {
    for await (const { type } of told) {
      if (type === 'disconnect' || type === 'close') watch.isUp = false;
      else if (type === 'reconnect') watch.isUp = true;
    }
  };
  follow().catch(() => {});
  return watch;
}
