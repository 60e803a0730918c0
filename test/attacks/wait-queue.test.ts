import { describe, expect, test } from 'vitest';
import type { CommandText } from '../../src/backends/redis/batcher.ts';
import { FairQueue } from '../../src/backends/redis/fair-queue.ts';
import { UnsentCommands } from '../../src/backends/redis/unsent-commands.ts';
import type { RemoteBackend, RemoteBackendFactory } from '../../src/backends/remote-backend.ts';
import { RttEstimator } from '../../src/backends/rtt-estimator.ts';
import { deny } from '../../src/core/decision.ts';
import { limiter } from '../../src/limiter/limiter.ts';
import { VirtualClock } from '../../src/testing/index.ts';
import { cpuMs } from '../support/clock-watch.ts';

const MAX = 100;

/** A queue under attack: `join` resolves with the verdict, or the reason of the refusal. */
interface Attacked {
  join(key: string): Promise<string>;
  settle(): Promise<void>;
}

function inProcess(): Attacked {
  const clock = new VirtualClock();
  const limit = { spacing: { every: '1h' } } as const;
  const api = limiter({ limit, queue: { max: MAX }, clock });
  return {
    join: async (key) => {
      api.check(key); // takes the permit that is free
      const result = await api.acquire(key);
      return result.verdict === 'deny' ? (result.reason ?? '') : result.verdict;
    },
    settle: () => clock.advanceAsync(0),
  };
}

function remote(): Attacked {
  const clock = new VirtualClock();
  const backend: Partial<RemoteBackend> = {
    checkBatch: async () => ({ granted: 0, refusal: deny(3_600_000), decidedAt: clock.now() }),
    settle: async () => {},
    close: async () => {},
    isAvailable: true,
  };
  const factory: RemoteBackendFactory = { isRemote: true, create: () => backend as RemoteBackend };
  const limit = { bucket: { rate: 1 } } as const;
  const api = limiter({ limit, queue: { max: MAX }, clock, backend: factory });
  return {
    join: async (key) => {
      const result = await api.acquire(key);
      return result.verdict === 'deny' ? (result.reason ?? '') : result.verdict;
    },
    settle: () => clock.advanceAsync(0),
  };
}

function fleetWide(): Attacked {
  const clock = new VirtualClock();
  const send = async (_key: string, command: CommandText) => {
    const text = typeof command === 'string' ? command : command();
    const value = text.startsWith('f') ? '-' : 0; // queued behind a waiter of another process
    return { value, at: clock.now() };
  };
  const fairQueue = new FairQueue({
    send,
    rtt: new RttEstimator(),
    toRedisTime: (_key, at) => at,
    clock,
    random: () => 0.5,
    subscriber: {
      subscribe: async () => {},
      subscribeBytes: async () => {},
      stop: async () => {},
    },
    maxWaiters: MAX,
    keepAlive: false,
    unsent: new UnsentCommands(send, clock),
    fallback: { check: () => deny(500), observe: () => {} },
    grantsAhead: true,
  });
  return {
    join: async (key) => {
      const result = await fairQueue.acquire(key, 1, { maxWaitMs: Infinity });
      return result.verdict === 'deny' ? result.reason : result.verdict;
    },
    settle: () => clock.advanceAsync(0),
  };
}

describe.each([
  ['in this process', inProcess],
  ['of a remote backend', remote],
  ['of the whole fleet', fleetWide],
])('wait queue %s', (_, create) => {
  /** Joins with each key in turn; returns the results so far, by key. */
  async function fill(attacked: Attacked, keys: readonly string[]) {
    const ended: [key: string, result: string][] = [];
    for (const key of keys) {
      void attacked.join(key).then((result) => ended.push([key, result]));
      await attacked.settle();
    }
    return ended;
  }

  const times = (count: number, key: string) => Array<string>(count).fill(key);

  test('one key fills the queue: other keys still join it, and the last waiters of that key leave', async () => {
    const attacked = create();
    const ended = await fill(attacked, [
      ...times(2 * MAX, 'mallory'),
      ...times(3, 'bob'),
      ...times(3, 'carol'),
    ]);
    expect(ended).toEqual(Array(MAX + 6).fill(['mallory', 'queue-full']));
  });

  test('many keys fill the queue: each loses its second waiter before a new key is refused', async () => {
    const attacked = create();
    const mallory = Array.from({ length: MAX / 2 }, (_unused, n) => `mallory ${n}`);
    const ended = await fill(attacked, [...mallory, ...mallory, ...mallory, 'alice']);
    expect(ended).toHaveLength(MAX / 2 + 1);
    expect(ended.map(([key]) => key)).not.toContain('alice');
  });

  test('alone, a key uses the whole queue', async () => {
    const ended = await fill(create(), times(MAX + 11, 'alice'));
    expect(ended).toEqual(Array(11).fill(['alice', 'queue-full']));
  });
});

test('wait queue: a full queue of 50,000 keys refuses each further call in constant time', async () => {
  const clock = new VirtualClock();
  const api = limiter({ limit: { spacing: { every: '1h' } }, queue: { max: 50_000 }, clock });
  const pending: Promise<unknown>[] = [];
  for (let n = 0; n < 50_000; n++) {
    api.check(`k${n}`);
    pending.push(api.acquire(`k${n}`));
  }
  api.check('one more');
  const before = cpuMs();
  for (let n = 0; n < 20_000; n++) pending.push(api.acquire('one more'));
  expect(cpuMs() - before).toBeLessThan(5000); // a search each time takes minutes
  await api.close();
  await Promise.all(pending);
});
