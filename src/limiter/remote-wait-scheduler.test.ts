import { describe, expect, test, vi } from 'vitest';
import type {
  BatchDecision,
  RemoteBackend,
  RemoteBackendFactory,
  RemoteDecision,
} from '../backends/remote-backend.ts';
import { allow, deny } from '../core/decision.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { limiter } from './limiter.ts';

test('who has its place has it at once, whenever those behind it are told', async () => {
  const told: ((answer: RemoteDecision) => void)[] = [];
  const backend: Partial<RemoteBackend> = {
    check: () => new Promise((tell) => told.push(tell)),
    settle: async () => {},
    close: async () => {},
    isAvailable: true,
  };
  const factory: RemoteBackendFactory = { isRemote: true, create: () => backend as RemoteBackend };
  const api = limiter({ limit: { spacing: { every: '1s', reserve: 2 } }, backend: factory });
  const first = api.acquire('token');
  const others = [api.acquire('token'), api.acquire('token')]; // they ask together, once the first is told
  told[0]({ decision: allow(0), decidedAt: 0 });
  expect((await first).verdict).toBe('allow');
  await vi.waitFor(() => expect(told.length).toBe(3));
  told[1]({ decision: allow(0), decidedAt: 0 });
  expect((await others[0]).verdict).toBe('allow');
  told[2]({ decision: allow(0), decidedAt: 0 });
  expect((await others[1]).verdict).toBe('allow');
  await api.close();
});

describe('a place that is lost if nobody is there by then', () => {
  /**
   * Whoever decides gives 5 ms, and one place in so long; from its answer, or from the line, to the caller it takes
   * 20 ms, so many times.
   */
  function heldUp(times: number, where: 'answer' | 'line' = 'answer', everyMs = 0) {
    const clock = new VirtualClock();
    let asked = 0;
    let opensAt = 0;
    const holdUp = async (): Promise<void> => {
      await undefined;
      if (where === 'line') await undefined; // by then it has been told, and its alarm is off
      clock.advance(20);
    };
    const place = (): { decidedAt: number; usableUntil: number } => {
      if (asked++ < times) void holdUp();
      return { decidedAt: clock.now(), usableUntil: clock.now() + 5 };
    };
    const answer = async (): Promise<RemoteDecision> => ({ decision: allow(0), ...place() });
    const backend: Partial<RemoteBackend> = {
      check: answer,
      checkNow: answer,
      checkBatch: async (): Promise<BatchDecision> => {
        const opensInMs = opensAt - clock.now();
        if (opensInMs > 0) return { granted: 0, refusal: deny(opensInMs), decidedAt: clock.now() };
        const { decidedAt, usableUntil } = place();
        opensAt = decidedAt + everyMs;
        return { granted: 1, refusal: undefined, decidedAt, usableUntils: [usableUntil] };
      },
      close: async () => {},
      isAvailable: true,
    };
    const factory: RemoteBackendFactory = {
      isRemote: true,
      create: () => backend as RemoteBackend,
    };
    const api = limiter({ limit: { spacing: { every: '1s' } }, backend: factory, clock });
    return { api, clock, asked: () => asked };
  }

  test('is not handed out too late to who waits: it asks again', async () => {
    const { api, asked } = heldUp(2);
    const permit = await api.acquire('token');
    expect(permit).toMatchObject({ verdict: 'allow', issuedAt: 40 });
    expect(asked()).toBe(3);
    expect(api.stats()).toMatchObject({ allowed: 1, denied: 0 });
  });

  test('is refused to who does not, and to who has waited long enough', async () => {
    expect((await heldUp(1).api.check('token')).verdict).toBe('deny');
    expect((await heldUp(0).api.check('token')).verdict).toBe('allow');
    expect((await heldUp(1).api.tryAcquire('token')).verdict).toBe('deny');
    expect((await heldUp(0).api.tryAcquire('token')).verdict).toBe('allow');
    const { api, asked } = heldUp(9);
    expect(await api.acquire('token', 1, { wait: 30 })).toMatchObject({ verdict: 'deny' });
    expect(asked()).toBe(2);
  });

  test('is asked for again in front of those who came later', async () => {
    const { api, clock } = heldUp(1, 'line', 1000);
    const entered: string[] = [];
    const enter = async (who: string): Promise<void> => {
      const { verdict } = await api.acquire('token');
      entered.push(`${who} ${verdict}`);
    };
    const both = [enter('first'), enter('second')];
    await clock.advanceAsync(3000);
    await Promise.all(both);
    expect(entered).toEqual(['first allow', 'second allow']);
  });

  test('is not asked for again after the deadline, nor after an abort', async () => {
    const late = heldUp(1, 'line');
    const waited: number[] = [];
    late.api.on((event) => event.type === 'decision' && waited.push(event.waitedMs));
    const entry = await late.api.acquire('token', 1, { wait: 10 });
    expect(entry).toMatchObject({ verdict: 'deny', reason: 'too-long' });
    expect([late.asked(), waited]).toEqual([1, [20]]);

    const left = heldUp(1, 'line');
    const leaving = new AbortController();
    left.clock.wakeAt(20, () => leaving.abort(new Error('gone')));
    const { signal } = leaving;
    await expect(left.api.acquire('token', 1, { signal })).rejects.toThrow('gone');
    expect([left.asked(), left.api.stats().cancelled]).toEqual([1, 1]);
  });

  test('says how long until there can be another', async () => {
    const deny = { verdict: 'deny', retryAfterMs: 1000 };
    expect(await heldUp(1).api.check('token')).toMatchObject(deny);
    expect(await heldUp(1).api.tryAcquire('token')).toMatchObject(deny);
  });
});

test('who has gone gets nothing, also where it would not have waited', async () => {
  const backend: Partial<RemoteBackend> = {
    checkNow: async () => ({ decision: allow(0), decidedAt: 0 }),
    isAvailable: true,
  };
  const factory: RemoteBackendFactory = { isRemote: true, create: () => backend as RemoteBackend };
  const api = limiter({ limit: { spacing: { every: '1s' } }, backend: factory });
  const signal = AbortSignal.abort(new Error('gone'));
  await expect(api.acquire('token', 1, { wait: 0, signal })).rejects.toThrow('gone');
  expect(api.stats()).toMatchObject({ allowed: 0, cancelled: 1 });
});
