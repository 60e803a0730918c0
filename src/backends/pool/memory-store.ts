import { type Clock, type Millis, systemClock } from '../../core/clock.ts';
import { applyLeave, applySync, createPoolState, type PoolState } from './agreement.ts';
import type { PoolStore } from './store.ts';

/** A store for the members of one process. */
export function memoryStore(clock: Clock = systemClock): PoolStore {
  const pools = new Map<string, PoolState>();
  const checkpoints = new Map<string, { readonly text: string; readonly keptTo: Millis }>();
  return {
    name: 'memory',
    async sync(name, request, options) {
      const now = clock.now();
      const pool = pools.get(name) ?? createPoolState(now, options);
      pools.set(name, pool);
      return applySync(pool, request, now, options);
    },
    async leave(name, id) {
      const pool = pools.get(name);
      if (pool) applyLeave(pool, id, clock.now());
    },
    async saveCheckpoint(name, text, keepMs) {
      checkpoints.set(name, { text, keptTo: clock.now() + keepMs });
    },
    async loadCheckpoint(name) {
      const checkpoint = checkpoints.get(name);
      return checkpoint && clock.now() < checkpoint.keptTo ? checkpoint.text : undefined;
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
