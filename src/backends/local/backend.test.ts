import { describe, expect, test } from 'vitest';
import { shareContract } from '../../../test/support/share-contract.ts';
import { hasher } from '../../core/hash.ts';
import { seededRandom } from '../../core/random.ts';
import { policyOf } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { LocalShare } from './backend.ts';

shareContract('local', ({ policy, clock, keysMax }) => {
  return new LocalShare(policy, { clock, keysMax, random: seededRandom(7) });
});

describe('a share with a hasher of its surface', () => {
  const limit = { bucket: { rate: 1, burst: 3 } };
  const setUp = (keysMax = 1000, clock = new VirtualClock(1_000_000)) => {
    const own = hasher([1, 2]);
    const policy = policyOf(limit, seededRandom(1));
    const share = new LocalShare(policy, { clock, keysMax, random: seededRandom(7), hasher: own });
    return { share, clock, hasher: own };
  };

  test('answers by hash as it answers by name', () => {
    const { share, hasher: own } = setUp();
    share.ask('alice', 2);
    own.hash('alice');
    expect(share.askHashed(own.low, own.high, 1)).toEqual({ verdict: 'allow', remaining: 0 });
    expect(share.ask('alice', 1)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
    own.hash('bob');
    expect(share.askHashed(own.low, own.high, 1)).toEqual({ verdict: 'allow', remaining: 2 });
  });

  test('what comes from elsewhere for a key that is not known changes nothing', () => {
    const { share, hasher: own } = setUp();
    own.hash('nobody');
    const { low, high } = own;
    share.gain('nobody', 2, 3);
    share.settleHashed(low, high, { outcome: 'ignored', cost: 2, dueAt: 0 });
    expect(share.readHashed(low, high, () => 7)).toBe(0);
    expect(share.keys).toBe(0);
  });

  test('takes all but what it is to leave', () => {
    const { share } = setUp();
    expect(share.spare('alice', Infinity, 2)).toBe(1);
    expect(share.spare('alice', Infinity, 2)).toBe(0);
    expect(share.take('alice', Infinity)).toBe(2);
  });

  test('nothing is changed for a key that there is no room for', () => {
    const crowded = new LocalShare(policyOf({ adaptive: {} }, seededRandom(1)), {
      ...{ clock: new VirtualClock(), random: seededRandom(7), keysMax: 1 },
    });
    crowded.ask('in flight', 1);
    let changes = 0;
    crowded.changeHashed(1, 2, () => changes++);
    expect([changes, crowded.keys]).toEqual([0, 1]);
  });

  test('counted as spent until then is who has spent less, and whoever is yet to come', () => {
    const { share, clock } = setUp();
    share.hear('debtor', { hits: 9 });
    share.ask('guest', 1);
    share.raiseAll(clock.now() + 3000); // as long as three tokens take
    const left = (): number[] =>
      ['debtor', 'guest', 'stranger'].map((key) => share.inspect(key).view.remaining);
    expect(left()).toEqual([-6, 0, 0]);
    clock.advance(2000);
    expect(left()).toEqual([-4, 2, 2]);
  });

  test('goes on from where another has stopped', () => {
    const { share, clock } = setUp();
    for (let n = 0; n < 500; n++) share.ask(`key ${n}`, 1 + (n % 3));
    const next = setUp(1000, clock).share;
    next.takeOver(share.copy());
    for (let n = 0; n < 500; n++) {
      expect(next.inspect(`key ${n}`)).toEqual(share.inspect(`key ${n}`));
    }
    expect(next.keys).toBe(500);
    expect(next.inspect('stranger').view.remaining).toBe(3);
  });

  test('leaves out what is as good as new by now', () => {
    const { share, clock } = setUp();
    share.ask('early', 1);
    clock.advance(1000);
    share.ask('late', 1);
    const next = setUp(1000, clock).share;
    next.takeOver(share.copy());
    expect(next.keys).toBe(1);
  });

  test('after a flood, a successor is no more generous to those who made room', () => {
    const { share, clock } = setUp(100);
    for (let n = 0; n < 1000; n++) share.ask(`key ${n}`, 3);
    const next = setUp(100, clock).share;
    next.takeOver(share.copy());
    for (let n = 0; n < 1000; n++) expect(next.ask(`key ${n}`, 1).verdict).toBe('deny');
  });

  test('keeps its own bound, and what it knew already', () => {
    const { share, clock } = setUp();
    for (let n = 0; n < 50; n++) share.ask(`key ${n}`, 3);
    const next = setUp(10, clock).share;
    next.ask('key 7', 1);
    next.takeOver(share.copy());
    expect(next.keys).toBeLessThanOrEqual(10);
  });
});
