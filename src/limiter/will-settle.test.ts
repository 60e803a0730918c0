import { describe, expect, test } from 'vitest';
import type { RemoteBackend, RemoteBackendFactory } from '../backends/remote-backend.ts';
import { allow } from '../core/decision.ts';
import type { Limit } from '../policies/limit.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { all } from './composite-limiter.ts';
import { limiter } from './limiter.ts';

const clock = new VirtualClock();
const local = (limit: Limit, name = 'db') => limiter({ name, limit, clock });

const allowing: Partial<RemoteBackend> = {
  check: async () => ({ decision: allow(1), decidedAt: 0 }),
  checkNow: async () => ({ decision: allow(1), decidedAt: 0 }),
  checkBatch: async () => ({ granted: 1, refusal: undefined, decidedAt: 0 }),
  settle: async () => {},
};
const elsewhere: RemoteBackendFactory = {
  isRemote: true,
  create: () => allowing as RemoteBackend,
};
const remote = (limit: Limit, name = 'db') => limiter({ name, limit, clock, backend: elsewhere });

const BUCKET: Limit = { bucket: { rate: '1/s', burst: 9 } };
const EXPECTED =
  'expected `willSettle` to be true for `check` of limit "db", whose calls must be settled: use acquire, tryAcquire or throttle, whose permit settles, or call settle(key) after each allowed check and pass { willSettle: true }, got undefined';

describe('check without willSettle', () => {
  const settled: readonly (readonly [string, Limit])[] = [
    ['concurrency', { concurrency: 2 }],
    ['adaptive', { adaptive: {} }],
    ['adaptive, rule aimd', { adaptive: { rule: 'aimd' } }],
    ['busy', { busy: {} }],
    ['all with a concurrency limit', { all: [BUCKET, { concurrency: 2 }] }],
  ];
  test.each(settled)('%s: throws at the first call, and takes nothing', (_kind, limit) => {
    const db = local(limit);
    expect(() => db.check('k')).toThrow(EXPECTED);
    expect(db.stats().allowed).toBe(0);
    expect(db.inspect('k').inFlight ?? 0).toBe(0);
  });

  test('a backend that decides elsewhere: rejects', async () => {
    await expect(remote({ concurrency: 2 }).check('k')).rejects.toThrow(EXPECTED);
  });

  test('all() with such a part: names the part, and takes nothing of the others', async () => {
    const bucket = local(BUCKET, 'rate');
    const both = all([bucket, local({ concurrency: 2 })]);
    expect(() => both.check('k')).toThrow(EXPECTED);
    expect(() => both.check('k', 1, { id: 'a' })).toThrow(EXPECTED);
    expect(bucket.stats().allowed).toBe(0);
    const mixed = all([remote(BUCKET, 'rate'), local({ concurrency: 2 })]);
    await expect(mixed.check('k')).rejects.toThrow(EXPECTED);
    const shared = all([bucket, remote({ concurrency: 2 })]);
    await expect(shared.check('k', 1, { id: 'a' })).rejects.toThrow(EXPECTED);
  });

  test('a cost of 0 takes nothing, so there is nothing to settle', async () => {
    expect(local({ concurrency: 2 }).check('k', 0).verdict).toBe('allow');
    expect(all([local({ concurrency: 2 })]).check('k', 0).verdict).toBe('allow');
    expect((await remote({ concurrency: 2 }).check('k', 0)).verdict).toBe('allow');
  });

  test('other kinds need none, and accept it', () => {
    const others: readonly Limit[] = [
      BUCKET,
      { spacing: { every: '1s', reserve: 2 } },
      { window: { limit: 2, per: '1s' } },
      { quota: { limit: 2, per: 'day' } },
      { ramp: { min: 1, max: 2, over: '10s' } },
      { lockout: { after: 3, within: '1h', lock: '1h' } },
    ];
    for (const limit of others) {
      expect(local(limit).check('a').verdict).toBe('allow');
      expect(local(limit).check('a', 1, { willSettle: true }).verdict).toBe('allow');
    }
  });
});

describe('check with willSettle', () => {
  test('concurrency: refuses while full, allows again after settle(key)', () => {
    const db = local({ concurrency: 2 });
    const check = () => db.check('k', 1, { willSettle: true }).verdict;
    expect([check(), check(), check()]).toEqual(['allow', 'allow', 'deny']);
    db.settle('k');
    expect(check()).toBe('allow');
  });

  test('all(), an id, and a backend that decides elsewhere: allowed', async () => {
    const options = { willSettle: true, id: 'a' };
    expect(local({ concurrency: 2 }).check('k', 1, options).verdict).toBe('allow');
    expect(all([local({ concurrency: 2 })]).check('k', 1, options).verdict).toBe('allow');
    expect((await remote({ concurrency: 2 }).check('k', 1, options)).verdict).toBe('allow');
    const shared = all([remote(BUCKET, 'rate'), local({ concurrency: 2 })]);
    expect((await shared.check('k', 1, options)).verdict).toBe('allow');
  });

  test('any other value is refused, a misspelt name is corrected', () => {
    const db = local({ concurrency: 2 });
    expect(() => db.check('k', 1, { willSettle: false })).toThrow(/got false$/);
    expect(() => db.check('k', 1, { wilSettle: true } as never)).toThrow(/`willSettle`/);
    expect(() => db.peek('k', 1, { willSettle: true } as never)).toThrow(/one of partition, level/);
  });
});
