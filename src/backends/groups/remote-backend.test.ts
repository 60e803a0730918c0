import { expect, test } from 'vitest';
import { deny } from '../../core/decision.ts';
import { bucket } from '../../policies/bucket.ts';
import type { RemoteBackend } from '../remote-backend.ts';
import type { GroupLimit } from './limits.ts';
import { RemoteGroupsBackend } from './remote-backend.ts';

/** A bucket somewhere that is empty, or out of reach, and whatever else it can do. */
function backendOf(isAvailable: boolean, more: Partial<RemoteBackend> = {}) {
  const wants: number[] = [];
  const added: GroupLimit[] = [];
  const roomFor: string[] = [];
  const answer = { decision: deny(500), decidedAt: 0, fromFallback: !isAvailable };
  const inner = {
    isAvailable,
    check: async () => answer,
    checkNow: async () => answer,
    checkBatch: async () => ({ ...answer, granted: 0, refusal: answer.decision }),
    takeUpTo: async () => 0,
    ...more,
  } as unknown as RemoteBackend;
  const onCapacity = (key: string): unknown => roomFor.push(key);
  const own = { name: 'api', perMs: 0.01, burst: 20, reserveLevel: 10, onCapacity };
  const group = {
    register: (limit: GroupLimit) => {
      added.push(limit);
      return () => {};
    },
    recordDemand: (_: unknown, __: string, n: number) => wants.push(n),
  };
  const policy = bucket({ rate: 10, burst: 20 });
  const backend = new RemoteGroupsBackend(inner, policy, own, group);
  return { wants, backend, limit: added[0], roomFor };
}

test.each([
  [true, [1, 2, 7, 20]],
  [false, []], // it has nowhere to put it, and others would lose it
])('steals for a bucket somewhere if that can be reached: %s', async (isAvailable, expected) => {
  const { backend, wants } = backendOf(isAvailable);
  await backend.check('k', 1);
  await backend.checkNow('k', 2);
  await backend.checkBatch('k', [3, 4]);
  await backend.takeUpTo('k', Infinity);
  expect(wants).toEqual(expected);
});

test('a stock that answers here is watched, too; one that has no answer is not', () => {
  const stock = backendOf(true, { checkPrefetched: () => deny(500) });
  expect(stock.backend.checkPrefetched('k', 3)).toEqual(deny(500));
  expect(stock.wants).toEqual([3]);
  const none = backendOf(true);
  expect(none.backend.checkPrefetched('k', 3)).toBeUndefined();
  expect(none.wants).toEqual([]);
});

test('whoever waits in a line somewhere is reason enough to steal', async () => {
  const entry = { verdict: 'allow', dueAt: 0, fromFallback: false } as const;
  const { backend, wants } = backendOf(true, { waitForPermit: async () => entry, waiterCount: 4 });
  expect(await backend.waitForPermit?.('k', 2, { maxWaitMs: 10 })).toBe(entry);
  expect(wants).toEqual([2]);
  expect(backend.waiterCount).toBe(4);
  expect([backendOf(true).backend.waitForPermit, backendOf(true).backend.waiterCount]).toEqual([
    undefined,
    0,
  ]);
});

test('others may have what is above the line; what comes from them is told to who waits', async () => {
  const asked: unknown[] = [];
  const { limit, roomFor } = backendOf(true, {
    takeSurplus: async (...told) => asked.push(told),
    credit: async (...told) => void asked.push(told),
  });
  expect(await limit.takeSurplus('k', 7)).toBe(1);
  limit.credit('k', 3);
  await expect.poll(() => roomFor).toEqual(['k']);
  expect(asked).toEqual([
    ['k', 7, 10],
    ['k', 3, 10],
  ]);
});
