import { expect, test } from 'vitest';
import type { RemoteBackend, RemoteBackendFactory } from '../backends/remote-backend.ts';
import { deny, WHEN_SETTLED } from '../core/decision.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { limiter } from './limiter.ts';

const PROCESSES = 20;

test.each([
  ['with a time to retry', 1000, 1000],
  ['without a time to retry', WHEN_SETTLED, 5],
])(
  'remote wait queue: refused %s, waiters of several processes check again with jitter',
  async (_, retryAfterMs, notBeforeMs) => {
    const clock = new VirtualClock();
    const checkedAt: number[][] = [];
    const apis = Array.from({ length: PROCESSES }, (_, process) => {
      checkedAt.push([]);
      const refuse = async () => {
        checkedAt[process].push(clock.now());
        return {
          granted: 0,
          refusal: deny(retryAfterMs),
          decision: deny(retryAfterMs),
          decidedAt: clock.now(),
        };
      };
      const backend = {
        check: refuse,
        checkBatch: refuse,
        close: async () => {},
        isAvailable: true,
      };
      const create = (): RemoteBackend => backend as unknown as RemoteBackend;
      const factory: RemoteBackendFactory = { isRemote: true, create };
      return limiter({ limit: { spacing: { every: '1s' } }, backend: factory, clock });
    });
    const waiting = apis.map((api) => api.acquire('token', 1, { wait: 1500 }));
    await clock.advanceAsync(1400);
    const second = checkedAt.map(([, at]) => at);
    expect(Math.min(...second)).toBeGreaterThanOrEqual(notBeforeMs);
    expect(new Set(second).size).toBeGreaterThan(PROCESSES / 2);
    for (const api of apis) await api.close();
    await Promise.all(waiting);
  },
);
