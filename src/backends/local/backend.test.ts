import { describe, expect, test } from 'vitest';
import { backendContract } from '../../../test/support/backend-contract.ts';
import { createHasher } from '../../core/hash.ts';
import { seededRandom } from '../../core/random.ts';
import { backgroundIdle } from '../../core/steps.ts';
import { createPolicy } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { LocalBackend } from './backend.ts';

backendContract('local', ({ policy, clock, maxKeys }) => {
  return new LocalBackend(policy, { clock, maxKeys, random: seededRandom(7) });
});

describe('local backend with an injected hasher', () => {
  const limit = { bucket: { rate: 1, burst: 3 } };
  const setUp = (maxKeys = 1000, clock = new VirtualClock(1_000_000)) => {
    const hasher = createHasher([1, 2]);
    const policy = createPolicy(limit, seededRandom(1));
    const backend = new LocalBackend(policy, {
      clock,
      maxKeys,
      random: seededRandom(7),
      hasher,
    });
    return { backend, clock, hasher };
  };

  test('local backend: decides by hash as by name', () => {
    const { backend, hasher } = setUp();
    backend.check('alice', 2);
    hasher.hash('alice');
    expect(backend.checkHashed(hasher.low, hasher.high, 1)).toEqual({
      verdict: 'allow',
      remaining: 0,
    });
    expect(backend.check('alice', 1)).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
    hasher.hash('bob');
    expect(backend.checkHashed(hasher.low, hasher.high, 1)).toEqual({
      verdict: 'allow',
      remaining: 2,
    });
  });

  test('local backend: feedback for an unknown key changes nothing', () => {
    const { backend, hasher } = setUp();
    hasher.hash('unknown');
    const { low, high } = hasher;
    backend.credit('unknown', 2, 3);
    backend.settleHashed(low, high, { outcome: 'ignored', cost: 2, dueAt: 0 });
    expect(backend.readHashed(low, high, () => 7)).toBe(0);
    expect(backend.keys).toBe(0);
  });

  test.each([0, 5000])(
    'local backend: a change that was prepared %i new keys ago keeps what all keys have spent',
    (newKeys) => {
      const { backend } = setUp(10_000);
      const policy = createPolicy({ bucket: { rate: 1, burst: 5 } }, seededRandom(1));
      for (let n = 0; n < 100; n++) backend.check(`old-${n}`, 2);
      const change = backend.prepareChange(policy);
      for (let n = 0; n < newKeys; n++) backend.check(`new-${n}`, 3);
      change?.();
      for (let n = 0; n < 100; n++) expect(backend.takeUpTo(`old-${n}`, 9)).toBe(3);
      for (let n = 0; n < newKeys; n++) expect(backend.takeUpTo(`new-${n}`, 9)).toBe(2);
      expect(backend.keys).toBe(100 + newKeys);
    },
  );

  test('local backend: a change that is prepared while the table grows moves its keys in the background', async () => {
    const { backend } = setUp(10_000);
    const policy = createPolicy({ bucket: { rate: 1, burst: 5 } }, seededRandom(1));
    let keys = 0;
    const before = backend.bytes;
    while (backend.bytes <= before * 64) backend.check(`key-${keys++}`, 2); // has just grown
    const inBothBlocks = backend.bytes;
    backend.prepareChange(policy);
    await backgroundIdle();
    expect(backend.bytes).toBeLessThan(inBothBlocks);
    expect(backend.keys).toBe(keys);
  });

  test('local backend: takeSurplus leaves the given level', () => {
    const { backend } = setUp();
    expect(backend.takeSurplus('alice', Infinity, 2)).toBe(1);
    expect(backend.takeSurplus('alice', Infinity, 2)).toBe(0);
    expect(backend.takeUpTo('alice', Infinity)).toBe(2);
  });

  test('local backend: changes nothing for a key that does not fit', () => {
    const full = new LocalBackend(createPolicy({ adaptive: {} }, seededRandom(1)), {
      ...{ clock: new VirtualClock(), random: seededRandom(7), maxKeys: 1 },
    });
    full.check('in flight', 1);
    let changes = 0;
    full.changeHashed(1, 2, () => changes++);
    expect([changes, full.keys]).toEqual([0, 1]);
  });

  test('local backend: markAllSpent applies to keys that spent less and to new keys', () => {
    const { backend, clock } = setUp();
    backend.update('debtor', { hits: 9 });
    backend.check('other', 1);
    backend.markAllSpent(clock.now() + 3000); // the time to refill three tokens
    const left = (): number[] =>
      ['debtor', 'other', 'new'].map((key) => backend.inspect(key).state.remaining);
    expect(left()).toEqual([-6, 0, 0]);
    clock.advance(2000);
    expect(left()).toEqual([-4, 2, 2]);
  });

  test('local backend: restore continues from a snapshot', () => {
    const { backend, clock } = setUp();
    for (let n = 0; n < 500; n++) backend.check(`key ${n}`, 1 + (n % 3));
    const next = setUp(1000, clock).backend;
    next.restore(backend.snapshot());
    for (let n = 0; n < 500; n++) {
      expect(next.inspect(`key ${n}`)).toEqual(backend.inspect(`key ${n}`));
    }
    expect(next.keys).toBe(500);
    expect(next.inspect('new').state.remaining).toBe(3);
  });

  test('local backend: a snapshot omits keys that are as good as new', () => {
    const { backend, clock } = setUp();
    backend.check('early', 1);
    clock.advance(1000);
    backend.check('late', 1);
    const next = setUp(1000, clock).backend;
    next.restore(backend.snapshot());
    expect(next.keys).toBe(1);
  });

  test('local backend: a successor keeps the debt of evicted keys', () => {
    const { backend, clock } = setUp(100);
    for (let n = 0; n < 1000; n++) backend.check(`key ${n}`, 3);
    const next = setUp(100, clock).backend;
    next.restore(backend.snapshot());
    for (let n = 0; n < 1000; n++) expect(next.check(`key ${n}`, 1).verdict).toBe('deny');
  });

  test('local backend: a fresh key owes at most what an evicted one can, by any use', () => {
    const { backend, clock } = setUp(100);
    for (let n = 0; n < 2000; n++) {
      const overuse = { outcome: 'ok', cost: 1, used: 1e15, dueAt: clock.now() } as const;
      backend.settle(`evil ${n}`, overuse);
    }
    const [decision] = Array.from({ length: 2000 }, (_, n) =>
      backend.check(`fresh ${n}`, 1),
    ).filter(({ verdict }) => verdict === 'deny');
    expect(decision).toMatchObject({ retryAfterMs: 3_601_000 }); // an hour, and one token
  });

  test('local backend: restore keeps maxKeys and known keys', () => {
    const { backend, clock } = setUp();
    for (let n = 0; n < 50; n++) backend.check(`key ${n}`, 3);
    const next = setUp(10, clock).backend;
    next.check('key 7', 1);
    next.restore(backend.snapshot());
    expect(next.keys).toBeLessThanOrEqual(10);
  });

  test.each([
    ['a bucket', { bucket: { rate: 1, burst: 30 } }, { bucket: { rate: 3, burst: 20 } }],
    ['a window', { window: { limit: 30, per: '1m' } }, { window: { limit: 20, per: '1m' } }],
    ['the same rule', { bucket: { rate: 1, burst: 30 } }, { bucket: { rate: 1, burst: 30 } }],
  ])('local backend: copies the keys of %s as a snapshot would', (_, before, after) => {
    const clock = new VirtualClock(1_000_000);
    const hasher = createHasher([1, 2]);
    const random = seededRandom(7);
    const create = (rule: unknown, maxKeys: number) =>
      new LocalBackend(createPolicy(rule, random), { clock, maxKeys, random, hasher });
    const source = create(before, 500); // evicts some keys that are in use
    for (let n = 0; n < 5000; n++) {
      source.check(`key ${Math.floor(random() * 600)}`, 1 + Math.floor(random() * 5));
      clock.advance(3);
    }
    const keys = Array.from({ length: 700 }, (_, n) => `key ${n}`);
    const statesOf = (backend: LocalBackend) => keys.map((key) => backend.inspect(key));
    const ofSource = statesOf(source);
    const [restored, copy] = [create(after, 1000), create(after, 1000)];
    expect(restored.restore(source.snapshot(), createPolicy(before, random))).toBe(true);
    expect(copy.copyFrom(source)).toBe(true);
    expect(statesOf(copy)).toEqual(statesOf(restored));
    expect(statesOf(source)).toEqual(ofSource);
    for (let n = 0; n < 3000; n++) {
      const key = keys[Math.floor(random() * keys.length)];
      expect(copy.check(key, 2)).toEqual(restored.check(key, 2));
      if (n % 100 === 99) clock.advance(500);
    }
  });

  test('local backend: copies no keys of another kind of rule, nor more than it may have', () => {
    const { backend, hasher, clock } = setUp();
    for (let n = 0; n < 50; n++) backend.check(`key ${n}`, 1);
    const options = { clock, random: seededRandom(1), hasher };
    const window = createPolicy({ window: { limit: 3, per: '1s' } }, seededRandom(1));
    const other = new LocalBackend(window, { ...options, maxKeys: 100 });
    expect(other.copyFrom(backend)).toBe(false);
    const small = createPolicy(limit, seededRandom(1));
    expect(new LocalBackend(small, { ...options, maxKeys: 10 }).copyFrom(backend)).toBe(undefined);
  });

  test('local backend: overuse of a key dropped meanwhile becomes debt', () => {
    const { backend, clock, hasher: own } = setUp(100);
    const overuse = { outcome: 'ok', cost: 2, used: 10, dueAt: clock.now() } as const;
    backend.settle('alice', overuse);
    own.hash('bob');
    backend.settleHashed(own.low, own.high, overuse);
    expect([backend.inspect('alice'), backend.inspect('bob')]).toMatchObject([
      { state: { remaining: -5 } },
      { state: { remaining: -5 } },
    ]);
  });

  test('local backend: an ignored call of a dropped key adds no key', () => {
    const { backend, clock } = setUp(100);
    backend.settle('alice', { outcome: 'ignored', cost: 2, used: 10, dueAt: clock.now() });
    expect(backend.keys).toBe(0);
  });
});
