import { describe, expect, onTestFinished, test, vi } from 'vitest';
import { whilePaused } from '../../../test/support/paused.ts';
import { nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { redisServer } from '../../../test/support/services.ts';
import { VirtualFleet } from '../../../test/support/virtual-fleet.ts';
import { OUTAGE_DEADLINE_MS } from '../../../test/support/wait-timeout.ts';
import type { AsyncLimiter, RemoteLimiter } from '../../limiter/async-limiter.ts';
import { all } from '../../limiter/composite-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import { Permit } from '../../limiter/permit.ts';
import type { Limit } from '../../policies/limit.ts';
import { type RedisOptions, redis } from './options.ts';

describe.skipIf(redisServer() === undefined)('local fallback', () => {
  const fixture = redisFixture(nodeRedis);

  /** One limit in two processes. */
  const pairOf = (limit: Limit, options: RedisOptions = {}): RemoteLimiter[] =>
    [fixture.firstClient, fixture.secondClient].map(({ client }) => {
      const backend = redis(client, {
        deadline: OUTAGE_DEADLINE_MS,
        onUnavailable: 'local',
        ...options,
      });
      const api = limiter({ name: 'api', limit, backend });
      fixture.limiters.push(api);
      return api;
    });

  async function duringOutage(apis: readonly RemoteLimiter[], act: () => Promise<void>) {
    await whilePaused(fixture.service, async () => {
      await Promise.all(apis.map((api) => api.check('another', 1, { willSettle: true })));
      expect(apis.filter((api) => api.stats().isAvailable)).toEqual([]);
      await act();
      await new Promise((later) => setTimeout(later, 100)); // commands sent before are late by now
    });
    const areBack = () => apis.every((api) => api.stats().isAvailable);
    await vi.waitFor(() => expect(areBack()).toBe(true));
  }

  /** Checks in turns until one is refused. */
  async function grantsOf(apis: readonly RemoteLimiter[]): Promise<number> {
    let granted = 0;
    for (const api of apis) {
      while ((await api.check('key')).verdict === 'allow') granted++;
      expect(granted).toBeLessThan(100);
    }
    return granted;
  }

  test('bucket: an outage grants no second burst, and what it granted is counted afterwards', async () => {
    const pair = pairOf({ bucket: { rate: '1/h', burst: 10 } }, { processes: 2 });
    for (let n = 0; n < 6; n++) await pair[n % 2].check('key');
    const rest = [await pair[0].check('key', 0), await pair[1].check('key', 0)]; // both know: 4 are left
    expect(rest).toEqual([
      { verdict: 'allow', remaining: 4 },
      { verdict: 'allow', remaining: 4 },
    ]);
    let granted = 0;
    await duringOutage(pair, async () => {
      granted = await grantsOf(pair);
      expect(granted).toBe(4);
    });
    expect(granted + (await grantsOf(pair))).toBe(4);
  });

  test('bucket: after a refusal, an outage grants nothing before the limit would', async () => {
    const pair = pairOf({ bucket: { rate: '1/h', burst: 3 } });
    expect(await grantsOf(pair)).toBe(3);
    await duringOutage(pair, async () => expect(await grantsOf(pair)).toBe(0));
  });

  test('bucket: in an outage, a process that has not used a key grants a whole burst of it', async () => {
    const [user, other] = pairOf({ bucket: { rate: '1/h', burst: 3 } });
    expect(await grantsOf([user])).toBe(3);
    await duringOutage([user, other], async () => {
      expect(await grantsOf([user])).toBe(0);
      expect(await grantsOf([other])).toBe(3);
    });
  });

  test('lockout on refusals: a call that waits during an outage counts when it is refused in the end', async () => {
    const lockout = { on: 'refusal', after: 4, within: '1h', lock: '1h' } as const;
    const [api, other] = pairOf({ all: [{ bucket: { rate: '20/s', burst: 1 } }, { lockout }] });
    const both = all([api, limiter({ name: 'open', limit: { bucket: { rate: 1000 } } })]);
    await duringOutage([api, other], async () => {
      const wait = { wait: '20s' } as const;
      const calls = Array.from({ length: 8 }, (_, n) =>
        (n % 2 ? api : both).acquire('key', 1, wait),
      );
      for (const { verdict } of await Promise.all(calls)) expect(verdict).toBe('allow');
    });
  });

  test('window: an outage grants what was left, and it is counted afterwards', async () => {
    const pair = pairOf({ window: { limit: 10, per: '1h' } }, { processes: 2 });
    for (let n = 0; n < 6; n++) await pair[n % 2].check('key');
    for (const api of pair) expect(await api.check('key', 0)).toMatchObject({ remaining: 4 });
    expect((await pair[0].check('key', 9)).verdict).toBe('deny'); // a refusal of 9 does not lower 4 to nothing
    let granted = 0;
    await duringOutage(pair, async () => {
      granted = await grantsOf(pair);
      expect(granted).toBe(4);
    });
    expect(granted + (await grantsOf(pair))).toBe(4);
    await duringOutage(pair, async () => expect(await grantsOf(pair)).toBe(0));
  });

  test.each<[string, Limit]>([
    ['spacing', { spacing: { every: '1h' } }],
    ['all', { all: [{ bucket: { rate: '1/h', burst: 3 } }, { bucket: { rate: 1000 } }] }],
  ])('%s: the calls of this process count in an outage', async (_kind, limit) => {
    const [api] = pairOf(limit);
    expect(await grantsOf([api])).toBeGreaterThan(0);
    await duringOutage([api], async () => expect((await api.check('key')).verdict).toBe('deny'));
  });

  test('ramp: the calls of this process count in an outage, within their second', async () => {
    const fleet = await VirtualFleet.start(fixture.service.port);
    onTestFinished(() => fleet.stop());
    const { client, clock } = fleet.process(2);
    const { sendCommand } = client as { sendCommand(words: string[]): Promise<unknown> };
    let isAway = false;
    const breaking = {
      ...client,
      sendCommand: async (words: string[]) => {
        if (isAway) throw new Error('connection lost');
        return sendCommand(words);
      },
    };
    const limit = { ramp: { min: 3, max: 3, over: '1s' } } as const;
    const api = limiter({ name: 'api', limit, clock, backend: redis(breaking as typeof client) });
    const check = async (): Promise<string> => {
      const checking = api.check('key');
      await fleet.run(10);
      return (await checking).verdict;
    };
    for (const verdict of ['allow', 'allow', 'allow', 'deny']) expect(await check()).toBe(verdict);
    isAway = true;
    expect([await check(), api.stats().isAvailable]).toEqual(['deny', false]);
    await fleet.run(1000);
    expect(await check()).toBe('allow'); // of the next second
  });

  /** Attempts in one process, each reported as a failure, until one is refused. */
  async function guessesOf(api: RemoteLimiter): Promise<number> {
    for (let guesses = 0; guesses < 20; guesses++) {
      const attempt = await api.tryAcquire('key');
      if (!(attempt instanceof Permit)) return guesses;
      attempt.settle({ attempt: 'failure' });
    }
    throw new Error('expected a refusal within 20 attempts');
  }

  const LOCKOUT = { lockout: { after: 5, lock: ['1h', '3h'] } } satisfies Limit;

  test.each<[string, Limit]>([
    ['lockout', LOCKOUT],
    ['lockout beside a bucket', { all: [{ bucket: { rate: 1000 } }, LOCKOUT] }],
  ])(
    '%s: a process that was told that a key is locked refuses it in an outage',
    async (_, limit) => {
      const [first, second] = pairOf(limit);
      expect(await guessesOf(first)).toBe(5);
      expect(await second.tryAcquire('key')).toMatchObject({ verdict: 'deny', reason: 'locked' });
      await duringOutage([second], async () => {
        expect(await guessesOf(second)).toBe(0);
        const refusal = await second.tryAcquire('key');
        expect(refusal).toMatchObject({ verdict: 'deny', reason: 'locked' });
        expect(refusal).toHaveProperty(
          'retryAfterMs',
          expect.toSatisfy((ms) => ms > 3_500_000),
        );
      });
      expect(await first.tryAcquire('key')).toMatchObject({ verdict: 'deny', reason: 'locked' });
    },
  );

  test('lockout: an outage grants the attempts that were left, and locks the key in Redis afterwards', async () => {
    const [first, second] = pairOf(LOCKOUT);
    const fail = async (api: RemoteLimiter) => {
      const attempt = await api.tryAcquire('key');
      if (attempt instanceof Permit) attempt.settle({ attempt: 'failure' });
    };
    await fail(first);
    await fail(first);
    await fail(second); // learns that two attempts are left
    await duringOutage([second], async () => expect(await guessesOf(second)).toBe(2));
    const isLocked = async () =>
      expect(await first.tryAcquire('key')).toMatchObject({ reason: 'locked' });
    await vi.waitFor(isLocked);
  });

  test('lockout: an outage does not refuse a key that another process has unlocked', async () => {
    const [first, second] = pairOf(LOCKOUT);
    await guessesOf(first);
    expect(await second.tryAcquire('key')).toMatchObject({ reason: 'locked' });
    await (first as AsyncLimiter).forget('key');
    const attempt = await second.tryAcquire('key');
    if (attempt instanceof Permit) attempt.settle({ attempt: 'failure' });
    await duringOutage([first, second], async () => {
      expect(await guessesOf(first)).toBe(5);
      expect(await guessesOf(second)).toBe(4);
    });
  });

  test.each([
    [1, 4],
    [2, 4],
  ])(
    'concurrency, %i processes: the calls of all processes stay within the limit',
    async (processes, most) => {
      const pair = pairOf({ concurrency: most }, { processes });
      const held: Permit[] = [];
      const acquire = async (api: RemoteLimiter): Promise<void> => {
        const permit = await api.tryAcquire('key');
        if (permit instanceof Permit) held.push(permit);
      };
      for (let n = 0; n < most; n++) await acquire(pair[0]);
      await acquire(pair[1]); // refused: all slots are used
      await duringOutage(pair, async () => {
        for (let n = 0; n < 2 * most; n++) await acquire(pair[n % 2]);
        expect(held.length).toBe(most);
        held.pop()?.settle();
        await acquire(pair[0]);
        expect(held.length).toBe(processes === 1 ? most : most - 1); // three calls are more than half of four
      });
      const inFlight = async () => (await pair[0].inspect('key'))?.inFlight;
      await vi.waitFor(async () => expect(await inFlight()).toBe(held.length));
      for (const permit of held) permit.settle();
      await vi.waitFor(async () => expect(await inFlight()).toBe(0));
    },
  );
});
