/** A store in this process: for tests, and for limits that several parts of one process share. */

import { type Clock, systemClock } from '../../clock.ts';
import { emptyPool, leave, type PoolState, sync } from './agreement.ts';
import type { PoolStore } from './store.ts';

export function memoryStore(clock: Clock = systemClock): PoolStore {
  const pools = new Map<string, PoolState>();
  return {
    name: 'memory',
    async sync(name, request, options) {
      const now = clock.now();
      const pool = pools.get(name) ?? emptyPool(now, options);
      pools.set(name, pool);
      return sync(pool, request, now, options);
    },
    async leave(name, id) {
      const pool = pools.get(name);
      if (pool) leave(pool, id, clock.now());
    },
    async members(name) {
      const now = clock.now();
      return (pools.get(name)?.members ?? []).map(({ id, claim, heardAt }) => ({
        id,
        size: claim.size,
        rank: claim.rank,
        ageMs: now - heardAt,
      }));
    },
    async close() {},
  };
}
