import { describe, expect, test } from 'vitest';
import { ioRedis, nodeRedis, type RedisConnection } from '../../../test/support/redis-clients.ts';
import { redisServer, startRedis } from '../../../test/support/services.ts';
import { transportContract } from '../../../test/support/transport-contract.ts';
import type { RedisClient } from '../redis/client.ts';
import { redisChannel } from './redis-transport.ts';

const CLIENTS = { 'node-redis': nodeRedis, ioredis: (port: number) => ioRedis(port) };

if (redisServer() !== undefined) {
  for (const [name, connect] of Object.entries(CLIENTS)) {
    transportContract(`Redis (${name})`, { isAddressed: false, isLoopback: false }, async () => {
      const server = await startRedis();
      const clients: RedisConnection[] = [];
      for (let n = 0; n < 3; n++) clients.push(await connect(server.port));
      return {
        server,
        node: (n) => redisChannel(clients[n].client),
        async stop() {
          for (const client of clients) client.disconnect();
          await server.stop();
        },
      };
    });

    test(`Redis transport (${name}): can be closed while the server is unavailable`, async () => {
      const server = await startRedis();
      const connection = await connect(server.port);
      await server.kill();
      const transport = redisChannel(connection.client);
      const opened = transport.open(() => {});
      const refused = expect(opened).rejects.toThrow();
      await transport.close();
      await refused;
      connection.disconnect();
      await server.stop();
    });
  }
}

describe('Redis transport', () => {
  test('close while the client waits for its server rejects open', async () => {
    const twin = { on() {}, subscribe: () => new Promise(() => {}), disconnect() {} };
    const client = { evalsha() {}, publish() {}, duplicate: () => twin } as unknown as RedisClient;
    const transport = redisChannel(client);
    const refused = expect(transport.open(() => {})).rejects.toThrow(/closed before it was open/);
    await transport.close();
    await refused;
  });

  test('refuses an invalid client and an empty channel', () => {
    const client = { publish() {} } as unknown as RedisClient;
    expect(() => redisChannel({} as RedisClient)).toThrow(/`client` to be a client of node-redis/);
    expect(() => redisChannel(client, '')).toThrow(/`channel` to be a non-empty string/);
    expect(redisChannel(client, 'us').name).toBe('redis us');
  });
});
