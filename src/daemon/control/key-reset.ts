import { errorMessageOf } from '../../core/errors.ts';
import type { LimiterEntry } from '../router/limiter-registry.ts';
import { limiterKeyOf } from '../router/route.ts';
import type { Router } from '../router/router.ts';
import { hasState } from './consumption.ts';
import {
  binaryKeyOf,
  type ControlKey,
  type ControlRecord,
  canonicalKeyOf,
} from './control-record.ts';
import type { OverrideContext } from './override-limiters.ts';

/** Names of the limits in which a key was reset, and of those whose backend cannot forget a key or is unavailable. */
export interface ResetResult {
  readonly reset: readonly string[];
  readonly failed: readonly string[];
  /** Limits that apply to the key and have one count for all keys: only a reset that names them resets it. */
  readonly shared?: readonly string[];
  /** Why peers do not learn of it; left out if they do. */
  readonly unshared?: string;
}

/** Without a limit in the record: in limits that apply to the key, and in limits of this process that have counted it. */
export async function forgetKey(
  { registry, limits: configured, log }: OverrideContext,
  router: Router | undefined,
  record: Pick<ControlRecord, keyof ControlKey | 'limit'>,
  entries = registry.all,
): Promise<ResetResult> {
  const { limit } = record;
  const counted = canonicalKeyOf(record, router);
  const limits = new Map(configured().map((config) => [config.name, config]));
  const applying = router?.limitsOf(binaryKeyOf(record)) ?? [];
  const reset = new Set<string>();
  const failed = new Set<string>();
  const forgetIn = async ({ name, limiter }: LimiterEntry): Promise<void> => {
    const config = limits.get(name.split('[', 1)[0]);
    if (!config) return;
    const isMeant =
      limit === undefined
        ? config.per === 'key' && (applying.includes(config) || hasState(limiter, counted))
        : config.name === limit;
    if (!isMeant) return;
    try {
      await limiter.forget(limiterKeyOf({ limit: config }, counted));
      reset.add(config.name);
    } catch (error) {
      failed.add(config.name);
      log('warn', 'key not reset', { limit: name, reason: errorMessageOf(error) });
    }
  };
  await Promise.all(entries.map(forgetIn));
  const inOrder = [...limits.keys()];
  const shared = limit === undefined ? applying.filter(({ per }) => per === 'limit') : [];
  return {
    reset: inOrder.filter((name) => reset.has(name) && !failed.has(name)),
    failed: inOrder.filter((name) => failed.has(name)),
    ...(shared.length > 0 && { shared: shared.map(({ name }) => name) }),
  };
}
