import { describe, expect, test } from 'vitest';
import { createHasher } from '../../core/hash.ts';
import { seededRandom } from '../../core/random.ts';
import { createPolicy } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/index.ts';
import { createPeersBackend } from './factory.ts';
import type { PeerLimit } from './limits.ts';

const CHANNELS = ['count +', 'count -', 'pending +', 'pending -', 'lock', 'unlock'] as const;
type Channel = (typeof CHANNELS)[number];

/** One node whose sent reports are recorded and whose received reports come from the test. */
function node() {
  const clock = new VirtualClock(1_000_000);
  const random = seededRandom(1);
  const hasher = createHasher([1, 2]);
  const opened: PeerLimit[] = [];
  const recorded: [Channel, number][] = [];
  const channelOf = (limit: PeerLimit): Channel => CHANNELS[opened.indexOf(limit) - 1]; // after the limit itself
  const network = {
    hasher,
    addLimit: (limit: PeerLimit) => void opened.push(limit),
    removeLimit() {},
    recordHits: (limit: PeerLimit, _low: number, _high: number, amount: number) =>
      void recorded.push([channelOf(limit), amount]),
    retractHits() {},
    msUntilReleased: () => Infinity,
    isCatchingUp: () => false,
  };
  const policy = createPolicy({ lockout: { after: 3, lock: ['1m', '5m'] } }, random);
  const context = { name: 'login', clock, random, maxKeys: 100 };
  const backend = createPeersBackend(policy, context, network);
  const receive = (channel: Channel, amount: number, agoMs = 0): void => {
    hasher.hash('alice');
    const { low, high } = hasher;
    opened[1 + CHANNELS.indexOf(channel)].applyRemoteHits(low, high, amount, agoMs);
  };
  const take = (): [Channel, number][] => recorded.splice(0);
  const state = () => {
    const { failures, locks, lockedMs = 0 } = backend.inspect('alice').state;
    return { failures, locks, lockedMs };
  };
  const attempt = (): boolean => backend.check('alice', 1).verdict === 'allow';
  const report = (outcome: 'success' | 'failure'): boolean =>
    backend.update('alice', { report: outcome });
  return { clock, receive, take, state, attempt, report };
}

const LOCK_1 = 60_000 * 64 + 1;

describe('peers: channels of a lock-out', () => {
  test('attempts, failures and successes are reported as changes of count and pending', () => {
    const { take, attempt, report } = node();
    attempt();
    expect(take()).toEqual([
      ['count +', 1],
      ['pending +', 1],
    ]);
    report('failure');
    expect(take()).toEqual([['pending -', 1]]);
    report('failure'); // without an attempt
    expect(take()).toEqual([['count +', 1]]);
    attempt();
    expect(take()).toEqual([
      ['count +', 1],
      ['pending +', 1],
      ['lock', LOCK_1],
    ]);
    expect(attempt()).toBe(false);
    expect(take()).toEqual([]); // a refusal changes nothing
    report('success');
    expect(take()).toEqual([
      ['pending -', 1],
      ['count -', 3],
      ['unlock', 1], // no step is left
    ]);
  });

  test('the failure that completes the count locks, whether it comes from here or from a peer', () => {
    const { receive, state, take, attempt } = node();
    attempt();
    take();
    receive('count +', 2);
    expect(state()).toEqual({ failures: 3, locks: 1, lockedMs: 60_000 });
    expect(take()).toEqual([]); // each node counts separately
    receive('lock', LOCK_1); // the same lock
    expect(state()).toEqual({ failures: 3, locks: 1, lockedMs: 60_000 });
  });

  test('a lock of a peer counts from when it began, and never shortens one', () => {
    const { receive, state } = node();
    receive('lock', LOCK_1, 20_000);
    expect(state()).toMatchObject({ locks: 1, lockedMs: 40_000 });
    receive('lock', 10_000 * 64 + 2);
    expect(state()).toMatchObject({ locks: 2, lockedMs: 40_000 });
    receive('lock', 1e12 * 64 + 63);
    expect(state()).toMatchObject({ locks: 2, lockedMs: 300_000 }); // within the rule
  });

  test('a return that arrives before its attempt cancels it', () => {
    const { receive, state } = node();
    receive('pending -', 1);
    receive('count -', 1);
    expect(state().failures).toBe(0);
    receive('count +', 1, 100);
    receive('pending +', 1, 100);
    expect(state().failures).toBe(0);
    receive('count +', 1);
    expect(state().failures).toBe(1);
  });

  test('what was taken back twice is forgotten after five seconds', () => {
    const { clock, receive, state } = node();
    receive('count +', 2);
    receive('count -', 2);
    receive('count -', 2);
    clock.advance(5001);
    receive('count +', 2);
    expect(state().failures).toBe(2);
  });

  test('a lock is ended by a peer only where the count is below `after`', () => {
    const { receive, state } = node();
    receive('count +', 3);
    receive('unlock', 1);
    expect(state()).toMatchObject({ locks: 1, lockedMs: 60_000 });
    receive('count -', 1);
    receive('unlock', 1);
    expect(state()).toEqual({ failures: 2, locks: 0, lockedMs: 0 });
  });

  test('a node that has reported a lock reports its end, if a peer has taken an attempt back', () => {
    const { receive, take, attempt } = node();
    for (let n = 0; n < 3; n++) attempt();
    take();
    receive('pending -', 1);
    receive('count -', 1);
    expect(take()).toEqual([['unlock', 1]]);
  });

  test('after an end of the lock, a late message about it changes nothing', () => {
    const { clock, receive, state } = node();
    receive('unlock', 1);
    receive('lock', LOCK_1, 100);
    expect(state().lockedMs).toBe(0);
    clock.advance(121_000);
    receive('lock', LOCK_1);
    expect(state().lockedMs).toBe(60_000);
  });
});
