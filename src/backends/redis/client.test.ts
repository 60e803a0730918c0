import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import dns from 'node:dns';
import type { EventEmitter } from 'node:events';
import type { Socket } from 'node:net';
import { Redis } from 'ioredis';
import { createClient } from 'redis';
import { createClient as createClient4 } from 'redis4';
import { createClient as createClient5 } from 'redis5';
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { borrowRedis } from '../../../test/support/borrowed-servers.ts';
import { startProxy } from '../../../test/support/redis-proxy.ts';
import { redisCli, redisServer } from '../../../test/support/services.ts';
import { WAIT_TIMEOUT_MS } from '../../../test/support/wait-timeout.ts';
import { redisChannel } from '../peers/redis-transport.ts';
import { createSubscriber, type RedisClient } from './client.ts';

/** The client that a subscriber makes of its caller's client. */
type Duplicate = EventEmitter & {
  readonly status?: string;
  readonly isOpen?: boolean;
  duplicate(): object;
  ping(): Promise<unknown>;
};

/** States of a stopped client. An ioredis client keeps the state in which it waits for its next attempt. */
const ENDED = ['end', 'reconnecting', false];

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

const OLDER_CLIENTS = {
  'node-redis 4': async (port: number) => {
    const client = createClient4({ socket: { port, host: '127.0.0.1' } });
    client.on('error', () => {});
    await client.connect();
    return { client: client as RedisClient, end: () => void client.disconnect() };
  },
  'node-redis 5': async (port: number) => {
    const client = createClient5({ socket: { port, host: '127.0.0.1' } });
    client.on('error', () => {});
    await client.connect();
    return { client: client as RedisClient, end: () => client.destroy() };
  },
};

/** Functions that open a second connection and stop it. */
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

const casesOf = (clients: Partial<typeof CLIENTS & typeof OLDER_CLIENTS>) =>
  Object.entries(clients).flatMap(([name, connect]) =>
    Object.entries(OPENERS).map(([opener, open]) => [opener, name, open, connect] as const),
  );

describe.skipIf(redisServer() === undefined)('second connection', () => {
  const opened: Socket[] = [];
  const onSocket = (message: unknown) => opened.push((message as { socket: Socket }).socket);

  afterEach(() => {
    vi.restoreAllMocks();
    unsubscribe('net.client.socket', onSocket);
  });

  test.each(casesOf(CLIENTS))(
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

  describe.each(casesOf({ ...CLIENTS, ...OLDER_CLIENTS }))(
    '%s (%s)',
    (_opener, _client, createOpener, connect) => {
      const rejected: unknown[] = [];
      const onRejected = (error: unknown) => rejected.push(error);

      beforeEach(() => {
        rejected.length = 0;
        process.on('unhandledRejection', onRejected);
      });

      afterEach(() => void process.off('unhandledRejection', onRejected));

      /** An open subscription through a proxy, and the client that subscribes. */
      async function openSubscription() {
        const { port } = await borrowRedis();
        const proxy = await startProxy(port);
        const { client, end } = await connect(proxy.port);
        const duplicate = vi.spyOn(client as unknown as Duplicate, 'duplicate');
        const { open, stop } = createOpener(client);
        await open();
        const copy = duplicate.mock.results[0].value as Duplicate;
        onTestFinished(() => {
          end();
          proxy.stop();
        });
        const drop = () => redisCli(port, 'CLIENT', 'KILL', 'TYPE', 'pubsub');
        return { port, proxy, copy, stop, drop };
      }

      async function expectNoRejection(): Promise<void> {
        await new Promise(setImmediate); // Node reports unhandled rejections before
        expect(rejected).toEqual([]);
      }

      test.each([
        ['reconnecting', 'answered'],
        ['connect', 'answered'],
        ['connect', 'lost'],
        ['ready', 'answered'],
        ['ready', 'lost'],
      ])(
        'stopped in the event "%s" of a new connection, its commands %s: no rejection is unhandled',
        async (event, fate) => {
          const { proxy, copy, stop, drop } = await openSubscription();
          const stopped = new Promise<void>((resolve) => {
            copy.once(event, () => {
              if (fate === 'lost') proxy.loseReplies();
              resolve(stop());
            });
          });
          drop();
          await stopped;
          await vi.waitFor(() => expect(copy.status ?? copy.isOpen).toBeOneOf(ENDED));
          await expectNoRejection();
        },
      );

      test('subscribes again after a lost connection', async () => {
        const { port, copy, stop, drop } = await openSubscription();
        const ready = new Promise((resolve) => copy.once('ready', resolve));
        drop();
        await ready;
        await vi.waitFor(() => expect(redisCli(port, 'PUBSUB', 'CHANNELS')).not.toBe(''));
        await stop();
      });

      test('refused when it subscribes again: subscribes once it may, no rejection is unhandled', async () => {
        const { port, copy, stop, drop } = await openSubscription();
        const refused = new Promise((resolve) => {
          copy.on('error', (error) => /NOPERM/.test(String(error)) && resolve(error)); // node-redis
          copy.once('ready', () => copy.ping().then(resolve, () => {})); // ioredis: behind the refused command
        });
        redisCli(port, 'ACL', 'SETUSER', 'default', 'resetchannels');
        try {
          drop();
          await refused;
        } finally {
          redisCli(port, 'ACL', 'SETUSER', 'default', 'allchannels');
        }
        await vi.waitFor(() => expect(redisCli(port, 'PUBSUB', 'CHANNELS')).not.toBe(''), {
          timeout: WAIT_TIMEOUT_MS,
        });
        await stop();
        await expectNoRejection();
      });
    },
  );
});
