import { describe, expect, test } from 'vitest';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { dnsPool } from './dns-size.ts';
import { pool } from './options.ts';

const OPTIONS = { memberTimeoutMs: 2000, isStrict: false };
const REQUEST = { id: 'a', seq: 1, using: { size: 0, rank: -1, round: 0 } };

describe('dns pool', () => {
  function world(local: string[], addresses: string[] | Error) {
    const clock = new VirtualClock(5_000);
    const name = { addresses, lookUps: 0 };
    const lookup = async (): Promise<string[]> => {
      name.lookUps++;
      if (name.addresses instanceof Error) throw name.addresses;
      return name.addresses;
    };
    const store = dnsPool('pods.internal', { clock, lookup, localAddresses: () => local });
    return { clock, name, store, sync: () => store.sync('', REQUEST, OPTIONS) };
  }

  test('dns pool: size is the number of addresses, rank the index of the local address', async () => {
    const { sync } = world(['127.0.0.1', '10.0.0.7'], ['10.0.0.9', '10.0.0.7', '10.0.0.11']);
    expect(await sync()).toMatchObject({ claim: { size: 3, rank: 1 }, isAgreed: true });
  });

  test('dns pool: without an local address there is no rank', async () => {
    const { sync } = world(['192.168.0.1'], ['10.0.0.9', '10.0.0.7']);
    expect(await sync()).toMatchObject({ claim: { size: 2, rank: -1 } });
  });

  test('dns pool: looks up every five seconds, however often it syncs', async () => {
    const { sync, clock, name } = world(['10.0.0.7'], ['10.0.0.7']);
    await sync();
    name.addresses = ['10.0.0.7', '10.0.0.9'];
    clock.advance(4999);
    expect(await sync()).toMatchObject({ claim: { size: 1 } });
    expect(name.lookUps).toBe(1);
    clock.advance(1);
    expect(await sync()).toMatchObject({ claim: { size: 2 } });
    expect(name.lookUps).toBe(2);
  });

  test('dns pool: a failed look-up fails the sync, and the pool keeps the last size', async () => {
    const { store, clock, name } = world(['10.0.0.7'], ['10.0.0.7', '10.0.0.9']);
    const membership = pool(store, { clock });
    await clock.advanceAsync(100);
    expect(membership.view()).toMatchObject({ size: 2, rank: 0, failures: 0 });
    name.addresses = new Error('queryA ESERVFAIL');
    await clock.advanceAsync(6000);
    expect(membership.view()).toMatchObject({ size: 2, rank: 0, reason: 'queryA ESERVFAIL' });
    expect(membership.view().failures).toBeGreaterThan(0);
    name.addresses = [];
    await clock.advanceAsync(200); // a sync of 100 ms with jitter
    expect(membership.view().reason).toMatch(/it has no addresses/);
    name.addresses = ['10.0.0.7'];
    await clock.advanceAsync(200);
    expect(membership.view()).toMatchObject({ size: 1 });
    await membership.close();
  });

  test('dns pool: a look-up that hangs times out, without a second one', async () => {
    const clock = new VirtualClock(5_000);
    let lookUps = 0;
    const lookup = (): Promise<string[]> => {
      lookUps++;
      return new Promise(() => {});
    };
    const store = dnsPool('pods.internal', { clock, lookup });
    for (let n = 0; n < 2; n++) {
      const failed = expect(store.sync('', REQUEST, OPTIONS)).rejects.toThrow(
        'no reply within 2000',
      );
      await clock.advanceAsync(2000);
      await failed;
    }
    expect(lookUps).toBe(1);
  });

  test('dns pool: uses the system resolver by default', async () => {
    const store = dnsPool('localhost');
    expect(await store.sync('', REQUEST, OPTIONS)).toMatchObject({ claim: { size: 1, rank: 0 } });
  });

  test('dns pool: refuses invalid options', () => {
    expect(() => dnsPool('')).toThrow('`host`');
    expect(() => dnsPool('a', { every: 'often' as never })).toThrow('`every`');
  });
});
