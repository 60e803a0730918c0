import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import dns from 'node:dns';
import type { Socket } from 'node:net';
import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { borrowRedis } from '../../../test/support/borrowed-servers.ts';
import { redisServer } from '../../../test/support/services.ts';
import { redisChannel } from '../peers/redis-transport.ts';
import { createSubscriber, type RedisClient } from './client.ts';

/** Connects by name, so that every connection needs a DNS look-up. */
const CLIENTS = {
  'node-redis': async (port: number) => {
    const client = createClient({ socket: { port, host: 'localhost' } });
    client.on('error', () => {});
    await client.connect();
    return { client: client as RedisClient, end: () => client.destroy() };
  },
  ioredis: async (port: number) => {
    const client = new Redis(port, 'localhost', { lazyConnect: true });
    client.on('error', () => {});
    await client.connect();
    return { client: client as RedisClient, end: () => client.disconnect() };
  },
};

/** What opens a second connection, and the functions that open and stop it. */
const OPENERS = {
  subscriber: (client: RedisClient) => {
    const subscriber = createSubscriber(client);
    return {
      open: () => subscriber.subscribe('turns', () => {}),
      stop: () => subscriber.stop(),
    };
  },
  'transport of peers': (client: RedisClient) => {
    const transport = redisChannel(client);
    return { open: () => transport.open(() => {}), stop: () => transport.close() };
  },
};

const CASES = Object.entries(CLIENTS).flatMap(([name, connect]) =>
  Object.entries(OPENERS).map(([opener, open]) => [opener, name, open, connect] as const),
);

describe.skipIf(redisServer() === undefined)('second connection', () => {
  const opened: Socket[] = [];
  const onSocket = (message: unknown) => opened.push((message as { socket: Socket }).socket);

  afterEach(() => {
    vi.restoreAllMocks();
    unsubscribe('net.client.socket', onSocket);
  });

  test.each(CASES)(
    '%s (%s): stopped during its DNS look-up, it leaves no socket open',
    async (_opener, _client, createOpener, connect) => {
      const server = await borrowRedis();
      const { client, end } = await connect(server.port);
      const lookUp = dns.lookup;
      const heldLookUps: (() => void)[] = [];
      vi.spyOn(dns, 'lookup').mockImplementation(((...args: Parameters<typeof lookUp>) => {
        heldLookUps.push(() => lookUp(...args));
      }) as never);
      opened.length = 0;
      subscribe('net.client.socket', onSocket);
      const { open, stop } = createOpener(client);
      const opening = open().catch(() => {});
      await vi.waitFor(() => expect(heldLookUps.length).toBe(1));
      await stop();
      heldLookUps[0]();
      await opening;
      await vi.waitFor(() => expect(opened.map(({ destroyed }) => destroyed)).toEqual([true]));
      end();
      await server.stop();
    },
  );
});
