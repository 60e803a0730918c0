import { expect, test } from 'vitest';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { RttEstimator } from '../rtt-estimator.ts';
import { LeaseCache } from './leases.ts';
import type { RegisterStore } from './store.ts';

function setUp() {
  const clock = new VirtualClock(1_000_000);
  const asked: number[] = [];
  const store: Pick<RegisterStore, 'grantLease'> = {
    grantLease: async (seconds) => `lease ${asked.push(seconds)}`,
  };
  const leases = new LeaseCache(store as RegisterStore, clock, new RttEstimator(1000));
  /** The lease of something that matters for so long. */
  const of = async (ms: number): Promise<string | undefined> => {
    const at = clock.now() + ms;
    if (leases.findValidUntil(at) === undefined) await leases.request(at);
    return leases.findValidUntil(at);
  };
  return { clock, asked, leases, of };
}

test('one lease serves all keys for half of its time, and then another does', async () => {
  const { clock, asked, of } = setUp();
  expect(await of(100)).toBe('lease 1');
  clock.advance(30_000);
  expect(await of(30_000)).toBe('lease 1'); // it lasts 64 s
  clock.advance(10_000);
  expect(await of(30_000)).toBe('lease 2');
  expect(asked).toEqual([64, 64]);
});

test('what matters for long has a lease that lasts, and never one that may end before', async () => {
  const { asked, of } = setUp();
  expect(await of(3_600_000)).toBe('lease 1');
  expect(await of(100)).toBe('lease 2');
  expect(await of(Infinity)).toBe('lease 3');
  expect(asked).toEqual([8192, 64, 2 ** 33]);
});

test('many who need one at once ask once', async () => {
  const { clock, asked, leases } = setUp();
  const at = clock.now() + 100;
  await Promise.all([leases.request(at), leases.request(at), leases.request(at)]);
  expect(asked).toEqual([64]);
  leases.clear();
  expect(leases.findValidUntil(at)).toBeUndefined();
});
