import { describe, expect, test, vi } from 'vitest';
import { allow } from './decision.ts';
import { limiter } from './limiter.ts';
import type { Answer, LineAnswer, RemoteShare, RemoteShareMaker } from './share/remote.ts';
import { VirtualClock } from './testing/virtual-clock.ts';

test('who has its place has it at once, whenever those behind it are told', async () => {
  const told: ((answer: Answer) => void)[] = [];
  const share: Partial<RemoteShare> = {
    ask: () => new Promise((tell) => told.push(tell)),
    settle: async () => {},
    close: async () => {},
    isReachable: true,
  };
  const maker: RemoteShareMaker = { isRemote: true, make: () => share as RemoteShare };
  const api = limiter({ limit: { spacing: { every: '1s', reserve: 2 } }, share: maker });
  const first = api.acquire('token');
  const others = [api.acquire('token'), api.acquire('token')]; // they ask together, once the first is told
  told[0]({ decision: allow(0), at: 0 });
  expect((await first).verdict).toBe('allow');
  await vi.waitFor(() => expect(told.length).toBe(3));
  told[1]({ decision: allow(0), at: 0 });
  expect((await others[0]).verdict).toBe('allow');
  told[2]({ decision: allow(0), at: 0 });
  expect((await others[1]).verdict).toBe('allow');
  await api.close();
});

describe('a place that is lost if nobody is there by then', () => {
  /** Whoever decides gives 5 ms; from its answer to the caller it takes 20 ms, so many times. */
  function heldUp(times: number) {
    const clock = new VirtualClock();
    let asked = 0;
    const place = (): { at: number; latest: number } => {
      if (asked++ < times) void Promise.resolve().then(() => clock.advance(20));
      return { at: clock.now(), latest: clock.now() + 5 };
    };
    const answer = async (): Promise<Answer> => ({ decision: allow(0), ...place() });
    const share: Partial<RemoteShare> = {
      ask: answer,
      askNow: answer,
      askLine: async (): Promise<LineAnswer> => {
        const { at, latest } = place();
        return { granted: 1, refused: undefined, at, latests: [latest] };
      },
      close: async () => {},
      isReachable: true,
    };
    const maker: RemoteShareMaker = { isRemote: true, make: () => share as RemoteShare };
    const api = limiter({ limit: { spacing: { every: '1s' } }, share: maker, clock });
    return { api, clock, asked: () => asked };
  }

  test('is not handed out too late to who waits: it asks again', async () => {
    const { api, asked } = heldUp(2);
    const permit = await api.acquire('token');
    expect(permit).toMatchObject({ verdict: 'allow', heldAt: 40 });
    expect(asked()).toBe(3);
    expect(api.stats()).toMatchObject({ allowed: 1, denied: 0 });
  });

  test('is refused to who does not, and to who has waited long enough', async () => {
    expect((await heldUp(1).api.ask('token')).verdict).toBe('deny');
    expect((await heldUp(0).api.ask('token')).verdict).toBe('allow');
    expect((await heldUp(1).api.tryAcquire('token')).verdict).toBe('deny');
    expect((await heldUp(0).api.tryAcquire('token')).verdict).toBe('allow');
    const { api, asked } = heldUp(9);
    expect(await api.acquire('token', 1, { wait: 30 })).toMatchObject({ verdict: 'deny' });
    expect(asked()).toBe(2);
  });
});
