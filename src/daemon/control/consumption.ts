/**
 * Copies the consumption of a key from one limiter to another, when an override begins or ends.
 *
 *     both in this process, same kind of rule    the state is converted
 *     otherwise                                  the cost that the other limiter lacks is taken there
 *
 * If both have counted the key, the larger consumption stays: neither a begin nor an end grants a fresh burst. The
 * other limiter is empty at most, not in debt. Calls in flight are not copied: the limiter that admitted them settles them.
 */

import { createLimiter } from '../../limiter/limiter.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import { isConcurrencyLimit, type LimiterEntry } from '../router/limiter-registry.ts';

/** Returns a promise if a limiter is remote, or the rules differ in kind. */
export function copyConsumption(
  key: string,
  from: LimiterEntry,
  to: LimiterEntry,
): Promise<void> | undefined {
  if (from === to) return undefined;
  if (!(from.limiter instanceof SyncLimiter && to.limiter instanceof SyncLimiter))
    return takeMissing(key, from, to);
  if (isConcurrencyLimit(from.limiter) || isConcurrencyLimit(to.limiter)) return undefined;
  const state = from.limiter.keySnapshot(key);
  if (state.entries.length === 0) return undefined;
  const known = to.limiter.keySnapshot(key);
  const { remaining } = to.limiter.inspect(key);
  to.limiter.forget(key);
  const isConverted = to.limiter.restore(state, from.rule.limit, false);
  if (!isConverted || to.limiter.inspect(key).remaining > remaining) {
    to.limiter.forget(key);
    to.limiter.restore(known);
  }
  return isConverted ? undefined : takeMissing(key, from, to);
}

async function takeMissing(key: string, from: LimiterEntry, to: LimiterEntry): Promise<void> {
  const [wanted, known] = await Promise.all([consumedIn(from, key), consumedIn(to, key)]);
  const missing = Math.floor(wanted - known);
  if (missing > 0) await to.limiter.takeUpTo(key, missing);
}

/** How much less a key has left than one without state. */
async function consumedIn({ limiter, rule }: LimiterEntry, key: string): Promise<number> {
  const status = await limiter.inspect(key);
  if (!status) throw new Error(`limit ${limiter.name} is unavailable`);
  if (status.inFlight !== undefined) return 0;
  const fresh = await createLimiter({ limit: rule.limit }).inspect(key);
  return (fresh?.remaining ?? 0) - Math.max(0, status.remaining);
}

/** True if a limiter of this process has counted the key. */
export const hasState = (limiter: LimiterEntry['limiter'], key: string): boolean =>
  limiter instanceof SyncLimiter && limiter.keySnapshot(key).entries.length > 0;
