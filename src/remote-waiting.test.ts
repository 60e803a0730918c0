import { expect, test, vi } from 'vitest';
import { allow } from './decision.ts';
import { limiter } from './limiter.ts';
import type { Answer, RemoteShare, RemoteShareMaker } from './share/remote.ts';

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
