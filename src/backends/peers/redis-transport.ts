/**
 * Transport over Redis publish/subscribe, on the user's client: every node subscribes to one channel.
 *
 *     redisChannel(client, 'sluice:peers')
 *
 * The subscription needs a second connection, a duplicate of the first. Messages have no sender address, so replies are
 * broadcast, too. While the connection is down, datagrams are dropped: peers request missing reports.
 */

import { ConfigError } from '../../core/errors.ts';
import { createSubscriber, type RedisClient, type Subscriber } from '../redis/client.ts';
import { listenForErrors } from '../redis/client-errors.ts';
import {
  CLOSED_BEFORE_OPEN,
  MAX_SEND_QUEUE_BYTES,
  type Transport,
  zeroCounts,
} from './transport.ts';

/** Members that both client libraries have for publishing. */
interface Publisher {
  publish(channel: string, message: Buffer): Promise<unknown>;
  /** node-redis. */
  readonly isReady?: boolean;
  /** ioredis. */
  readonly status?: string;
}

const isReady = ({ isReady: ready, status }: Publisher): boolean =>
  ready ?? (status === undefined || status === 'ready');

/** Creates a transport for `peers`. @throws {ConfigError} if the client or the channel is invalid. */
export function redisChannel(client: RedisClient, channel = 'sluice:peers'): Transport {
  const publisher = client as unknown as Publisher;
  if (typeof publisher?.publish !== 'function') {
    throw new ConfigError('client', 'a client of node-redis or ioredis', client);
  }
  if (typeof channel !== 'string' || channel === '') {
    throw new ConfigError('channel', 'a non-empty string', channel);
  }
  createSubscriber(client); // rejects a client that cannot subscribe
  const counts = zeroCounts();
  let subscriber: Subscriber | undefined;
  let inFlightBytes = 0;
  let abortOpen = (): void => {};
  let stopListening = (): void => {};
  const broadcast = (bytes: Uint8Array): void => {
    if (!subscriber) return;
    if (!isReady(publisher) || inFlightBytes > MAX_SEND_QUEUE_BYTES) {
      counts.dropped++;
      return;
    }
    inFlightBytes += bytes.length;
    const publish = async (): Promise<unknown> => publisher.publish(channel, Buffer.from(bytes));
    const onSettled = (count: 'sent' | 'failed') => () => {
      counts[count]++;
      inFlightBytes -= bytes.length;
    };
    publish().then(onSettled('sent'), onSettled('failed'));
  };
  return {
    name: `redis ${channel}`,
    isLoopback: false, // any client of the server can take part
    counts,
    async open(onDatagram) {
      stopListening = listenForErrors(client, 'peers do not hear of each other');
      const opening = createSubscriber(client);
      subscriber = opening; // set before the subscription, which waits until the server is available
      const listening = opening.subscribeBytes(channel, (bytes) => {
        if (subscriber !== opening) return;
        counts.received++;
        onDatagram(bytes, '');
      });
      // A client that waits for its server may not settle after stop().
      const closed = new Promise<never>((_, reject) => {
        abortOpen = () => reject(new Error(CLOSED_BEFORE_OPEN));
      });
      try {
        await Promise.race([listening, closed]);
      } catch (error) {
        subscriber = undefined;
        stopListening();
        throw error;
      }
    },
    broadcast,
    send: (_to, bytes) => broadcast(bytes),
    async close() {
      const stopping = subscriber;
      subscriber = undefined;
      abortOpen();
      await stopping?.stop();
      stopListening();
    },
  };
}
