/**
 * Finds the limits that apply to a key, and why.
 *
 *     key ──▶ bans, deny lists ──▶ allow lists ──▶ most specific limit, or the one named ──▶ all limits with `always`
 *                                                    └─ its override                       └─ their overrides
 *
 * The route depends only on the configuration and the key. It is cached by the key's hash in a
 * direct-mapped table: a new key overwrites its slot. A key with the hash of an allow-listed one must be
 * limited nevertheless, so the key is compared too, unless a single limit counts by that hash anyway.
 */

import type { Millis } from '../../core/clock.ts';
import type { KeyHash } from '../../core/hash.ts';
import type { PendingSet } from '../../core/pending.ts';
import { runAtOnce, type Steps } from '../../core/steps.ts';
import { AsyncLimiter } from '../../limiter/async-limiter.ts';
import { type CompositeLimiter, createComposite } from '../../limiter/composite-limiter.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import type { CallSource } from '../calls/call-recorder.ts';
import type { LimitConfig } from '../config/limits.ts';
import type { OverrideMatch } from '../config/overrides.ts';
import type { PlansByKey } from '../config/plans.ts';
import type { KeysConfig } from '../config/read.ts';
import {
  ALL_IPV6_BITS,
  bytesEndLikeIpv6,
  countedKeyOf,
  DEFAULT_IPV6_BITS,
  endsLikeIpv6,
  matchedKeyOf,
} from '../keys/counted-key.ts';
import { MATCH_ALL, type Pattern } from '../keys/pattern.ts';
import { PatternIndex } from '../keys/pattern-index.ts';
import type { PatternTable } from '../keys/pattern-table.ts';
import { isConcurrencyLimit, type LimiterRegistry, overrideName } from './limiter-registry.ts';
import { deniesWhenShed } from './shed.ts';

export interface AppliedLimit {
  readonly limit: LimitConfig;
  /** The name of the limiter: the limit's, or its override's. */
  readonly name: string;
  readonly limiter: SyncLimiter | AsyncLimiter;
  readonly pending: PendingSet;
  /** The rule of an override that was set at run time. */
  readonly runtimeRule?: unknown;
}

export type LocalAppliedLimit = AppliedLimit & { readonly limiter: SyncLimiter };

type RemoteAppliedLimit = AppliedLimit & { readonly limiter: AsyncLimiter };

/** A verdict without counting: by a list, or because no limit matches. */
export interface StaticVerdict {
  readonly isAllowed: boolean;
  readonly reason: 'allow-list' | 'deny-list' | 'unmatched' | 'banned';
  /** The limit that has the list; undefined: the global list. */
  readonly limit?: string;
  readonly pattern?: Pick<Pattern, 'text'>;
  /** The rest of a ban; undefined: the configuration decides for good. */
  retryAfterMs?(): Millis;
  /** The end of a ban, in Unix time, and its note. */
  readonly until?: Millis;
  readonly note?: string | undefined;
}

/** The limiter of an override that was set at run time. */
export interface AppliedOverride {
  readonly name: string;
  readonly rule: unknown;
}

/** What operators set at run time; it comes before the configuration. */
export interface RouteControls {
  readonly isEmpty: boolean;
  banOf(key: string): StaticVerdict | undefined;
  overrideOf(limit: LimitConfig, key: string): AppliedOverride | undefined;
}

const NO_CONTROLS: RouteControls = {
  isEmpty: true,
  banOf: () => undefined,
  overrideOf: () => undefined,
};

export interface Route {
  readonly staticVerdict?: StaticVerdict;
  readonly applied: readonly AppliedLimit[];
  /** The key that its limits count under; undefined: the key that was sent. */
  readonly countedKey: string | undefined;
  /** Set if one local limit decides alone, by the key's hash. */
  readonly singleLimiter: SyncLimiter | undefined;
  /** All local limits except those on calls in flight, as one. */
  readonly local: CompositeLimiter | undefined;
  /** All local limits as one, for clients that settle a permit. */
  readonly localWithPermits: CompositeLimiter | undefined;
  /** Limits on calls in flight: a check without permit only peeks at them. */
  readonly concurrencyLimits: readonly LocalAppliedLimit[];
  /** Limits that a remote backend decides. */
  readonly remote: readonly RemoteAppliedLimit[];
  /** Limits in shadow mode: they count and never refuse. */
  readonly shadowLimits: readonly AppliedLimit[];
  /** The names of limits whose calls must be settled. */
  readonly settledLimits: readonly string[];
  /** Where its calls are counted by key: its limits, with their overrides and plans, or the list that decides. */
  readonly callSources: readonly CallSource[];
}

export interface RoutesConfig {
  readonly allow: PatternTable;
  readonly deny: PatternTable;
  readonly unmatched: 'allow' | 'deny';
  readonly limits: readonly LimitConfig[];
  readonly keys?: KeysConfig;
  readonly planOf?: PlansByKey;
}

/** A power of two. */
const ROUTE_CACHE_SLOTS = 65_536;

/** The route of a longer key is not cached if the key has to be compared. */
const MAX_CACHED_KEY_BYTES = 128;

/** Distinct routes kept: one per combination of limiters, in practice a few, and as many of IPv6 networks. */
const MAX_ROUTES = 10_000;

/** A name with a plan, as in a request: `limit[plan]`. */
const WITH_PLAN = /^([^[]*)\[([^\]]*)\]$/;

/** In place of a limit's name before a plan: the most specific limit. */
const ANY_LIMIT = '*';

/** The one key of a limit with `per: limit`. */
const SHARED_KEY = '*';

export class RouteTable {
  readonly #config: RoutesConfig;
  readonly #registry: LimiterRegistry;
  readonly #controls: RouteControls;
  readonly #limitsByName: ReadonlyMap<string, IndexedLimit>;
  /** Limits without `always`: only the most specific one applies. */
  readonly #specific: PatternIndex<LimitPattern>;
  readonly #always: readonly IndexedLimit[];
  readonly #planNames: ReadonlySet<string>;
  readonly #hasPlanFile: boolean;
  readonly #deniesWhenShed: boolean;
  /** The route of all keys, if neither the configuration nor a control depends on the key. */
  #soleRoute: Route | undefined;
  #cachedHashes: Int32Array;
  /** Keys whose route is not a single limit. */
  #cachedKeys: (string | undefined)[];
  #cachedRoutes: (Route | undefined)[];
  readonly #bySignature = new Map<string, Route>();
  /** Routes of IPv6 addresses, by their network. */
  readonly #byNetwork = new Map<string, Route>();
  readonly #ipv6Bits: number;
  /** True if IPv6 addresses do not count for themselves. */
  readonly #countsNetworks: boolean;
  /** Routes to a named limit that do not depend on the key: at most one per limit. */
  readonly #keyIndependentRoutes = new Map<string, Route>();

  /** `index` is that of the configuration. */
  constructor(
    config: RoutesConfig,
    registry: LimiterRegistry,
    controls: RouteControls = NO_CONTROLS,
    index: RouteIndex = runAtOnce(indexRoutes(config)),
  ) {
    this.#config = config;
    this.#ipv6Bits = config.keys?.ipv6Bits ?? DEFAULT_IPV6_BITS;
    this.#countsNetworks = this.#ipv6Bits < ALL_IPV6_BITS;
    this.#registry = registry;
    this.#controls = controls;
    this.#deniesWhenShed = deniesWhenShed(config);
    const { limits } = index;
    this.#specific = index.specific;
    this.#limitsByName = new Map(limits.map((indexed) => [indexed.limit.name, indexed]));
    this.#planNames = new Set(config.limits.flatMap(({ plans }) => [...plans.keys()]));
    this.#hasPlanFile = (config.planOf?.size ?? 0) > 0;
    this.#always = limits.filter(({ limit }) => limit.always);
    this.#cachedHashes = index.cache.hashes;
    this.#cachedKeys = index.cache.keys;
    this.#cachedRoutes = index.cache.routes;
    this.forgetRoutes();
  }

  /** Finds routes anew, all or that of one key: a control was set, removed or has expired. */
  forgetRoutes(onlyKey?: KeyHash): void {
    const isWarm = !this.#soleRoute && this.#keyIndependentRoutes.size === 0;
    if (onlyKey && isWarm && !this.#controls.isEmpty) this.#forgetSlot(onlyKey);
    else this.#forgetAll();
  }

  #forgetSlot({ low }: KeyHash): void {
    const at = low & (ROUTE_CACHE_SLOTS - 1);
    this.#cachedHashes[at * 2] = this.#cachedHashes[at * 2 + 1] = 0;
    this.#cachedRoutes[at] = undefined;
  }

  #forgetAll(): void {
    const isSole = this.#controls.isEmpty && isKeyIndependent(this.#config) && !this.#hasPlanFile;
    this.#soleRoute = isSole ? this.find('') : undefined;
    const size = isSole ? 0 : ROUTE_CACHE_SLOTS;
    if (size === this.#cachedRoutes.length) {
      this.#cachedHashes.fill(0);
      this.#cachedRoutes[0] = undefined; // what a hash of 0 would find
    } else {
      const { hashes, keys, routes } = runAtOnce(createCache(size));
      this.#cachedHashes = hashes;
      this.#cachedKeys = keys;
      this.#cachedRoutes = routes;
    }
    this.#bySignature.clear();
    this.#keyIndependentRoutes.clear();
  }

  get limits(): readonly LimitConfig[] {
    return this.#config.limits;
  }

  /** True if a ban, the configuration or a limit that fails closed denies some key while checks are shed. */
  get deniesWhenShed(): boolean {
    return this.#deniesWhenShed || !this.#controls.isEmpty;
  }

  /** By hash if a single limit counts by that hash, otherwise by the key as well. */
  cached({ low, high }: KeyHash, key: string): Route | undefined {
    if (this.#soleRoute)
      return this.#countsNetworks && endsLikeIpv6(key) ? undefined : this.#soleRoute;
    const at = low & (ROUTE_CACHE_SLOTS - 1);
    if (this.#cachedHashes[at * 2] !== low || this.#cachedHashes[at * 2 + 1] !== high)
      return undefined;
    const route = this.#cachedRoutes[at];
    return route?.singleLimiter || this.#cachedKeys[at] === key ? route : undefined;
  }

  /** The limiter that decides alone, by hash; undefined if the route is not cached or there is none. */
  cachedLimiter(
    { low, high }: KeyHash,
    key: Uint8Array,
    from: number,
    to: number,
  ): SyncLimiter | undefined {
    if (this.#soleRoute)
      return this.#countsNetworks && bytesEndLikeIpv6(key, from, to)
        ? undefined
        : this.#soleRoute.singleLimiter;
    const at = low & (ROUTE_CACHE_SLOTS - 1);
    const isHit = this.#cachedHashes[at * 2] === low && this.#cachedHashes[at * 2 + 1] === high;
    return isHit ? this.#cachedRoutes[at]?.singleLimiter : undefined;
  }

  /** Finds the route of a key and caches it. */
  resolve({ low, high }: KeyHash, key: string): Route {
    const route = this.find(key);
    const isCompared = !route.singleLimiter;
    if (this.#soleRoute || (isCompared && key.length > MAX_CACHED_KEY_BYTES)) return route;
    if (matchedKeyOf(key) !== key) return route; // a ban of the other spelling has to find it
    const at = low & (ROUTE_CACHE_SLOTS - 1);
    this.#cachedHashes[at * 2] = low;
    this.#cachedHashes[at * 2 + 1] = high;
    // A copy: the key may be a slice of a request and keep all of it alive.
    this.#cachedKeys[at] = isCompared ? Buffer.from(key, 'latin1').toString('latin1') : undefined;
    this.#cachedRoutes[at] = route;
    return route;
  }

  /**
   * The route of a key to a named limit, whether its patterns match or not; undefined if unknown. The name may carry a
   * plan, `limit[plan]`, and `*[plan]` stands for the most specific limit.
   */
  resolveNamed(name: string, key: string): Route | undefined {
    const known = this.#keyIndependentRoutes.get(name);
    if (known && !(this.#countsNetworks && endsLikeIpv6(key))) return known;
    const [, limit = name, plan] = WITH_PLAN.exec(name) ?? [];
    if (plan !== undefined && !this.#planNames.has(plan)) return undefined;
    if (plan !== undefined && limit === ANY_LIMIT) return this.find(key, plan);
    const named = this.#limitsByName.get(limit);
    if (!named) return undefined;
    const route = this.find(key, plan, named);
    if (route.countedKey === undefined && this.#isKeyIndependent(named))
      this.#keyIndependentRoutes.set(name, route);
    return route;
  }

  /** The names of all plans. */
  get planNames(): ReadonlySet<string> {
    return this.#planNames;
  }

  /** True if every key has the same route to a named limit. */
  #isKeyIndependent({ limit }: IndexedLimit): boolean {
    return (
      this.#controls.isEmpty &&
      !hasLists(this.#config) &&
      !this.#hasPlanFile &&
      !hasListsOrOverrides(limit) &&
      !(limit.always && this.#config.unmatched === 'deny') &&
      this.#always.every((indexed) => matchesAlike(indexed.limit))
    );
  }

  /** Finds the route of a key without the cache; `named` takes the place of the most specific limit. */
  find(sent: string, plan?: string, namedLimit?: IndexedLimit): Route {
    const key = matchedKeyOf(sent);
    const specific = this.#specific.best(key)?.indexed;
    const named = namedLimit ?? specific;
    const global = this.#controls.banOf(key) ?? listVerdict(this.#config, key);
    if (global) return staticRoute(global);
    const counting: IndexedLimit[] = [];
    let exempt: StaticVerdict | undefined;
    for (const indexed of this.#limitsOf(key, named)) {
      const staticVerdict = limitListVerdict(indexed, key);
      if (staticVerdict && !staticVerdict.isAllowed) return staticRoute(staticVerdict);
      if (staticVerdict) exempt ??= staticVerdict;
      else counting.push(indexed);
    }
    // A limit with `always` is a ceiling for keys that another limit admits: it admits no key by itself, named or not.
    const isMatched = specific !== undefined || namedLimit?.limit.always === false;
    if (!isMatched && this.#config.unmatched === 'deny') return UNMATCHED_DENIED;
    if (counting.length > 0) {
      const route = this.#intern(counting.map((limit) => this.#apply(limit, key, plan)));
      const countedKey = countedKeyOf(sent, this.#ipv6Bits);
      return countedKey === sent ? route : this.#internNetwork(route, countedKey);
    }
    return exempt ? staticRoute(exempt) : UNMATCHED_ALLOWED;
  }

  /** The given limit and all limits with `always` that match, in configuration order. */
  #limitsOf(key: string, first: IndexedLimit | undefined): readonly IndexedLimit[] {
    const found = first ? [first] : [];
    for (const indexed of this.#always)
      if (indexed !== first && indexed.match.best(key)) found.push(indexed);
    return found.length > 1 ? found.sort((a, b) => a.order - b.order) : found;
  }

  /** The limits that apply to a key if it is on no list and not banned. */
  limitsOf(key: string): readonly LimitConfig[] {
    return this.#limitsOf(key, this.#specific.best(key)?.indexed).map(({ limit }) => limit);
  }

  #apply(indexed: IndexedLimit, key: string, plan?: string): AppliedLimit {
    const { limit } = indexed;
    const runtime = this.#controls.overrideOf(limit, key);
    const name = runtime?.name ?? this.#limiterName(indexed, key, plan);
    const entry = this.#registry.get(name);
    if (!entry) throw new Error(`limit ${name} is not in the registry`);
    const { limiter, pending } = entry;
    const applied = { limit, name, limiter, pending };
    return runtime ? { ...applied, runtimeRule: runtime.rule } : applied;
  }

  /** The key that limits count a key under: of an IPv6 address, its network. */
  countedKey(key: string): string {
    return countedKeyOf(key, this.#ipv6Bits);
  }

  /** The name of the limiter that the configuration has for a key in one limit: the limit's, or an override's. */
  configuredName(limitName: string, key: string): string {
    const indexed = this.#limitsByName.get(limitName);
    return indexed ? this.#limiterName(indexed, key) : limitName;
  }

  /** An override comes first, then the plan that the request names, then that of the plan file. */
  #limiterName({ limit }: IndexedLimit, key: string, named?: string): string {
    const plan = named ?? this.#config.planOf?.get(key);
    const byPlan = plan !== undefined && limit.plans.has(plan) ? plan : undefined;
    const rule = limit.overrides.nameFor(key) ?? byPlan;
    return rule === undefined ? limit.name : overrideName(limit.name, rule);
  }

  /** Routes with the same limits are one object. */
  #intern(applied: readonly AppliedLimit[]): Route {
    const signature = applied.map((each) => each.name).join('\n');
    const known = this.#bySignature.get(signature);
    if (known) return known;
    const route = createRoute(applied);
    if (this.#bySignature.size >= MAX_ROUTES) this.#bySignature.clear();
    this.#bySignature.set(signature, route);
    return route;
  }

  /** A route that counts under another key than the one sent. No limiter decides by the hash of the key sent. */
  #internNetwork(route: Route, countedKey: string): Route {
    const known = this.#byNetwork.get(countedKey);
    if (known?.applied === route.applied) return known;
    const counted = { ...route, singleLimiter: undefined, countedKey };
    if (this.#byNetwork.size >= MAX_ROUTES) this.#byNetwork.clear();
    this.#byNetwork.set(countedKey, counted);
    return counted;
  }

  /** The most specific patterns of a limit that match a key, for an explanation. */
  matchOf({ name, overrides }: LimitConfig, key: string): LimitMatch {
    const indexed = this.#limitsByName.get(name);
    const matched = matchedKeyOf(key);
    return { pattern: indexed?.match.best(matched), override: overrides.best(matched) };
  }
}

/** Why a limit applies to a key. */
export interface LimitMatch {
  /** The pattern that matches; undefined: none does. */
  readonly pattern: Pattern | undefined;
  readonly override: OverrideMatch | undefined;
}

/** True if every key has the same route. */
const isKeyIndependent = (config: RoutesConfig): boolean =>
  !hasLists(config) && config.limits.every(matchesAlike);

/** True for a limit that applies to every key in the same way. */
const matchesAlike = (limit: LimitConfig): boolean =>
  limit.match.every((pattern) => pattern === MATCH_ALL) && !hasListsOrOverrides(limit);

const hasLists = ({ allow, deny }: KeyLists): boolean => allow.length + deny.length > 0;

const hasListsOrOverrides = (limit: LimitConfig): boolean =>
  hasLists(limit) || limit.overrides.length > 0;

type KeyLists = Pick<RoutesConfig, 'allow' | 'deny'>;

interface IndexedLimit {
  readonly limit: LimitConfig;
  /** Position in the configuration. */
  readonly order: number;
  readonly match: PatternIndex<Pattern>;
}

/** One pattern of a limit. */
interface LimitPattern {
  readonly indexed: IndexedLimit;
  readonly pattern: Pattern;
}

const patternOf = ({ pattern }: { readonly pattern: Pattern }): Pattern => pattern;

/** The patterns of a configuration, ready for look-ups. */
export interface RouteIndex {
  readonly limits: readonly IndexedLimit[];
  /** Of the limits without `always`. */
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
function* createCache(size: number): Steps<RouteCache> {
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

/** A key on both lists is denied. */
function listVerdict({ allow, deny }: KeyLists, key: string): StaticVerdict | undefined {
  const denied = deny.best(key);
  if (denied >= 0)
    return { isAllowed: false, reason: 'deny-list', pattern: { text: deny.textAt(denied) } };
  const allowed = allow.best(key);
  if (allowed < 0) return undefined;
  return { isAllowed: true, reason: 'allow-list', pattern: { text: allow.textAt(allowed) } };
}

function limitListVerdict({ limit }: IndexedLimit, key: string): StaticVerdict | undefined {
  const staticVerdict = listVerdict(limit, key);
  return staticVerdict && { ...staticVerdict, limit: limit.name };
}

/** The fields of a static verdict in responses. */
export const staticVerdictFields = (verdict: StaticVerdict) => ({
  verdict: verdict.isAllowed ? 'allow' : 'deny',
  reason: verdict.reason,
  limit: verdict.limit,
  pattern: verdict.pattern?.text,
  ...(verdict.retryAfterMs && { retryAfterMs: verdict.retryAfterMs() }),
});

const isLocal = (applied: AppliedLimit): applied is LocalAppliedLimit =>
  applied.limiter instanceof SyncLimiter;

const isRemote = (applied: AppliedLimit): applied is RemoteAppliedLimit =>
  applied.limiter instanceof AsyncLimiter;

function staticRoute(staticVerdict: StaticVerdict): Route {
  const { reason, limit } = staticVerdict;
  const about = { ...(limit !== undefined && { limit }), reason };
  const callSources = [{ id: `${reason} ${limit ?? ''}`, about }];
  return { ...EMPTY_ROUTE, staticVerdict, callSources };
}

const callSourceOf = ({ limit: { name, shadow } }: AppliedLimit): CallSource =>
  shadow ? { id: `shadow ${name}`, about: { limit: name, shadow: true } } : { id: name };

function createRoute(applied: readonly AppliedLimit[]): Route {
  const active = applied.filter(({ limit }) => !limit.shadow);
  const local = active.filter(isLocal);
  const counting = local.filter(({ limiter }) => !isConcurrencyLimit(limiter));
  const [first] = applied;
  const isSingle = applied.length === 1 && counting.length === 1 && first.limit.per === 'key';
  const single = isSingle && counting[0].limiter.isCheckOnly ? counting[0].limiter : undefined;
  return {
    applied,
    countedKey: undefined,
    singleLimiter: single,
    local: combineLocal(counting),
    localWithPermits: combineLocal(local),
    concurrencyLimits: local.filter(({ limiter }) => isConcurrencyLimit(limiter)),
    remote: active.filter(isRemote),
    shadowLimits: applied.filter(({ limit }) => limit.shadow),
    settledLimits: active
      .filter(({ limiter }) => limiter.mustSettle)
      .map(({ limit }) => limit.name),
    callSources: applied.map(callSourceOf),
  };
}

const EMPTY_ROUTE = createRoute([]);

const UNMATCHED_ALLOWED = staticRoute({ isAllowed: true, reason: 'unmatched' });
const UNMATCHED_DENIED = staticRoute({ isAllowed: false, reason: 'unmatched' });

/** Several limiters as one: all or nothing, without reservations. */
function combineLocal(parts: readonly LocalAppliedLimit[]): CompositeLimiter | undefined {
  if (parts.length === 0) return undefined;
  const keyOf = (limit: LimitConfig) => (limit.per === 'limit' ? { key: SHARED_KEY } : {});
  return createComposite(parts.map(({ limiter, limit }) => ({ limiter, ...keyOf(limit) })));
}

/** The key that a limit counts a request under. */
export const limiterKeyOf = ({ limit }: Pick<AppliedLimit, 'limit'>, key: string): string =>
  limit.per === 'key' ? key : SHARED_KEY;
