import { setTimeout } from 'node:timers/promises';
import { describe, expect, test, vi } from 'vitest';
import { whilePaused } from '../../../test/support/paused.ts';
import { nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../test/support/services.ts';
import { OUTAGE_DEADLINE_MS } from '../../../test/support/wait-timeout.ts';
import { NEVER } from '../../core/decision.ts';
import { seededRandom } from '../../core/random.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { all } from '../../limiter/composite-limiter.ts';
import type { Permit, Refusal } from '../../limiter/permit.ts';
import { createPolicy, type Limit } from '../../policies/limit.ts';

/** A bucket that does not refill during a test: half a token more makes its refill irrelevant. */
const fixed = (burst: number): Limit => ({ bucket: { rate: '1/365d', burst: burst + 0.5 } });

/** Passed with every check: these tests settle, or end before a permit expires. */
const SETTLES = { willSettle: true };

describe.skipIf(redisServer() === undefined)('all of rules and calls in flight in Redis', () => {
  const fixture = redisFixture(nodeRedis);

  const shared = fixture.createShared;

  const calls = (): number => {
    const text = fixture.cli('INFO', 'commandstats');
    return Number(/cmdstat_evalsha:calls=(\d+)/.exec(text)?.[1] ?? 0);
  };

  /** The remaining units of each rule. */
  const leftOf = async (api: RemoteLimiter, key = 'k') =>
    (await api.inspect(key))?.rules.map(({ remaining }) => remaining);

  const acquire = async (api: RemoteLimiter, cost = 1): Promise<Permit> => {
    const entry = await api.tryAcquire('k', cost);
    expect(entry.verdict).toBe('allow');
    return entry as Permit;
  };

  test('check: one script call, and a refusal of either rule charges neither', async () => {
    const api = shared('api', { all: [fixed(5), { concurrency: 3 }] });
    await api.check('warm-up', 1, SETTLES);
    const before = calls();
    const three = await acquire(api, 3);
    expect(calls() - before).toBe(1);
    expect(three).toMatchObject({ remaining: 0, fencingToken: expect.any(Number) });
    expect(await api.check('k', 1, SETTLES)).toEqual({
      verdict: 'deny',
      retryAfterMs: 0,
      rule: 'concurrency',
    });
    expect(await leftOf(api)).toEqual([2, 0]);
    three.settle();
    await vi.waitFor(async () => expect(await leftOf(api)).toEqual([2, 3]));
    const refusal = await api.tryAcquire('k', 3);
    expect(refusal).toMatchObject({ verdict: 'deny', rule: 'bucket', reason: 'not-now' });
    expect(await leftOf(api)).toEqual([2, 3]);
    expect(await api.check('k', 4, SETTLES)).toEqual({
      verdict: 'deny',
      retryAfterMs: NEVER,
      rule: 'concurrency',
    });
  });

  test('settle: ends the lease, and settles the other rules by what was used', async () => {
    const api = shared('api', { all: [fixed(20), { concurrency: 9 }, fixed(30)] });
    const [less, more, none] = [
      await acquire(api, 3),
      await acquire(api, 3),
      await acquire(api, 3),
    ];
    expect(await leftOf(api)).toEqual([11, 0, 21]);
    less.settle({ used: 1 });
    more.settle({ used: 5 });
    none.settle({ outcome: 'ignored' });
    await vi.waitFor(async () => expect(await leftOf(api)).toEqual([14, 9, 24]));
    expect(await api.takeUpTo('k', 5)).toBe(1); // a lease at a time
    await api.giveBack('k', 1);
    await vi.waitFor(async () => expect(await leftOf(api)).toEqual([14, 9, 24]));
  });

  /** Rules of every kind that only fill up, so that time does not matter. */
  const RULES: readonly Limit[] = [
    fixed(60),
    { window: { limit: 60, per: '365d' } },
    { quota: { limit: 60, per: 'year', timeZone: 'Europe/Berlin' } },
    { all: [fixed(70), { concurrency: 9 }] },
    { lockout: { on: 'refusal', after: 25, within: '1h', lock: '1h' } },
    { concurrency: 7 },
  ];

  /** The refusing rule: Redis names the smallest of several concurrency limits, this process the first one. */
  const ruleOf = (refused: { readonly verdict: string; readonly rule?: string | undefined }) =>
    refused.rule?.replace(/^concurrency.*/, 'concurrency');

  test.each([1, 2, 3, 4, 5, 6])(
    'two clients: every decision, its rule and what is left are those of the rule in this process (seed %i)',
    async (seed) => {
      const random = seededRandom(seed);
      const pick = (count: number): number => Math.floor(random() * count);
      const chosen = RULES.filter(() => random() < 0.6);
      const limit = { all: [...chosen, fixed(80), { concurrency: 8 } as Limit] };
      const clients = [false, true].map((isSecond) => shared('api', limit, {}, isSecond));
      const policy = createPolicy(limit, random);
      const state = new Float64Array(policy.width);
      let at = Number.NaN;
      const held: { permit: Permit; api: RemoteLimiter }[] = [];
      const verdicts = new Set<string>();
      for (let n = 0; n < 120; n++) {
        const api = clients[pick(2)];
        if (random() < 0.35 && held.length > 0) {
          const [{ permit, api: owner }] = held.splice(pick(held.length), 1);
          const how = [{}, { used: pick(5) }, { outcome: 'ignored' as const }][pick(3)];
          permit.settle(how);
          await owner.inspect('k'); // behind the settlement, on its connection
          const { cost, dueAt } = permit;
          policy.settle(state, 0, { outcome: 'ok', cost, dueAt, ...how }, at);
          continue;
        }
        const cost = pick(5);
        const entry: Permit | Refusal = await api.tryAcquire('k', cost);
        if (entry.verdict === 'allow') {
          at = entry.dueAt;
          held.push({ permit: entry, api });
        } else if (Number.isNaN(at)) at = Date.now();
        if (n === 0) policy.init(state, 0, at);
        const expected = policy.check(state, 0, cost, at);
        verdicts.add(expected.verdict);
        const { verdict } = entry;
        if (expected.verdict === 'allow')
          expect({ n, verdict, remaining: entry.verdict === 'allow' && entry.remaining }).toEqual({
            n,
            verdict: 'allow',
            remaining: expected.remaining,
          });
        else
          expect({ n, verdict, rule: ruleOf(entry) }).toEqual({
            n,
            verdict: 'deny',
            rule: ruleOf(expected),
          });
      }
      expect(verdicts.size).toBe(2);
      const left = policy.ruleStatuses(state.slice(), 0, at).map(({ remaining }) => remaining);
      expect(await leftOf(clients[0])).toEqual(left);
    },
  );

  test('spacing with reserve: a reserved slot has its lease, and gives it back when it is cancelled', async () => {
    const limit: Limit = { all: [{ spacing: { every: '1h', reserve: 2 } }, { concurrency: 3 }] };
    const api = shared('api', limit);
    await acquire(api);
    const reserved = await api.check('k', 1, SETTLES);
    expect(reserved).toMatchObject({ verdict: 'wait' });
    expect(await leftOf(api)).toEqual([0, 1]);
    const abort = new AbortController();
    const waiting = api.acquire('k', 1, { signal: abort.signal });
    await vi.waitFor(async () => expect(await leftOf(api)).toEqual([0, 0]));
    abort.abort(new Error('enough'));
    await expect(waiting).rejects.toThrow('enough');
    await vi.waitFor(async () => expect(await leftOf(api)).toEqual([0, 1]));
    const dueAt = reserved.verdict === 'wait' ? reserved.dueAt : undefined;
    await api.settle('k', { outcome: 'ignored', dueAt });
    await vi.waitFor(async () => expect(await leftOf(api)).toEqual([0, 2]));
    const again = await api.check('k', 1, SETTLES);
    expect(again).toMatchObject({ verdict: 'wait', waitMs: expect.closeTo(3_600_000, -4) });
  });

  test('acquire: waits for the rule that refuses, in order, and a refusal names it', async () => {
    const api = shared('api', { all: [fixed(12), { concurrency: 1 }] });
    const order: number[] = [];
    const run = async (n: number) => {
      const entry = await api.acquire('k', 1, { wait: '30s' });
      order.push(n);
      if (entry.verdict === 'allow') entry.settle();
    };
    await Promise.all(Array.from({ length: 10 }, (_, n) => run(n)));
    expect(order).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    const held = await acquire(api);
    const late = await api.acquire('k', 1, { wait: '2s' }); // Redis replies before that
    expect(late).toMatchObject({ reason: 'too-long', rule: 'concurrency' });
    held.settle();
    await vi.waitFor(async () => expect(await leftOf(api)).toEqual([1, 1]));
    (await acquire(api)).settle();
    await vi.waitFor(async () => expect(await leftOf(api)).toEqual([0, 1]));
    const spent = await api.acquire('k', 1, { wait: '2s' });
    expect(spent).toMatchObject({ reason: 'too-long', rule: 'bucket' });
  });

  test('lockout: a call that waits for a place counts as one refusal, when it is refused in the end', async () => {
    const lockout: Limit = { lockout: { on: 'refusal', after: 2, lock: '1h', within: '1h' } };
    const api = shared('api', { all: [{ concurrency: 1 }, lockout] });
    const held = await acquire(api);
    const failuresOf = async () => (await api.inspect('k'))?.failures;
    await api.acquire('k', 1, { wait: 150 }); // with several polls
    await vi.waitFor(async () => expect(await failuresOf()).toBe(1));
    const locking = { verdict: 'deny', rule: 'lockout', reason: 'locked' };
    expect(await api.tryAcquire('k')).toMatchObject(locking);
    held.settle();
    expect(await api.tryAcquire('k')).toMatchObject(locking);
  });

  test('names: an unnamed limit shares no key with an unnamed limit of the same bucket', async () => {
    const [both, alone] = [
      shared(undefined, { all: [fixed(5), { concurrency: 2 }] }),
      shared(undefined, fixed(5)),
    ];
    await acquire(both);
    expect(await leftOf(alone)).toEqual([5]);
    expect(await leftOf(shared(undefined, { all: [fixed(5), { concurrency: 2 }] }))).toEqual([
      4, 1,
    ]);
  });

  test('change and forget: other numbers keep what was spent and is in flight; forget keeps what is in flight', async () => {
    const api = shared('api', { all: [fixed(5), { concurrency: 3 }] });
    await acquire(api, 2);
    await api.change({ all: [fixed(9), { concurrency: 7 }] });
    expect(await leftOf(api)).toEqual([7, 5]);
    const other = { all: [{ concurrency: 7 } as Limit, fixed(9)] };
    await expect(api.change(other)).rejects.toThrow('the same rules');
    await (api as unknown as { forget(key: string): Promise<void> }).forget('k');
    expect(await leftOf(api)).toEqual([9, 5]);
    await api.close();
    const next = shared('api', { all: [fixed(9), { concurrency: 7 }] });
    expect(await leftOf(next)).toEqual([9, 7]);
  });

  test('several limits on calls in flight: the smallest decides, and its name is in the refusal', async () => {
    const api = shared('api', { all: [{ concurrency: 9 }, { concurrency: 2 }] });
    await acquire(api, 2);
    expect(await api.check('k', 1, SETTLES)).toMatchObject({
      verdict: 'deny',
      rule: 'concurrency-2',
    });
    expect(await leftOf(api)).toEqual([7, 0]);
  });

  test('outage: both fallbacks must allow, and calls that still run are registered afterwards', async () => {
    const limit: Limit = { all: [fixed(9), { concurrency: 4 }] };
    const api = shared('api', limit, { deadline: OUTAGE_DEADLINE_MS, onUnavailable: 'local' });
    const [first, second] = [await acquire(api), await acquire(api)];
    const changes: boolean[] = [];
    api.on((event) => event.type === 'availability' && changes.push(event.isAvailable));
    const third = await whilePaused(fixture.service, async () => {
      const granted = await api.tryAcquire('k', 2);
      expect(granted.verdict).toBe('allow');
      expect(await api.tryAcquire('k')).toMatchObject({ verdict: 'deny', rule: 'concurrency' });
      first.settle();
      second.settle();
      expect((await api.tryAcquire('k')).verdict).toBe('allow');
      return granted;
    });
    const other = shared('api', limit, {}, true);
    await vi.waitFor(async () => expect(await leftOf(other)).toEqual([4, 1]), { timeout: 8000 });
    if (third.verdict === 'allow') third.settle();
    await vi.waitFor(async () => expect((await leftOf(other))?.[1]).toBe(3), { timeout: 8000 });
    await vi.waitFor(() => expect(changes).toEqual([false, true]));
  });

  test('outage with fail closed: refuses, and what the rules granted is taken back', async () => {
    const limit: Limit = { all: [fixed(9), { concurrency: 4 }] };
    const api = shared('api', limit, { deadline: OUTAGE_DEADLINE_MS, onUnavailable: 'deny' });
    await acquire(api);
    await whilePaused(fixture.service, async () => {
      expect(await api.tryAcquire('k')).toMatchObject({ reason: 'unavailable' });
      // The deadline is on Redis's clock, which is known up to a round trip: it is certainly over only later.
      await setTimeout(OUTAGE_DEADLINE_MS);
    });
    const other = shared('api', limit, {}, true);
    await vi.waitFor(async () => expect(await leftOf(other)).toEqual([8, 3]), { timeout: 8000 });
  });

  describe('as a part of all([...])', () => {
    const costly = (api: RemoteLimiter, cost: number) => ({ limiter: api, cost });

    test('of one server: one script call with the limits beside it, a quota among them', async () => {
      const both = shared('both', { all: [fixed(5), { concurrency: 3 }] });
      const plan = shared('plan', { quota: { limit: 4, per: 'year', timeZone: 'Europe/Berlin' } });
      const api = all([costly(both, 2), costly(plan, 1)]);
      await api.check('warm-up', 1, SETTLES);
      const before = calls();
      const entry = await api.tryAcquire('k');
      expect(calls() - before).toBe(1);
      expect(await api.tryAcquire('k')).toMatchObject({ limit: 'both', rule: 'concurrency' });
      expect([await leftOf(both), await leftOf(plan)]).toEqual([[3, 1], [3]]);
      if (entry.verdict === 'allow') entry.settle({ outcome: 'ignored' });
      await vi.waitFor(async () => expect(await leftOf(both)).toEqual([5, 3]));
      await vi.waitFor(async () => expect(await leftOf(plan)).toEqual([4]));
    });

    test('of two clients: a refusal in either step charges nothing', async () => {
      const both = shared('both', { all: [fixed(5), { concurrency: 3 }] });
      const far = shared('far', fixed(2), {}, true);
      const api = all([costly(both, 1), costly(far, 1)]);
      for (let n = 0; n < 5; n++) await api.check('k', 1, SETTLES);
      expect([await leftOf(both), await leftOf(far)]).toEqual([[3, 1], [0]]);
      const first = shared('first', fixed(9), {}, true); // reserved after `both`
      const late = all([costly(both, 2), costly(first, 1)]);
      expect(await late.tryAcquire('k')).toMatchObject({ limit: 'both', rule: 'concurrency' });
      expect([await leftOf(both), await leftOf(first)]).toEqual([[3, 1], [9]]);
    });
  });

  test('redis(): a fair queue, and prefetch, are refused beside calls in flight', () => {
    const limit: Limit = { all: [fixed(5), { concurrency: 3 }] };
    expect(() => shared('api', limit, { fairQueue: true })).toThrow('fairQueue');
    expect(() => shared('api', limit, { prefetch: 5 })).toThrow('prefetch');
  });
});
