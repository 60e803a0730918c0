import { expect, test } from 'vitest';
import { deny } from '../../core/decision.ts';
import { bucket } from '../../policies/bucket.ts';
import type { RemoteBackend } from '../remote-backend.ts';
import type { GroupLimit } from './limits.ts';
import { RemoteGroupsBackend } from './remote-backend.ts';

/** A groups backend over a remote bucket that is empty or unavailable. */
function backendOf(isAvailable: boolean, methods: Partial<RemoteBackend> = {}) {
  const demand: number[] = [];
  const registered: GroupLimit[] = [];
  const capacityFor: string[] = [];
  const remote = { decision: deny(500), decidedAt: 0, fromFallback: !isAvailable };
  const inner = {
    isAvailable,
    check: async () => remote,
    checkNow: async () => remote,
    checkBatch: async () => ({ ...remote, granted: 0, refusal: remote.decision }),
    takeUpTo: async () => 0,
    ...methods,
  } as unknown as RemoteBackend;
  const onCapacity = (key: string): unknown => capacityFor.push(key);
  const policy = bucket({ rate: 10, burst: 20 });
  const config = { policy, name: 'api', perMs: 0.01, burst: 20, reserveLevel: 10, onCapacity };
  const group = {
    allot: () => config,
    register: (limit: GroupLimit) => {
      registered.push(limit);
      return () => {};
    },
    recordDemand: (_: unknown, __: string, tokens: number) => demand.push(tokens),
  };
  const backend = new RemoteGroupsBackend(inner, config, group);
  return { demand, backend, limit: registered[0], capacityFor };
}

test.each([
  [true, [1, 2, 7, 20]],
  [false, []], // a loan would be lost
])(
  'remote groups: borrows only while the bucket is available: %s',
  async (isAvailable, expected) => {
    const { backend, demand } = backendOf(isAvailable);
    await backend.check('k', 1);
    await backend.checkNow('k', 2);
    await backend.checkBatch('k', [3, 4]);
    await backend.takeUpTo('k', Infinity);
    expect(demand).toEqual(expected);
  },
);

test('remote groups: a prefetched decision counts as demand, a missing one does not', () => {
  const prefetching = backendOf(true, { checkPrefetched: () => deny(500) });
  expect(prefetching.backend.checkPrefetched('k', 3)).toEqual(deny(500));
  expect(prefetching.demand).toEqual([3]);
  const none = backendOf(true);
  expect(none.backend.checkPrefetched('k', 3)).toBeUndefined();
  expect(none.demand).toEqual([]);
});

test('remote groups: a call that waits in the remote queue counts as demand', async () => {
  const entry = { verdict: 'allow', dueAt: 0, fromFallback: false } as const;
  const { backend, demand } = backendOf(true, { waitForPermit: async () => entry, waiterCount: 4 });
  expect(await backend.waitForPermit?.('k', 2, { maxWaitMs: 10 })).toBe(entry);
  expect(demand).toEqual([2]);
  expect(backend.waiterCount).toBe(4);
  expect([backendOf(true).backend.waitForPermit, backendOf(true).backend.waiterCount]).toEqual([
    undefined,
    0,
  ]);
});

test('remote groups: lends above the reserve level, and wakes waiting calls after a loan', async () => {
  const calls: unknown[] = [];
  const { limit, capacityFor } = backendOf(true, {
    takeSurplus: async (...args) => calls.push(args),
    credit: async (...args) => void calls.push(args),
  });
  expect(await limit.takeSurplus('k', 7)).toBe(1);
  limit.credit('k', 3);
  await expect.poll(() => capacityFor).toEqual(['k']);
  expect(calls).toEqual([
    ['k', 7, 10],
    ['k', 3, 10],
  ]);
});

test('remote groups: tells no pace of a queue, as other groups may lend', async () => {
  const change = async (): Promise<void> => {};
  const { backend } = backendOf(true, { prepareChange: () => change });
  const pace = () => backend.policy.queue?.drainMs(5) ?? 0;
  expect(pace()).toBe(0);
  await backend.prepareChange(bucket({ rate: 20, burst: 20 }))?.();
  expect(pace()).toBe(0);
});
