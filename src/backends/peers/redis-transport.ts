/**
 * Through Redis' publish and subscribe, on a client of the user's own: everybody hears one channel.
 *
 *     redisChannel(client, 'sluice:peers')
 *
 * Listening needs a second connection, made like the first. Redis knows no sender, so an answer goes to
 * everybody too. While the connection is down datagrams are dropped: peers ask for what they missed.
 */

import { ConfigError } from '../../core/errors.ts';
import { createSubscriber, type RedisClient, type Subscriber } from '../redis/client.ts';
import { MAX_SEND_QUEUE_BYTES, type Transport, zeroCounts } from './transport.ts';

/** What is used of either client to publish; it is ready, if it says anything about that. */
interface Publisher {
  publish(channel: string, message: Buffer): Promise<unknown>;
  /** node-redis. */
  readonly isReady?: boolean;
  /** ioredis. */
  readonly status?: string;
}

const isReady = ({ isReady: own, status }: Publisher): boolean =>
  own ?? (status === undefined || status === 'ready');

/** @throws {ConfigError} if it is no client of Redis, or the channel has no name. */
export function redisChannel(client: RedisClient, channel = 'sluice:peers'): Transport {
  const publisher = client as unknown as Publisher;
  if (typeof publisher?.publish !== 'function') {
    throw new ConfigError('client', 'a client of node-redis or ioredis', client);
  }
  if (typeof channel !== 'string' || channel === '') {
    throw new ConfigError('channel', 'a name', channel);
  }
  const counts = zeroCounts();
  let subscriber: Subscriber | undefined;
  let underwayBytes = 0;
  let giveUp = (): void => {};
  const broadcast = (bytes: Uint8Array): void => {
    if (!subscriber) return;
    if (!isReady(publisher) || underwayBytes > MAX_SEND_QUEUE_BYTES) {
      counts.dropped++;
      return;
    }
    underwayBytes += bytes.length;
    const publish = async (): Promise<unknown> => publisher.publish(channel, Buffer.from(bytes));
    publish()
      .then(
        () => counts.sent++,
        () => counts.failed++,
      )
      .finally(() => {
        underwayBytes -= bytes.length;
      });
  };
  return {
    name: `redis ${channel}`,
    isLoopback: false, // whoever reaches the server takes part
    counts,
    async open(onDatagram) {
      const own = createSubscriber(client);
      subscriber = own; // from here on: without a server this takes until there is one, or it is closed
      const listening = own.subscribeBytes(channel, (bytes) => {
        if (subscriber !== own) return;
        counts.received++;
        onDatagram(bytes, '');
      });
      // A client that waits for its server may never say that it was told to stop.
      const closed = new Promise<never>((_, fail) => {
        giveUp = () => fail(new Error('it was closed before it was open'));
      });
      try {
        await Promise.race([listening, closed]);
      } catch (error) {
        subscriber = undefined;
        throw error;
      }
    },
    broadcast,
    send: (_to, bytes) => broadcast(bytes),
    async close() {
      const own = subscriber;
      subscriber = undefined;
      giveUp();
      await own?.stop();
    },
  };
}
