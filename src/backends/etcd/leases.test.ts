import { expect, test } from 'vitest';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { RttEstimator } from '../rtt-estimator.ts';
import { LeaseCache } from './leases.ts';
import type { RegisterStore } from './store.ts';

function setUp() {
  const clock = new VirtualClock(1_000_000);
  const requested: number[] = [];
  const store: Pick<RegisterStore, 'grantLease'> = {
    grantLease: async (seconds) => `lease ${requested.push(seconds)}`,
  };
  const leases = new LeaseCache(store, clock, new RttEstimator(1000));
  /** The lease for a register with a lifetime of `ms`. */
  const leaseFor = async (ms: number): Promise<string | undefined> => {
    const at = clock.now() + ms;
    if (leases.findValidUntil(at) === undefined) await leases.request(at);
    return leases.findValidUntil(at)?.id;
  };
  return { clock, requested, leases, leaseFor };
}

test('LeaseCache: one lease serves all keys for half of its TTL', async () => {
  const { clock, requested, leaseFor } = setUp();
  expect(await leaseFor(100)).toBe('lease 1');
  clock.advance(30_000);
  expect(await leaseFor(30_000)).toBe('lease 1'); // lasts 64 s
  clock.advance(10_000);
  expect(await leaseFor(30_000)).toBe('lease 2');
  expect(requested).toEqual([64, 64]);
});

test('LeaseCache: the TTL is at least twice the time the register matters', async () => {
  const { requested, leaseFor } = setUp();
  expect(await leaseFor(3_600_000)).toBe('lease 1');
  expect(await leaseFor(100)).toBe('lease 2');
  expect(await leaseFor(Infinity)).toBe('lease 3');
  expect(requested).toEqual([8192, 64, 2 ** 33]);
});

test('LeaseCache: concurrent callers share one request', async () => {
  const { clock, requested, leases } = setUp();
  const at = clock.now() + 100;
  await Promise.all([leases.request(at), leases.request(at), leases.request(at)]);
  expect(requested).toEqual([64]);
  leases.clear();
  expect(leases.findValidUntil(at)).toBeUndefined();
});
