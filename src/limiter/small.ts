/**
 * `sluice/small`: a synchronous limiter built from the rules it is given, for pages and workers where size matters.
 *
 *     const api = smallLimiter(bucket({ rate: '10/s', burst: 20 }));
 *     if (api.check(userId).verdict === 'allow') serve();
 *
 * It runs the rules of `limiter` without queues, permits, events and backends. A bundler leaves out rules that are not
 * imported. Each new key makes it visit two of the oldest keys and remove those equal to a new key, so the number of
 * keys follows the traffic. At `maxKeys` it denies new keys: eviction would grant them a fresh burst.
 */

import { type Clock, type Millis, systemClock } from '../core/clock.ts';
import { type Decision, deny } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { OptionReader } from '../core/options.ts';
import { type BucketOptions, bucket as bucketPolicy } from '../policies/bucket.ts';
import { requireCost } from '../policies/cost.ts';
import type { Policy, State } from '../policies/policy.ts';
import { type SpacingOptions, spacing as spacingPolicy } from '../policies/spacing.ts';
import { type WindowOptions, window as windowPolicy } from '../policies/window.ts';

/** A rule for `smallLimiter`: `bucket(…)`, `spacing(…)` or `window(…)`. */
export interface Rule {
  /** The name of the rule: `bucket`. */
  readonly kind: string;
}

/** Options of `smallLimiter`. */
export interface SmallLimiterOptions {
  /** The most keys that have state at once. Default 100,000. */
  readonly maxKeys?: number | undefined;
  /** The clock. Default: the system's. */
  readonly clock?: Clock | undefined;
}

/** A limiter that decides in this process, at once. */
export interface SmallLimiter {
  /** Decides, and counts the call if it is allowed. Default cost 1. */
  check(key: string, cost?: number): Decision;
  /** Decides without counting. */
  peek(key: string, cost?: number): Decision;
  /** Forgets a key. */
  reset(key: string): void;
  /** Keys that have state. */
  readonly size: number;
}

/** Token bucket: a long-term rate, and a burst after a quiet period. @throws {ConfigError} for invalid options. */
export const bucket = (options: BucketOptions): Rule => bucketPolicy(options);

/** A minimum interval between calls. @throws {ConfigError} for invalid options. */
export const spacing = (options: SpacingOptions): Rule => spacingPolicy(options);

/** Sliding window: a maximum number of calls in any span of time. @throws {ConfigError} for invalid options. */
export const window = (options: WindowOptions): Rule => windowPolicy(options);

const DEFAULT_MAX_KEYS = 100_000;

/** Old keys that are visited for each new key. */
const VISITS = 2;

/** Retry time of a new key while no key can be removed. */
const FULL_RETRY_MS: Millis = 1000;

/** Creates a limiter of one rule. @throws {ConfigError} for invalid options. */
export function smallLimiter(rule: Rule, options: SmallLimiterOptions = {}): SmallLimiter {
  const policy = rule as Policy;
  if (policy.traits.canReserve)
    throw new ConfigError('reserve', 'left out: a small limiter has no queue', policy.kind);
  const reader = new OptionReader('', options);
  const maxKeys = reader.number('maxKeys', { min: 1, integer: true }, DEFAULT_MAX_KEYS);
  const { clock = systemClock } = options;
  /** Keys in the order of their last visit. */
  const states = new Map<string, State>();

  const removeIdle = (now: Millis): void => {
    let visits = VISITS;
    for (const [key, state] of states) {
      if (visits-- === 0) return;
      states.delete(key);
      if (policy.freshAt(state, 0, false) > now) states.set(key, state);
    }
  };

  const fresh = (now: Millis): State => {
    const state = new Float64Array(policy.width);
    policy.init(state, 0, now);
    return state;
  };

  return {
    check(key, cost = 1) {
      requireCost(cost);
      const now = clock.now();
      let state = states.get(key);
      if (state === undefined) {
        removeIdle(now);
        if (states.size >= maxKeys) return deny(FULL_RETRY_MS);
        state = fresh(now);
        states.set(key, state);
      }
      return policy.check(state, 0, cost, now);
    },
    peek(key, cost = 1) {
      requireCost(cost);
      const now = clock.now();
      return policy.check(states.get(key)?.slice() ?? fresh(now), 0, cost, now);
    },
    reset: (key) => void states.delete(key),
    get size() {
      return states.size;
    },
  };
}
