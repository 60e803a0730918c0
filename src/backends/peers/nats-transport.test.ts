import { connect, type NatsConnection } from '@nats-io/transport-node';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { natsServer, type Service, startNats } from '../../../test/support/services.ts';
import { transportContract } from '../../../test/support/transport-contract.ts';
import { nats } from './nats-transport.ts';

async function natsNetwork() {
  const server = await startNats();
  const connections: NatsConnection[] = [];
  const options = { maxReconnectAttempts: -1, reconnectTimeWait: 50, reconnectJitter: 10 };
  for (let n = 0; n < 3; n++) {
    connections.push(await connect({ servers: `127.0.0.1:${server.port}`, ...options }));
  }
  return {
    server,
    node: (n: number) => nats(connections[n]),
    async stop() {
      for (const connection of connections) await connection.close();
      await server.stop();
    },
  };
}

if (natsServer() !== undefined) {
  transportContract('NATS', { isAddressed: false, isLoopback: false }, natsNetwork);

  describe('NATS transport', () => {
    let server: Service;
    beforeEach(async () => {
      server = await startNats();
    });
    afterEach(() => server.stop());

    test('after close, the connection receives nothing', async () => {
      const [connection, other] = await Promise.all(
        [0, 1].map(() => connect({ servers: `127.0.0.1:${server.port}` })),
      );
      const transport = nats(connection);
      await transport.open(() => {});
      other.publish('sluice.peers', 'one');
      await other.flush();
      await connection.flush();
      expect(connection.stats().inMsgs).toBe(1);
      await transport.close();
      await connection.flush();
      other.publish('sluice.peers', 'two');
      await other.flush();
      await connection.flush();
      expect(connection.stats().inMsgs).toBe(1);
      for (const opened of [connection, other]) await opened.close();
    });

    test('a connection that the user closed causes no error', async () => {
      const connection = await connect({ servers: `127.0.0.1:${server.port}` });
      const transport = nats(connection, 'other.subject');
      await transport.open(() => {});
      await connection.close();
      transport.broadcast(new Uint8Array(3));
      await transport.close();
      expect(transport.counts.sent).toBe(0);
    });
  });
}

describe('NATS transport: options', () => {
  test('refuses subjects with wildcards and invalid connections', () => {
    const connection = { publish() {} } as unknown as NatsConnection;
    for (const subject of ['', 'a.*', '>', 'a b', '.a', 'a.']) {
      expect(() => nats(connection, subject)).toThrow(/`subject` to be a subject without/);
    }
    expect(() => nats({} as NatsConnection)).toThrow(/expected `nats` to be a connection/);
    expect(nats(connection, 'a.b').name).toBe('nats a.b');
  });
});
