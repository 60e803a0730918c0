import { expect, test } from 'vitest';
import { deny } from '../../decision.ts';
import { bucket } from '../../policy/bucket.ts';
import type { RemoteShare } from '../remote.ts';
import { RemoteGroupShare } from './remote-share.ts';

/** A bucket somewhere that is empty, or out of reach. */
function shareOf(isReachable: boolean) {
  const wants: number[] = [];
  const answer = { decision: deny(500), at: 0, isMakeshift: !isReachable };
  const inner = {
    isReachable,
    ask: async () => answer,
    askNow: async () => answer,
    askLine: async () => ({ ...answer, granted: 0, refused: answer.decision }),
    take: async () => 0,
  } as unknown as RemoteShare;
  const own = { name: 'api', perMs: 0.01, burst: 20, line: 10 };
  const company = {
    add: () => () => {},
    want: (_: unknown, __: string, n: number) => wants.push(n),
  };
  const policy = bucket({ rate: 10, burst: 20 });
  return { wants, share: new RemoteGroupShare(inner, policy, own, company) };
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
