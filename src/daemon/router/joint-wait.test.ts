import { describe, expect, test } from 'vitest';
import { createRouter } from '../../../test/support/http-protocol.ts';
import { deny } from '../../core/decision.ts';
import type { Inspection } from '../../limiter/inspection.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { readLimits } from '../config/limits.ts';
import { readPatterns } from '../keys/pattern.ts';
import { NO_PATTERNS, PatternTable } from '../keys/pattern-table.ts';
import type { JointPart } from './joint-check.ts';
import { acquireAll } from './joint-wait.ts';
import type { CheckResult } from './request.ts';

type Item = readonly [limit: string, key: string, cost?: number];

/** 5 logins a minute per user, of which one at once, and 20 per address. */
const LOGIN = {
  user: { bucket: { rate: '5/m', burst: 1 }, match: 'user:*' },
  ip: { bucket: { rate: '20/m', burst: 2 }, match: 'ip:*' },
};

const LOGIN_OF = (user: string): readonly Item[] => [
  ['user', `user:${user}`],
  ['ip', 'ip:1'],
];

/** A router on a virtual clock. `results` has what was decided, by name and in order. */
function setUp(limits: unknown = LOGIN, extra: Parameters<typeof createRouter>[0] = {}) {
  const clock = new VirtualClock(1_700_000_000_000);
  const router = createRouter({ limits, ...extra }, clock);
  const startedAt = clock.now();
  const results: [name: string, verdict: string, atMs: number][] = [];
  const wait = (name: string, items: readonly Item[], waitMs: number, more: WaitMore = {}) => {
    const { signal, holdsPermit = false } = more;
    const parts = items.map(([limitName, key, cost = 1]): JointPart => {
      const limit = limitName === '*' ? undefined : limitName;
      const request = router.route({ limit, key, cost });
      if (!request) throw new Error(`unknown limit ${limitName}`);
      return { limit, key, request };
    });
    return acquireAll(router, parts, holdsPermit, { waitMs, signal }).then((result) => {
      results.push([name, result.decision.verdict, clock.now() - startedAt]);
      return result;
    });
  };
  const left = (limit: string, key: string): number => {
    const request = router.route({ limit, key, cost: 0 });
    const statuses = router.inspect(request as NonNullable<typeof request>) as Inspection[];
    return statuses.find(({ name }) => name === limit)?.remaining ?? Number.NaN;
  };
  return { clock, router, wait, left, results };
}

interface WaitMore {
  readonly signal?: AbortSignal;
  readonly holdsPermit?: boolean;
}

describe('several checks that wait', () => {
  test('per user and per address: waits until both allow it, and charges nothing until then', async () => {
    const { clock, wait, left, results } = setUp();
    await wait('first', LOGIN_OF('a'), 0);
    expect([left('user', 'user:a'), left('ip', 'ip:1')]).toEqual([0, 1]);
    const second = wait('second', LOGIN_OF('a'), 60_000);
    await clock.advanceAsync(11_000);
    expect([results.length, left('ip', 'ip:1')]).toEqual([1, 2]);
    await clock.advanceAsync(1000);
    expect(await second).toEqual({ decision: { verdict: 'allow', remaining: 0 } });
    expect(results).toEqual([
      ['first', 'allow', 0],
      ['second', 'allow', 12_000],
    ]);
    expect([left('user', 'user:a'), left('ip', 'ip:1')]).toEqual([0, 1]);
  });

  test('users of one address: first come first served, and a user that waits longer holds up no other', async () => {
    const { clock, wait, results } = setUp();
    await wait('a', LOGIN_OF('a'), 0);
    await wait('b', LOGIN_OF('b'), 0);
    for (const user of ['a', 'c', 'd']) void wait(user, LOGIN_OF(user), 60_000);
    await clock.advanceAsync(60_000);
    expect(results.slice(2)).toEqual([
      ['c', 'allow', 3000],
      ['d', 'allow', 6000],
      ['a', 'allow', 12_000],
    ]);
  });

  test('cost above the burst: refused at once, for good', async () => {
    const { wait, left } = setUp();
    const items: readonly Item[] = [
      ['user', 'user:a'],
      ['ip', 'ip:1', 3],
    ];
    expect(await wait('x', items, 60_000)).toEqual({ decision: deny(Infinity), limit: 'ip' });
    expect(left('user', 'user:a')).toBe(1);
  });

  test('wait that would be in vain: refused at once with the longest time', async () => {
    const { wait } = setUp();
    await wait('x', [...LOGIN_OF('a'), ['ip', 'ip:1']], 0);
    const result = await wait('y', LOGIN_OF('a'), 11_000);
    expect(result).toEqual({ decision: deny(12_000), limit: 'user' });
  });

  test('client that leaves: is charged nothing, and the next call has its turn', async () => {
    const { clock, wait, results, router } = setUp();
    await wait('first', LOGIN_OF('a'), 0);
    const gone = new AbortController();
    const leaving = wait('leaving', LOGIN_OF('a'), 60_000, { signal: gone.signal });
    void wait('next', LOGIN_OF('a'), 60_000);
    await clock.advanceAsync(1000);
    gone.abort(new Error('left'));
    await expect(leaving).rejects.toThrow('left');
    await clock.advanceAsync(11_000);
    expect(results.at(-1)).toEqual(['next', 'allow', 12_000]);
    expect(router.registry.all.map(({ limiter }) => limiter.stats().waiting)).toEqual([0, 0]);
  });

  test('stop: calls that wait are refused as unavailable, and no further call waits', async () => {
    const { clock, wait, router } = setUp();
    await wait('first', LOGIN_OF('a'), 0);
    const waiting = wait('waiting', LOGIN_OF('a'), 60_000);
    router.waiting.stop(clock, 1000);
    await clock.advanceAsync(900);
    const refused = { limit: 'user', reason: 'unavailable' };
    expect(await waiting).toMatchObject(refused);
    expect(await wait('late', LOGIN_OF('a'), 60_000)).toMatchObject(refused);
  });

  test('full queue: one attempt without waiting', async () => {
    const { wait, router } = setUp();
    router.waiting.bounds = { maxWaiting: 1, maxWaitMs: 60_000 };
    await wait('first', LOGIN_OF('a'), 0);
    void wait('waiting', LOGIN_OF('a'), 60_000);
    expect(await wait('x', LOGIN_OF('a'), 60_000)).toMatchObject({ reason: 'queue-full' });
    expect((await wait('y', LOGIN_OF('b'), 60_000)).decision.verdict).toBe('allow');
  });

  test('reload: a call waits at the new limits; a key on the deny list is refused at once', async () => {
    const { clock, wait, router } = setUp();
    const apply = (limits: unknown, denied?: unknown): void => {
      const read = readLimits(limits, 'limits');
      router.registry.apply(read);
      const listed = PatternTable.of(readPatterns(denied, 'deny'));
      router.applyConfig({ allow: NO_PATTERNS, deny: listed, unmatched: 'allow', limits: read });
    };
    for (const user of ['a', 'b']) await wait('first', LOGIN_OF(user), 0);
    const [ofA, ofB] = ['a', 'b'].map((user) => wait(user, LOGIN_OF(user), 60_000));
    apply({ ...LOGIN, user: { bucket: { rate: '1/s', burst: 1 }, match: 'user:*' } }, ['user:b']);
    await clock.advanceAsync(0);
    expect((await ofB).staticVerdict?.reason).toBe('deny-list');
    await clock.advanceAsync(3000);
    expect((await ofA).decision.verdict).toBe('allow');
    const last = wait('last', LOGIN_OF('a'), 60_000);
    apply({ ip: LOGIN.ip });
    await clock.advanceAsync(0);
    expect(await last).toMatchObject({ limit: 'user', reason: 'unavailable' });
  });

  test('reload: all keys of a call come to a list, which decides', async () => {
    const { clock, wait, router } = setUp();
    const limits = router.limits;
    const apply = (allow: unknown, denied: unknown): void =>
      router.applyConfig({
        allow: PatternTable.of(readPatterns(allow, 'allow')),
        deny: PatternTable.of(readPatterns(denied, 'deny')),
        unmatched: 'allow',
        limits,
      });
    await wait('first', LOGIN_OF('a'), 0);
    const allowed = wait('waiting', LOGIN_OF('a'), 60_000);
    apply('*', []);
    await clock.advanceAsync(0);
    expect((await allowed).staticVerdict?.reason).toBe('allow-list');
    apply([], []);
    const denied = wait('waiting', [['user', 'user:a']], 60_000);
    apply([], 'user:*');
    await clock.advanceAsync(0);
    expect((await denied).staticVerdict?.reason).toBe('deny-list');
    expect(router.staticDenials['deny-list']).toBe(1);
  });

  test('limit on calls in flight: one permit for all checks, and the next call has its turn when it is settled', async () => {
    const { clock, wait, router, left } = setUp({ ...LOGIN, slots: { concurrency: 1 } });
    const job = (user: string): readonly Item[] => [['slots', 'db'], ...LOGIN_OF(user)];
    const { permit = '' } = await wait('first', job('a'), 0, { holdsPermit: true });
    const second = wait('second', job('b'), 60_000, { holdsPermit: true });
    const looking = wait('looking', job('c'), 60_000);
    await clock.advanceAsync(1000);
    expect([left('user', 'user:b'), left('slots', 'db')]).toEqual([1, 0]);
    router.permits.settle(permit, {});
    await clock.advanceAsync(0);
    const held: CheckResult = await second;
    expect(held.permit).toEqual(expect.any(String));
    await clock.advanceAsync(3000);
    router.permits.settle(held.permit ?? '', {});
    await clock.advanceAsync(3000);
    expect((await looking).decision.verdict).toBe('allow');
    expect(left('slots', 'db')).toBe(1);
  });
});
