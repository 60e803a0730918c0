/**
 * Decides the calls of a log with the production code: one limit, or the router of a daemon's configuration. The clock
 * stands at the time of the call.
 *
 * All limits decide in this process, whatever their backend is: a log of the whole fleet meets the whole limit.
 */

import type { Millis } from '../../core/clock.ts';
import type { Decision } from '../../core/decision.ts';
import { seededRandom } from '../../core/random.ts';
import type { Config } from '../../daemon/config/read.ts';
import { DenialRecorder } from '../../daemon/denials/denial-recorder.ts';
import { isConcurrencyLimit, LimiterRegistry } from '../../daemon/router/limiter-registry.ts';
import { Router } from '../../daemon/router/router.ts';
import { createLimiter } from '../../limiter/limiter.ts';
import type { SyncLimiter } from '../../limiter/sync-limiter.ts';
import { CommandError } from '../framework/command.ts';
import type { KeyTable } from './key-table.ts';

export interface Decider {
  /** Times never decrease. */
  decide(id: number, at: Millis, cost: number): Decision;
  /** The decisions of each limit; undefined for a single limit. */
  limitCounts?(): readonly LimitCounts[];
}

export interface LimitCounts {
  readonly name: string;
  readonly allowed: number;
  readonly denied: number;
  /** True for a limit in shadow mode: its denials denied no call. */
  readonly shadow?: true;
  /** True for a limit on calls in flight, which a log cannot replay. */
  readonly skipped?: true;
}

/** The name of a limit in a report, with what is special about it. */
export const limitTitle = ({ name, shadow, skipped }: LimitCounts): string =>
  `${name}${shadow ? ' (shadow)' : ''}${skipped ? ' (calls in flight, not replayed)' : ''}`;

/** Decides by one limit. @throws {ConfigError} @throws {CommandError} */
export function decideByLimit(limit: unknown, keys: KeyTable, maxKeys: number): Decider {
  let now: Millis = 0;
  const clock = { now: () => now };
  const options = { limit: limit as never, clock, maxKeys, random: seededRandom(1) };
  const limiter = createLimiter(options, { hasher: keys.hasher, path: '--limit' }) as SyncLimiter;
  if (isConcurrencyLimit(limiter) || limiter.inspect('').limit !== undefined)
    throw new CommandError(
      'expected `--limit` to be a rate, such as bucket or window: a log does not say when calls end',
    );
  const hash = { low: 0, high: 0 };
  const decideByHash = (id: number, at: Millis, cost: number): Decision => {
    now = at;
    hash.low = keys.lows[id];
    hash.high = keys.highs[id];
    return limiter.checkHashed(hash, cost) ?? limiter.check(keys.names[id], cost);
  };
  const decideByName = (id: number, at: Millis, cost: number): Decision => {
    now = at;
    return limiter.check(keys.names[id], cost);
  };
  return { decide: limiter.isCheckOnly ? decideByHash : decideByName };
}

/** Decides as a daemon with this configuration. */
export function decideByConfig(config: Config, keys: KeyTable): Decider {
  let now: Millis = 0;
  const clock = { now: () => now };
  const { hasher } = keys;
  const registry = new LimiterRegistry({ clock, hasher, backendFor: () => undefined });
  registry.apply(config.limits);
  const denials = new DenialRecorder(clock);
  const router = new Router(config, registry, hasher, seededRandom(1), denials);
  const shadow = new Set(config.limits.filter((limit) => limit.shadow).map(({ name }) => name));
  return {
    decide(id, at, cost) {
      now = at;
      const result = router.check({ key: keys.names[id], cost });
      if (result === undefined || result instanceof Promise)
        throw new Error('a limit of a replay decides at once');
      return result.decision;
    },
    limitCounts: () => [
      ...registry.all.map(({ name, limiter }) => {
        const { allowed, denied } = (limiter as SyncLimiter).stats();
        const isShadow = shadow.has(name.replace(/\[.*$/, ''));
        const isSkipped = isConcurrencyLimit(limiter as SyncLimiter);
        return {
          name,
          allowed,
          denied,
          ...(isShadow && { shadow: true as const }),
          ...(isSkipped && { skipped: true as const }),
        };
      }),
      ...Object.entries(router.staticDenials)
        .filter(([, denied]) => denied > 0)
        .map(([name, denied]) => ({ name, allowed: 0, denied })),
    ],
  };
}
