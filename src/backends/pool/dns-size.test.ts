import { describe, expect, test } from 'vitest';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { dnsPool } from './dns-size.ts';
import { pool } from './options.ts';

const OPTIONS = { memberTimeoutMs: 2000, isStrict: false };
const REQUEST = { id: 'a', seq: 1, using: { size: 0, rank: -1, round: 0 } };

describe('a pool by DNS', () => {
  function world(own: string[], addresses: string[] | Error) {
    const clock = new VirtualClock(5_000);
    const name = { addresses, lookUps: 0 };
    const lookup = async (): Promise<string[]> => {
      name.lookUps++;
      if (name.addresses instanceof Error) throw name.addresses;
      return name.addresses;
    };
    const store = dnsPool('pods.internal', { clock, lookup, localAddresses: () => own });
    return { clock, name, store, sync: () => store.sync('', REQUEST, OPTIONS) };
  }

  test('is as large as the name has addresses, and one is who one is among them', async () => {
    const { sync } = world(['127.0.0.1', '10.0.0.7'], ['10.0.0.9', '10.0.0.7', '10.0.0.11']);
    expect(await sync()).toMatchObject({ claim: { size: 3, rank: 1 }, isAgreed: true });
  });

  test('leaves who is not among them without a turn', async () => {
    const { sync } = world(['192.168.0.1'], ['10.0.0.9', '10.0.0.7']);
    expect(await sync()).toMatchObject({ claim: { size: 2, rank: -1 } });
  });

  test('is looked up every five seconds, however often it is asked', async () => {
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

  test('fails with the look-up, while a pool goes on with the last one', async () => {
    const { store, clock, name } = world(['10.0.0.7'], ['10.0.0.7', '10.0.0.9']);
    const place = pool(store, { clock });
    await clock.advanceAsync(100);
    expect(place.view()).toMatchObject({ size: 2, rank: 0, failures: 0 });
    name.addresses = new Error('queryA ESERVFAIL');
    await clock.advanceAsync(6000);
    expect(place.view()).toMatchObject({ size: 2, rank: 0, reason: 'queryA ESERVFAIL' });
    expect(place.view().failures).toBeGreaterThan(0);
    name.addresses = [];
    await clock.advanceAsync(200); // a sync may come a tenth later than every 100 ms
    expect(place.view().reason).toMatch(/it has no addresses/);
    name.addresses = ['10.0.0.7'];
    await clock.advanceAsync(200);
    expect(place.view()).toMatchObject({ size: 1 });
    await place.close();
  });

  test('gives up a look-up that does not end, and begins no second one', async () => {
    const clock = new VirtualClock(5_000);
    let lookUps = 0;
    const lookup = (): Promise<string[]> => {
      lookUps++;
      return new Promise(() => {});
    };
    const store = dnsPool('pods.internal', { clock, lookup });
    for (let n = 0; n < 2; n++) {
      const failed = expect(store.sync('', REQUEST, OPTIONS)).rejects.toThrow(
        'no answer within 2000',
      );
      await clock.advanceAsync(2000);
      await failed;
    }
    expect(lookUps).toBe(1);
  });

  test('asks the system if nobody else is named', async () => {
    const store = dnsPool('localhost');
    expect(await store.sync('', REQUEST, OPTIONS)).toMatchObject({ claim: { size: 1, rank: 0 } });
  });

  test('says what makes no sense', () => {
    expect(() => dnsPool('')).toThrow('`host`');
    expect(() => dnsPool('a', { every: 'often' })).toThrow('`every`');
  });
});
