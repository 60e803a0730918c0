import { expect, test } from 'vitest';
import { deny } from '../../core/decision.ts';
import { bucket } from '../../policies/bucket.ts';
import type { RemoteShare } from '../remote-backend.ts';
import type { GroupLimit } from './limits.ts';
import { RemoteGroupShare } from './remote-backend.ts';

/** A bucket somewhere that is empty, or out of reach, and whatever else it can do. */
function shareOf(isReachable: boolean, more: Partial<RemoteShare> = {}) {
  const wants: number[] = [];
  const added: GroupLimit[] = [];
  const roomFor: string[] = [];
  const answer = { decision: deny(500), at: 0, isMakeshift: !isReachable };
  const inner = {
    isReachable,
    ask: async () => answer,
    askNow: async () => answer,
    askLine: async () => ({ ...answer, granted: 0, refused: answer.decision }),
    take: async () => 0,
    ...more,
  } as unknown as RemoteShare;
  const onRoom = (key: string): unknown => roomFor.push(key);
  const own = { name: 'api', perMs: 0.01, burst: 20, line: 10, onRoom };
  const group = {
    add: (limit: GroupLimit) => {
      added.push(limit);
      return () => {};
    },
    want: (_: unknown, __: string, n: number) => wants.push(n),
  };
  const policy = bucket({ rate: 10, burst: 20 });
  const share = new RemoteGroupShare(inner, policy, own, group);
  return { wants, share, limit: added[0], roomFor };
}

test.each([
  [true, [1, 2, 7, 20]],
  [false, []], // it has nowhere to put it, and others would lose it
])('steals for a bucket somewhere if that can be reached: %s', async (isReachable, expected) => {
  const { share, wants } = shareOf(isReachable);
  await share.ask('k', 1);
  await share.askNow('k', 2);
  await share.askLine('k', [3, 4]);
  await share.take('k', Infinity);
  expect(wants).toEqual(expected);
});

test('a stock that answers here is watched, too; one that has no answer is not', () => {
  const stock = shareOf(true, { askHere: () => deny(500) });
  expect(stock.share.askHere('k', 3)).toEqual(deny(500));
  expect(stock.wants).toEqual([3]);
  const none = shareOf(true);
  expect(none.share.askHere('k', 3)).toBeUndefined();
  expect(none.wants).toEqual([]);
});

test('whoever waits in a line somewhere is reason enough to steal', async () => {
  const entry = { verdict: 'allow', dueAt: 0, isMakeshift: false } as const;
  const { share, wants } = shareOf(true, { enter: async () => entry, waiting: 4 });
  expect(await share.enter?.('k', 2, { waitMsMax: 10 })).toBe(entry);
  expect(wants).toEqual([2]);
  expect(share.waiting).toBe(4);
  expect([shareOf(true).share.enter, shareOf(true).share.waiting]).toEqual([undefined, 0]);
});

test('others may have what is above the line; what comes from them is told to who waits', async () => {
  const asked: unknown[] = [];
  const { limit, roomFor } = shareOf(true, {
    spare: async (...told) => asked.push(told),
    gain: async (...told) => void asked.push(told),
  });
  expect(await limit.spare('k', 7)).toBe(1);
  limit.gain('k', 3);
  await expect.poll(() => roomFor).toEqual(['k']);
  expect(asked).toEqual([
    ['k', 7, 10],
    ['k', 3, 10],
  ]);
});
