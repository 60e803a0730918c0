/**
 * The keys that are nearest to their limits, among those whose names the daemon knows. These were denied lately, are
 * among the most called keys, or have their hash cached. Tables hold hashes only, so other keys have no name here.
 */

import type { Hasher } from '../../core/hash.ts';
import type { Steps } from '../../core/steps.ts';
import type { NamedRuleStatus } from '../../limiter/inspection.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import type { DenialRecorder } from '../denials/denial-recorder.ts';
import { toBinaryKey, toKeyText } from '../keys/binary-key.ts';
import type { RoutedRequest } from '../router/request.ts';
import { limiterKeyOf } from '../router/route.ts';
import type { Router } from '../router/router.ts';

/** How much of a limit a key uses now. */
export interface KeyUse {
  readonly key: string;
  /** The limit, or its override. */
  readonly limit: string;
  /** The rule that is nearest, of a limit with several. */
  readonly rule: string;
  readonly shadow?: true;
  readonly quota: number;
  readonly remaining: number;
  /** The used fraction of the quota: 0 to 1. */
  readonly use: number;
}

/** In place of a key, where all keys of a limit have one count. */
export const ALL_KEYS = '(all keys)';

/** Keys looked at for one sample, and those that are listed. */
const MAX_KEYS = 500;
const MAX_LISTED = 50;

/** Keys of each source of denials, and of each limit that is called. */
const MAX_SOURCES = 20;
const MAX_KEYS_OF_SOURCE = 20;

/** Keys that use less are not listed. */
const MIN_USE = 0.01;

export interface NearLimitSources {
  readonly router: Router;
  readonly hasher: Pick<Hasher, 'cachedKeys'>;
  readonly denials: DenialRecorder;
}

/** The keys that use most of their limits. */
export interface NearLimitKeys {
  readonly nearest: readonly KeyUse[];
  /** The highest use by the name of the limit, without its overrides. */
  readonly highest: ReadonlyMap<string, number>;
}

/** A step is one key, or the names of one kind. */
export function* findNearLimitKeys(sources: NearLimitSources): Steps<NearLimitKeys> {
  const uses: KeyUse[] = [];
  const highest = new Map<string, number>();
  for (const key of yield* knownKeys(sources)) {
    const routed = sources.router.route({ key, cost: 1 });
    for (const use of routed ? usesOf(routed, key) : []) {
      uses.push(use);
      const limit = use.limit.split('[', 1)[0];
      highest.set(limit, Math.max(highest.get(limit) ?? 0, use.use));
    }
    yield;
  }
  const nearest = uses.filter(({ use }) => use >= MIN_USE).sort((a, b) => b.use - a.use);
  return { nearest: uniqueOf(nearest).slice(0, MAX_LISTED), highest };
}

/** All keys of a limit with `per: limit` have one count: it is listed once. */
function uniqueOf(uses: readonly KeyUse[]): KeyUse[] {
  const seen = new Set<string>();
  return uses.filter(({ limit, key }) => {
    const id = `${limit}\n${key}`;
    return !seen.has(id) && seen.add(id);
  });
}

function* knownKeys({ router, denials, hasher }: NearLimitSources): Steps<ReadonlySet<string>> {
  const keys = new Set<string>();
  const add = (key: string): unknown => keys.size < MAX_KEYS && keys.add(key);
  for (const source of denials.top('hour', MAX_SOURCES, MAX_KEYS_OF_SOURCE))
    for (const { key } of source.keys) add(toBinaryKey(key));
  yield;
  for (const source of router.calls.top('now', MAX_SOURCES, MAX_KEYS_OF_SOURCE))
    for (const { key } of source.keys) add(toBinaryKey(key));
  yield;
  for (const key of hasher.cachedKeys?.() ?? []) add(key);
  return keys;
}

function usesOf({ route, key: counted }: RoutedRequest, sent: string): KeyUse[] {
  return route.applied.flatMap((applied) => {
    const { limiter, name, limit } = applied;
    if (!(limiter instanceof SyncLimiter)) return []; // a server would have to be read
    const fullest = fullestOf(limiter.inspect(limiterKeyOf(applied, counted)).rules);
    if (!fullest) return [];
    const { name: rule, quota, remaining } = fullest;
    return {
      key: limit.per === 'limit' ? ALL_KEYS : toKeyText(sent),
      limit: name,
      rule,
      ...(limit.shadow && { shadow: true as const }),
      ...{ quota, remaining, use: useOf(fullest) },
    };
  });
}

const fullestOf = (rules: readonly NamedRuleStatus[]): NamedRuleStatus | undefined =>
  rules.reduce<NamedRuleStatus | undefined>(
    (most, rule) => (most && useOf(most) >= useOf(rule) ? most : rule),
    undefined,
  );

/** 0 to 1; a rule without a quota is full. */
export const useOf = ({
  quota,
  remaining,
}: Pick<NamedRuleStatus, 'quota' | 'remaining'>): number =>
  quota > 0 ? Math.min(1, Math.max(0, 1 - remaining / quota)) : 1;
