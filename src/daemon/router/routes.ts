/**
 *     key ──▶ bans, deny lists ──▶ allow lists ──▶ most specific limit, or the one named ──▶ all limits with `always`
 *                                                    └─ its override                       └─ their overrides
 *
 * The route depends only on the configuration and the key. It is cached by the key's hash in a direct-mapped table: a
 * new key overwrites its slot. A key with the hash of an allow-listed one must be limited nevertheless. So the key is
 * compared too, unless a single limit counts by that hash anyway.
 */

import type { Hasher, KeyHash } from '../../core/hash.ts';
import { runAtOnce } from '../../core/steps.ts';
import type { SyncLimiter } from '../../limiter/sync-limiter.ts';
import type { LimitConfig } from '../config/limits.ts';
import type { OverrideMatch } from '../config/overrides.ts';
import {
  ALL_IPV6_BITS,
  bytesEndLikeIpv6,
  canonicalKeyOf,
  DEFAULT_IPV6_BITS,
  endsLikeIpv6,
  matchedKeyOf,
} from '../keys/canonical-key.ts';
import type { Pattern } from '../keys/pattern.ts';
import type { PatternIndex } from '../keys/pattern-index.ts';
import { type LimiterRegistry, overrideName } from './limiter-registry.ts';
import {
  type AppliedLimit,
  createRoute,
  type Route,
  type StaticVerdict,
  staticRoute,
  UNMATCHED_ALLOWED,
  UNMATCHED_DENIED,
} from './route.ts';
import {
  createCache,
  hasLists,
  hasListsOrOverrides,
  type IndexedLimit,
  indexRoutes,
  isKeyIndependent,
  type KeyLists,
  type LimitPattern,
  matchesAlike,
  ROUTE_CACHE_SLOTS,
  type RouteIndex,
  type RoutesConfig,
} from './route-index.ts';
import { deniesWhenShed } from './shed.ts';

/** The limiter of an override that was set at run time. */
export interface AppliedOverride {
  readonly name: string;
  readonly rule: unknown;
}

/** Controls that operators set at run time; they come before the configuration. */
export interface RouteControls {
  readonly isEmpty: boolean;
  /** `limits` are those that apply to the key: a ban of a peer acts only in limits that peers share. */
  banOf(key: string, limits: () => readonly LimitConfig[]): StaticVerdict | undefined;
  /** `plan` is the one that the request names. */
  overrideOf(limit: LimitConfig, key: string, plan?: string): AppliedOverride | undefined;
}

const NO_CONTROLS: RouteControls = {
  isEmpty: true,
  banOf: () => undefined,
  overrideOf: () => undefined,
};

/** The route of a longer key is not cached if the key has to be compared. */
const MAX_CACHED_KEY_BYTES = 128;

/** Distinct routes kept: one per combination of limiters, in practice a few, and as many of IPv6 networks. */
const MAX_ROUTES = 10_000;

/** A name with a plan, as in a request: `limit[plan]`. */
const WITH_PLAN = /^([^[]*)\[([^\]]*)\]$/;

/** In place of a limit's name before a plan: the most specific limit. */
const ANY_LIMIT = '*';

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
    { low, high, hasColons }: Hasher,
    key: Uint8Array,
    from: number,
    to: number,
  ): SyncLimiter | undefined {
    if (this.#soleRoute)
      return this.#countsNetworks && hasColons && bytesEndLikeIpv6(key, from, to)
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
    if (route.canonicalKey === undefined && this.#isKeyIndependent(named))
      this.#keyIndependentRoutes.set(name, route);
    return route;
  }

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
    const limits = () => this.#limitsOf(key, named).map(({ limit }) => limit);
    const global = this.#controls.banOf(key, limits) ?? listVerdict(this.#config, key);
    if (global) return this.#counted(staticRoute(global), sent);
    const counting: IndexedLimit[] = [];
    let exempt: StaticVerdict | undefined;
    for (const indexed of this.#limitsOf(key, named)) {
      const staticVerdict = limitListVerdict(indexed, key);
      if (staticVerdict && !staticVerdict.isAllowed)
        return this.#counted(staticRoute(staticVerdict), sent);
      if (staticVerdict) exempt ??= staticVerdict;
      else counting.push(indexed);
    }
    // A limit with `always` is a ceiling for keys that another limit admits: it admits no key by itself, named or not.
    const isMatched = specific !== undefined || namedLimit?.limit.always === false;
    if (!isMatched && this.#config.unmatched === 'deny')
      return this.#counted(UNMATCHED_DENIED, sent);
    if (counting.length > 0)
      return this.#counted(
        this.#intern(counting.map((limit) => this.#apply(limit, key, plan))),
        sent,
      );
    return this.#counted(exempt ? staticRoute(exempt) : UNMATCHED_ALLOWED, sent);
  }

  /** The route with the key that it counts under, or that records of a verdict have. */
  #counted(route: Route, sent: string): Route {
    const key = this.canonicalKey(sent);
    if (key === sent) return route;
    return route.staticVerdict ? { ...route, canonicalKey: key } : this.#internNetwork(route, key);
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
    const runtime = this.#controls.overrideOf(limit, key, plan);
    const name = runtime?.name ?? this.#limiterName(indexed, key, plan);
    const entry = this.#registry.get(name);
    if (!entry) throw new Error(`limit ${name} is not in the registry`);
    const { limiter, pending } = entry;
    const applied = { limit, name, limiter, pending };
    return runtime ? { ...applied, runtimeRule: runtime.rule } : applied;
  }

  /** The key that limits count a key under: the network of an IPv6 address. */
  canonicalKey(key: string): string {
    return canonicalKeyOf(key, this.#ipv6Bits);
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
  #internNetwork(route: Route, canonicalKey: string): Route {
    const known = this.#byNetwork.get(canonicalKey);
    if (known?.applied === route.applied) return known;
    const counted = { ...route, singleLimiter: undefined, canonicalKey };
    if (this.#byNetwork.size >= MAX_ROUTES) this.#byNetwork.clear();
    this.#byNetwork.set(canonicalKey, counted);
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
