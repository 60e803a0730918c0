import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, describe, expect, test, vi } from 'vitest';
import { etcdStage } from '../../../test/support/pool-stages.ts';
import { poolStoreContract } from '../../../test/support/pool-store-contract.ts';
import { etcdServer, freePort, type Service, startEtcd } from '../../../test/support/services.ts';
import { etcdStore } from './etcd-store.ts';

const OPTIONS = { memberTimeoutMs: 1000, isStrict: false };
const REQUEST = { id: 'a', seq: 1, using: { size: 0, rank: -1, round: 0 } };

if (etcdServer() !== undefined) {
  poolStoreContract('etcd', { isServer: true }, etcdStage);

  describe('etcd pool store', () => {
    let server: Service;
    let address: string;
    beforeEach(async () => {
      server = await startEtcd();
      address = `http://127.0.0.1:${server.port}`;
    });
    afterEach(() => server.stop());

    const call = async (path: string, body: object): Promise<unknown> =>
      (await fetch(`${address}/v3/${path}`, { method: 'POST', body: JSON.stringify(body) })).json();

    test('etcd pool store: an endpoint that does not respond is replaced by the next', async () => {
      const gone = `http://127.0.0.1:${await freePort()}`;
      const store = etcdStore({ endpoints: [gone, address], deadline: '20s' });
      expect(await store.sync('p', REQUEST, OPTIONS)).toMatchObject({ active: 1 });
      await store.close();
    });

    test('etcd pool store: authenticates, and reports missing and wrong passwords', async () => {
      const root = { name: 'root', password: 'secret' } as const;
      await call('auth/user/add', root);
      await call('auth/role/add', { name: 'root' });
      await call('auth/user/grant', { user: 'root', role: 'root' });
      await call('auth/enable', {});
      const patient = { endpoints: [address], deadline: '20s' } as const; // etcd is slow to verify a password
      const open = etcdStore(patient);
      await expect(open.sync('p', REQUEST, OPTIONS)).rejects.toThrow(/status 4\d\d: .*user name/);
      const wrong = etcdStore({ ...patient, auth: { ...root, password: 'guess' } });
      await expect(wrong.sync('p', REQUEST, OPTIONS)).rejects.toThrow(/status 4\d\d: .*invalid/);
      const known = etcdStore({ ...patient, auth: root });
      expect(await known.sync('p', REQUEST, OPTIONS)).toMatchObject({ active: 1 });
      // Tokens do not outlive the server: the store requests another.
      await server.kill();
      await server.restart();
      const answer = vi.waitFor(() => known.members('p'), { timeout: 30_000, interval: 50 });
      expect(await answer).toMatchObject([{ id: 'a' }]);
      for (const store of [open, wrong, known]) await store.close();
    });

    test('etcd pool store: a server that hangs fails at the deadline', async () => {
      const store = etcdStore({ endpoints: [address], deadline: '2s' });
      await store.sync('p', REQUEST, OPTIONS);
      server.pause();
      await expect(store.sync('p', { ...REQUEST, seq: 2 }, OPTIONS)).rejects.toThrow('2000 ms');
      server.resume();
      await store.close();
    });
  });
}

describe('etcd pool store: invalid input', () => {
  test('etcd pool store: detects a server that is not etcd', async () => {
    const server = createServer((_, response) => response.end('hello'));
    await new Promise<void>((ready) => server.listen(0, '127.0.0.1', ready));
    const { port } = server.address() as AddressInfo;
    const store = etcdStore({ endpoints: [`http://127.0.0.1:${port}`], deadline: '20s' });
    await expect(store.sync('p', REQUEST, OPTIONS)).rejects.toThrow('is this etcd?');
    await store.close();
    await new Promise((closed) => server.close(closed));
  });

  test.each([
    [{}, /`endpoints` to be a list of 1 to 20 addresses, got undefined/],
    [{ endpoints: [] }, /`endpoints` to be a list of 1 to 20 addresses/],
    [{ endpoints: ['etcd:2379'] }, /`endpoints\[0\]` to be an address .* got "etcd:2379"/],
    [{ endpoints: ['http://a'], auth: { name: 'root' } }, /`auth`/],
    [{ endpoints: ['http://a'], user: 'root' }, /`user`/],
    [{ endpoints: ['http://a'], tls: { crt: 'x' } }, /`tls.crt` to be one of ca, cert, key/],
  ])('etcd pool store: refuses %o', (setting, message) => {
    expect(() => etcdStore(setting as never)).toThrow(message);
  });
});
