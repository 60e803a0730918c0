import { describe, expect, test, vi } from 'vitest';
import { ioRedis, nodeRedis } from '../../../test/support/redis-clients.ts';
import { redisFixture } from '../../../test/support/redis-fixture.ts';
import { type RedisProxy, startProxy } from '../../../test/support/redis-proxy.ts';
import { redisServer } from '../../../test/support/services.ts';
import { systemClockWithout } from '../../../test/support/stallable-clock.ts';
import { systemClock } from '../../core/clock.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { limiter } from '../../limiter/limiter.ts';
import { Permit } from '../../limiter/permit.ts';
import { VirtualClock } from '../../testing/index.ts';
import { LEASE_TTL_MS } from './lua-semaphore.ts';
import { type RedisOptions, redis } from './options.ts';

/** The duration of a reconnect and a breaker probe on a busy machine; a lease takes 10 s. */
const SOON_MS = 7000;

const OUTAGE_MS = 300;

/** Prevents renewals in time: only the end of the outage registers a call again. */
const withoutRenewals = systemClockWithout((inMs) => inMs > LEASE_TTL_MS / 4);

const pause = (ms: number) => new Promise((later) => setTimeout(later, ms));

async function permitOf(acquiring: ReturnType<RemoteLimiter['acquire']>): Promise<Permit> {
  const permit = await acquiring;
  if (!(permit instanceof Permit)) throw new Error(`refused: ${permit.reason}`);
  return permit;
}

describe.skipIf(redisServer() === undefined).each([
  ['node-redis', nodeRedis],
  ['ioredis', ioRedis],
])('concurrency limit over Redis by %s', (_name, connect) => {
  const fixture = redisFixture(connect);

  function shared(client = fixture.firstClient, options: RedisOptions = {}, clock = systemClock) {
    const backend = redis(client.client, { deadline: 1000, onUnavailable: 'deny', ...options });
    const api = limiter({ name: 'api', limit: { concurrency: 1 }, backend, clock });
    fixture.limiters.push(api);
    return api;
  }

  /** A limiter with a connection that can be broken, and one with its own connection. */
  async function withProxy(
    act: (near: RemoteLimiter, other: RemoteLimiter, proxy: RedisProxy) => Promise<void>,
    options: RedisOptions = {},
    clock = systemClock,
  ): Promise<void> {
    const proxy = await startProxy(fixture.service.port);
    const connection = await connect(proxy.port);
    try {
      const [near, other] = [
        shared(connection, options, clock),
        shared(fixture.firstClient, options),
      ];
      await Promise.all([near.inspect('sink'), other.inspect('sink')]);
      await act(near, other, proxy);
      for (const api of fixture.limiters.splice(0)) await api.close();
    } finally {
      connection.disconnect();
      proxy.stop();
    }
  }

  test.each([
    ['a queue per process', false],
    ['a fair queue', true],
  ])(
    '%s: a call that settled during a connection loss frees its place soon after',
    async (_queue, fairQueue) => {
      await withProxy(
        async (near, other, proxy) => {
          const permit = await permitOf(near.acquire('sink'));
          proxy.cut();
          permit.settle();
          await pause(OUTAGE_MS);
          proxy.restore();
          await permitOf(other.acquire('sink', 1, { wait: SOON_MS }));
        },
        { fairQueue },
      );
    },
  );

  test.each([
    ['a queue per process', false],
    ['a fair queue', true],
  ])('%s: a place whose grant had no reply is free soon after', async (_queue, fairQueue) => {
    await withProxy(
      async (near, other, proxy) => {
        proxy.loseReplies();
        const abort = new AbortController();
        const acquiring = near.acquire('sink', 1, { signal: abort.signal });
        const lost = expect(acquiring).rejects.toThrow('enough');
        await vi.waitFor(() =>
          expect(fixture.cli('ZCARD', 'sluice:{api:sink}:concurrency')).toBe('1'),
        );
        await pause(OUTAGE_MS);
        abort.abort(new Error('enough'));
        await lost;
        proxy.restore();
        await permitOf(other.acquire('sink', 1, { wait: SOON_MS }));
      },
      { fairQueue },
    );
  });

  test('a call that runs is counted again soon after Redis lost its data', async () => {
    await withProxy(
      async (near, other, proxy) => {
        await permitOf(near.acquire('sink'));
        proxy.cut();
        fixture.cli('FLUSHALL');
        await near.tryAcquire('sink'); // the outage is noticed
        await pause(OUTAGE_MS);
        proxy.restore();
        const inFlight = async () => (await other.inspect('sink'))?.inFlight;
        await vi.waitFor(async () => expect(await inFlight()).toBe(1), SOON_MS);
      },
      {},
      withoutRenewals,
    );
  });

  test('the fencing token grows with every grant of a key, over processes and lost data', async () => {
    const pair = [shared(), shared(fixture.secondClient, { fairQueue: true })];
    const tokens: number[] = [];
    for (let n = 0; n < 8; n++) {
      const permit = await permitOf(pair[n % 2].acquire('sink', 1, { wait: SOON_MS }));
      tokens.push(permit.fencingToken ?? Number.NaN);
      permit.settle();
      await pair[n % 2].inspect('sink'); // a barrier: the release has arrived
      if (n === 5) fixture.cli('FLUSHALL');
    }
    for (const [n, token] of tokens.slice(1).entries()) expect(token).toBeGreaterThan(tokens[n]);
  });
});

describe('permit of a concurrency limit over Redis', () => {
  /** Replies to every command until `isAway`. */
  function stage() {
    const clock = new VirtualClock();
    const state = { isAway: false };
    const client = {
      script: async () => 'digest',
      eval: async () => [],
      evalsha: async (_digest: string, keys: number, ...rest: string[]) => {
        if (state.isAway) throw new Error('connection lost');
        const texts = rest.slice(keys + 1);
        return [String(clock.now()), ...texts.map((text) => (text[0] === 'n' ? '1 0 7' : 0))];
      },
    };
    const backend = redis(client, { onUnavailable: 'deny' });
    const api = limiter({ name: 'api', limit: { concurrency: 2 }, backend, clock });
    /** In steps, so that replies arrive in between. */
    const pass = async (ms: number): Promise<void> => {
      for (let passed = 0; passed < ms; passed += 100) {
        clock.advance(Math.min(100, ms - passed));
        await new Promise((later) => setImmediate(later));
      }
    };
    return { pass, state, api };
  }

  test('its signal aborts when its lease could not be renewed, and not while it is', async () => {
    const { pass, state, api } = stage();
    const [permit, settled] = [
      await permitOf(api.acquire('sink')),
      await permitOf(api.acquire('sink')),
    ];
    expect(permit.fencingToken).toBe(7);
    const { signal } = permit;
    settled.settle();
    await pass(3 * LEASE_TTL_MS);
    expect(signal.aborted).toBe(false);
    state.isAway = true;
    await pass((LEASE_TTL_MS * 2) / 3 - 1);
    expect(signal.aborted).toBe(false);
    await pass(LEASE_TTL_MS / 3 + 1);
    expect(signal.aborted).toBe(true);
    expect(signal.reason).toMatchObject({ code: 'UNAVAILABLE' });
    expect(settled.signal.aborted).toBe(false);
    permit.settle();
    await api.close();
  });

  test('its signal aborts when the limiter is closed', async () => {
    const { api } = stage();
    const permit = await permitOf(api.acquire('sink'));
    await api.close();
    expect(permit.signal.aborted).toBe(true); // read after the end
  });
});
