import type { Steps } from '../../core/steps.ts';
import type { LimitConfig } from '../config/limits.ts';
import type { PlansByKey } from '../config/plans.ts';
import type { KeysConfig } from '../config/read.ts';
import { MATCH_ALL, type Pattern } from '../keys/pattern.ts';
import { PatternIndex } from '../keys/pattern-index.ts';
import type { PatternTable } from '../keys/pattern-table.ts';
import type { Route } from './route.ts';

export interface RoutesConfig {
  readonly allow: PatternTable;
  readonly deny: PatternTable;
  readonly unmatched: 'allow' | 'deny';
  readonly limits: readonly LimitConfig[];
  readonly keys?: KeysConfig;
  readonly planOf?: PlansByKey;
}

/** Slots of the cache, a power of two. */
export const ROUTE_CACHE_SLOTS = 65_536;

/** True if every key has the same route. */
export const isKeyIndependent = (config: RoutesConfig): boolean =>
  !hasLists(config) && config.limits.every(matchesAlike);

/** True for a limit that applies to every key in the same way. */
export const matchesAlike = (limit: LimitConfig): boolean =>
  limit.match.every((pattern) => pattern === MATCH_ALL) && !hasListsOrOverrides(limit);

export const hasLists = ({ allow, deny }: KeyLists): boolean => allow.length + deny.length > 0;

export const hasListsOrOverrides = (limit: LimitConfig): boolean =>
  hasLists(limit) || limit.overrides.length > 0;

export type KeyLists = Pick<RoutesConfig, 'allow' | 'deny'>;

export interface IndexedLimit {
  readonly limit: LimitConfig;
  /** Position in the configuration. */
  readonly order: number;
  readonly match: PatternIndex<Pattern>;
}

export interface LimitPattern {
  readonly indexed: IndexedLimit;
  readonly pattern: Pattern;
}

const patternOf = ({ pattern }: { readonly pattern: Pattern }): Pattern => pattern;

/** The patterns of a configuration, ready for look-ups. */
export interface RouteIndex {
  readonly limits: readonly IndexedLimit[];
  /** Patterns of the limits without `always`. */
  readonly specific: PatternIndex<LimitPattern>;
  /** An empty cache, of no table yet. */
  readonly cache: RouteCache;
}

/** Cached routes by slot. */
interface RouteCache {
  readonly hashes: Int32Array;
  readonly keys: (string | undefined)[];
  readonly routes: (Route | undefined)[];
}

/** Each array is half a megabyte, and may start a garbage collection. */
export function* createCache(size: number): Steps<RouteCache> {
  const hashes = new Int32Array(size * 2);
  yield;
  const keys = new Array<string | undefined>(size);
  yield;
  return { hashes, keys, routes: new Array<Route | undefined>(size) };
}

/** Thousands of patterns take longer than a check may wait. */
export function* indexRoutes(config: RoutesConfig): Steps<RouteIndex> {
  const limits: IndexedLimit[] = [];
  for (const [order, limit] of config.limits.entries())
    limits.push(yield* indexLimit(limit, order));
  const specific = yield* PatternIndex.inSteps(specificPatterns(limits), patternOf);
  const cache = yield* createCache(isKeyIndependent(config) ? 0 : ROUTE_CACHE_SLOTS);
  return { limits, specific, cache };
}

const indexPatterns = (patterns: readonly Pattern[]): Steps<PatternIndex<Pattern>> =>
  PatternIndex.inSteps(patterns, (pattern) => pattern);

function* indexLimit(limit: LimitConfig, order: number): Steps<IndexedLimit> {
  return { limit, order, match: yield* indexPatterns(limit.match) };
}

function* specificPatterns(limits: readonly IndexedLimit[]): Generator<LimitPattern> {
  for (const indexed of limits)
    if (!indexed.limit.always)
      for (const pattern of indexed.limit.match) yield { indexed, pattern };
}
