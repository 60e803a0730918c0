import { Kvm } from '@nats-io/kv';
import { connect } from '@nats-io/transport-node';
import { describe, expect, test } from 'vitest';
import { natsStage } from '../../../test/support/pool-stages.ts';
import { poolStoreContract } from '../../../test/support/pool-store-contract.ts';
import { natsServer, startNats } from '../../../test/support/services.ts';
import { natsStore } from './nats-store.ts';

const OPTIONS = { memberTimeoutMs: 1000, isStrict: false };
const REQUEST = { id: 'a', seq: 1, using: { size: 0, rank: -1, round: 0 } };

if (natsServer() !== undefined) {
  poolStoreContract('NATS', { isServer: true }, natsStage);

  describe('NATS pool store', () => {
    test('NATS pool store: without JetStream a sync fails with the reason', async () => {
      const server = await startNats();
      const connection = await connect({ servers: `127.0.0.1:${server.port}` });
      const store = natsStore(connection, { deadline: '20s' });
      await expect(store.sync('p', REQUEST, OPTIONS)).rejects.toThrow(/jetstream|no answer/i);
      await connection.close();
      await expect(store.sync('p', REQUEST, OPTIONS)).rejects.toThrow('connection was closed');
      await server.stop();
    });

    test('NATS pool store: uses an existing bucket as it is', async () => {
      const { connection, stop } = await natsStage();
      const kv = await new Kvm(connection).create('existing', { history: 5 });
      const store = natsStore(connection, { bucket: 'existing', deadline: '20s' });
      expect(await store.sync('p', REQUEST, OPTIONS)).toMatchObject({ active: 1 });
      expect((await kv.get('pool.p'))?.json()).toMatchObject({ members: [{ id: 'a' }] });
      await kv.delete('pool.p'); // leaves a revision without a document
      expect(await store.sync('p', REQUEST, OPTIONS)).toMatchObject({ active: 1 });
      await stop();
    });

    test('NATS pool store: refuses invalid options', async () => {
      expect(() => natsStore({} as never)).toThrow('`connection`');
      const { connection, stop } = await natsStage();
      expect(() => natsStore(connection, { bucket: 'a.b' })).toThrow('`bucket`');
      expect(() => natsStore(connection, { deadline: 0 })).toThrow('`deadline`');
      await stop();
    });
  });
}
