/**
 * Which limits a key meets, and why.
 *
 * The answer depends on the configuration and the key alone, so it is worked out once and found again
 * by the key's hash: a direct-mapped table, where a newcomer simply takes the place.
 *
 *     key ──▶ deny lists ──▶ allow lists ──▶ the most specific limit, its override ──▶ all that say always
 */

import type { KeyHash } from '../../core/hash.ts';
import type { PendingSet } from '../../core/pending.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { type CompositeLimiter, createComposite } from '../../limiter/composite-limiter.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import type { KeyOverrideConfig, LimitConfig } from '../config/limits.ts';
import { MATCH_ALL, type Pattern } from '../keys/pattern.ts';
import { PatternIndex } from '../keys/pattern-index.ts';
import { isConcurrencyLimit, type LimiterRegistry, overrideName } from './limiter-registry.ts';

/** One limit that applies to a key. */
export interface AppliedLimit {
  readonly limit: LimitConfig;
  /** The limit's name, or its override's. */
  readonly name: string;
  /** The pattern that brought it here. */
  readonly pattern: Pattern;
  readonly limiter: SyncLimiter | RemoteLimiter;
  readonly pending: PendingSet;
}

/** One that this process decides. */
export type LocalAppliedLimit = AppliedLimit & { readonly limiter: SyncLimiter };

/** Why a key needs no count: a list says so, or nothing is for it. */
export interface StaticVerdict {
  readonly isAllowed: boolean;
  readonly reason: 'allow-list' | 'deny-list' | 'unmatched';
  /** The limit whose list it is; none: the list for all. */
  readonly limit?: string;
  readonly pattern?: Pattern;
}

/** What happens to a key. */
export interface Route {
  readonly staticVerdict?: StaticVerdict;
  readonly applied: readonly AppliedLimit[];
  /** A single limit that is answered by the key's hash alone. */
  readonly singleLimiter: SyncLimiter | undefined;
  /** All that decide here and take something when asked, as one. */
  readonly local: CompositeLimiter | undefined;
  /** The same with those that count calls in flight, for who holds a permit. */
  readonly localWithPermits: CompositeLimiter | undefined;
  /** Those that count calls in flight: who holds nothing can only look. */
  readonly concurrencyLimits: readonly LocalAppliedLimit[];
  /** Those that somebody else decides. */
  readonly remote: readonly AppliedLimit[];
  /** Those that only count. */
  readonly shadowLimits: readonly AppliedLimit[];
}

export interface RoutesConfig {
  readonly allow: readonly Pattern[];
  readonly deny: readonly Pattern[];
  readonly unmatched: 'allow' | 'deny';
  readonly limits: readonly LimitConfig[];
}

/** A power of two. */
const ROUTE_CACHE_SLOTS = 65_536;

/** Distinct routes kept apart; as many as there are ways to combine limits, in practice a handful. */
const MAX_ROUTES = 10_000;

/** The key under which all keys of a limit count together. */
const SHARED_KEY = '*';

export class RouteTable {
  readonly #config: RoutesConfig;
  readonly #registry: LimiterRegistry;
  readonly #globalLists: ListIndex;
  readonly #limitsByName: ReadonlyMap<string, IndexedLimit>;
  /** The patterns of all limits of which only the most specific one applies. */
  readonly #specific: PatternIndex<LimitMatch>;
  readonly #always: readonly IndexedLimit[];
  /** The one route there is, if the key makes no difference. */
  readonly #soleRoute: Route | undefined;
  readonly #cachedHashes: Int32Array;
  readonly #cachedRoutes: (Route | undefined)[];
  readonly #bySignature = new Map<string, Route>();
  /** Routes to a limit by its name where the key makes no difference: no more than there are limits. */
  readonly #keyIndependentRoutes = new Map<string, Route>();

  constructor(config: RoutesConfig, registry: LimiterRegistry) {
    this.#config = config;
    this.#registry = registry;
    this.#globalLists = indexLists(config);
    const limits = config.limits.map(indexLimit);
    this.#limitsByName = new Map(limits.map((own) => [own.limit.name, own]));
    this.#always = limits.filter(({ limit }) => limit.always);
    const alone = limits.filter(({ limit }) => !limit.always);
    this.#specific = new PatternIndex(
      alone.flatMap((own) => own.limit.match.map((pattern) => ({ indexed: own, pattern }))),
      ({ pattern }) => pattern,
    );
    this.#soleRoute = isKeyIndependent(config) ? this.#find('') : undefined;
    const size = this.#soleRoute ? 0 : ROUTE_CACHE_SLOTS;
    this.#cachedHashes = new Int32Array(size * 2);
    this.#cachedRoutes = new Array(size);
  }

  /** The route of a key that was found before, by its hash. */
  cached({ low, high }: KeyHash): Route | undefined {
    if (this.#soleRoute) return this.#soleRoute;
    const at = low & (ROUTE_CACHE_SLOTS - 1);
    const isSame = this.#cachedHashes[at * 2] === low && this.#cachedHashes[at * 2 + 1] === high;
    return isSame ? this.#cachedRoutes[at] : undefined;
  }

  /** The route of a key, found anew. */
  resolveUncached(key: string): Route {
    return this.#find(key);
  }

  /** The route of a key, found and remembered. */
  resolve({ low, high }: KeyHash, key: string): Route {
    const route = this.#find(key);
    if (this.#soleRoute) return route;
    const at = low & (ROUTE_CACHE_SLOTS - 1);
    this.#cachedHashes[at * 2] = low;
    this.#cachedHashes[at * 2 + 1] = high;
    this.#cachedRoutes[at] = route;
    return route;
  }

  /** The route of a key to one limit by name, whatever the limit is for; undefined if there is none. */
  resolveNamed(name: string, key: string): Route | undefined {
    return this.#keyIndependentRoutes.get(name) ?? this.#findNamed(name, key);
  }

  #findNamed(name: string, key: string): Route | undefined {
    const own = this.#limitsByName.get(name);
    if (!own) return undefined;
    const staticVerdict = listVerdict(this.#globalLists, key) ?? limitListVerdict(own, key);
    if (staticVerdict) return staticRoute(staticVerdict);
    const { limit } = own;
    const route = this.#intern([this.#applyMatch({ indexed: own, pattern: limit.match[0] }, key)]);
    if (!hasLists(this.#config) && !hasListsOrOverrides(limit))
      this.#keyIndependentRoutes.set(name, route);
    return route;
  }

  #find(key: string): Route {
    const everybody = listVerdict(this.#globalLists, key);
    if (everybody) return staticRoute(everybody);
    const matching = this.#matchesOf(key);
    const counting: LimitMatch[] = [];
    let excused: StaticVerdict | undefined;
    for (const matched of matching) {
      const staticVerdict = limitListVerdict(matched.indexed, key);
      if (staticVerdict && !staticVerdict.isAllowed) return staticRoute(staticVerdict);
      if (staticVerdict) excused ??= staticVerdict;
      else counting.push(matched);
    }
    if (counting.length > 0) {
      return this.#intern(counting.map((matched) => this.#applyMatch(matched, key)));
    }
    return staticRoute(
      excused ?? { isAllowed: this.#config.unmatched === 'allow', reason: 'unmatched' },
    );
  }

  /** The most specific limit and all that say always, in the order they were written. */
  #matchesOf(key: string): readonly LimitMatch[] {
    const first = this.#specific.best(key);
    const found = first ? [first] : [];
    for (const own of this.#always) {
      const by = own.match.best(key);
      if (by) found.push({ indexed: own, pattern: by });
    }
    return found.length > 1 ? found.sort((a, b) => a.indexed.order - b.indexed.order) : found;
  }

  #applyMatch({ indexed, pattern }: LimitMatch, key: string): AppliedLimit {
    const { limit } = indexed;
    const override = indexed.overrides.best(key)?.match;
    const name = override ? overrideName(limit.name, override.text) : limit.name;
    const entry = this.#registry.get(name);
    if (!entry) throw new Error(`limit ${name} is not in the registry`);
    const { limiter, pending } = entry;
    return { limit, name, pattern: override ?? pattern, limiter, pending };
  }

  /** Routes that meet the same limits are one. */
  #intern(applied: readonly AppliedLimit[]): Route {
    const name = applied.map((own) => `${own.name} ${own.pattern.text}`).join('\n');
    const known = this.#bySignature.get(name);
    if (known) return known;
    const route = createRoute(applied);
    if (this.#bySignature.size >= MAX_ROUTES) this.#bySignature.clear();
    this.#bySignature.set(name, route);
    return route;
  }
}

/** True if every key meets the same limits. */
const isKeyIndependent = (config: RoutesConfig): boolean =>
  !hasLists(config) &&
  config.limits.every(
    (limit) => limit.match.every((own) => own === MATCH_ALL) && !hasListsOrOverrides(limit),
  );

const hasLists = ({ allow, deny }: KeyLists): boolean => allow.length + deny.length > 0;

const hasListsOrOverrides = (limit: LimitConfig): boolean =>
  hasLists(limit) || limit.overrides.length > 0;

type KeyLists = Pick<RoutesConfig, 'allow' | 'deny'>;

/** Lists to look keys up in. */
interface ListIndex {
  readonly allow: PatternIndex<Pattern>;
  readonly deny: PatternIndex<Pattern>;
}

/** A limit whose patterns can be found among many. */
interface IndexedLimit extends ListIndex {
  readonly limit: LimitConfig;
  /** As it was written. */
  readonly order: number;
  readonly match: PatternIndex<Pattern>;
  readonly overrides: PatternIndex<KeyOverrideConfig>;
}

/** A limit that is for a key, and the pattern that says so. */
interface LimitMatch {
  readonly indexed: IndexedLimit;
  readonly pattern: Pattern;
}

const indexPatterns = (patterns: readonly Pattern[]): PatternIndex<Pattern> =>
  new PatternIndex(patterns, (own) => own);

const indexLists = ({ allow, deny }: KeyLists): ListIndex => ({
  allow: indexPatterns(allow),
  deny: indexPatterns(deny),
});

const indexLimit = (limit: LimitConfig, place: number): IndexedLimit => ({
  ...indexLists(limit),
  limit,
  order: place,
  match: indexPatterns(limit.match),
  overrides: new PatternIndex(limit.overrides, ({ match }) => match),
});

/** What lists say of a key. One that is on both is denied. */
function listVerdict({ allow, deny }: ListIndex, key: string): StaticVerdict | undefined {
  const denied = deny.best(key);
  if (denied) return { isAllowed: false, reason: 'deny-list', pattern: denied };
  const allowed = allow.best(key);
  return allowed && { isAllowed: true, reason: 'allow-list', pattern: allowed };
}

function limitListVerdict(own: IndexedLimit, key: string): StaticVerdict | undefined {
  const staticVerdict = listVerdict(own, key);
  return staticVerdict && { ...staticVerdict, limit: own.limit.name };
}

const EMPTY_ROUTE = {
  applied: [],
  singleLimiter: undefined,
  local: undefined,
  localWithPermits: undefined,
  concurrencyLimits: [],
  remote: [],
  shadowLimits: [],
};

const staticRoute = (staticVerdict: StaticVerdict): Route => ({ ...EMPTY_ROUTE, staticVerdict });

const isLocal = (own: AppliedLimit): own is LocalAppliedLimit => own.limiter instanceof SyncLimiter;

function createRoute(applied: readonly AppliedLimit[]): Route {
  const active = applied.filter(({ limit }) => !limit.shadow);
  const here = active.filter(isLocal);
  const counting = here.filter(({ limiter }) => !isConcurrencyLimit(limiter));
  const [first] = applied;
  const isQuick = applied.length === 1 && counting.length === 1 && first.limit.per === 'key';
  const quick = isQuick && counting[0].limiter.isCheckOnly ? counting[0].limiter : undefined;
  return {
    applied,
    singleLimiter: quick,
    local: combineLocal(counting),
    localWithPermits: combineLocal(here),
    concurrencyLimits: here.filter(({ limiter }) => isConcurrencyLimit(limiter)),
    remote: active.filter((own) => !isLocal(own)),
    shadowLimits: applied.filter(({ limit }) => limit.shadow),
  };
}

/** Several limiters as one, all or nothing; nothing is reserved for later. */
function combineLocal(parts: readonly LocalAppliedLimit[]): CompositeLimiter | undefined {
  if (parts.length === 0) return undefined;
  return createComposite(
    parts.map(({ limiter, limit }) => ({
      limiter,
      ...(limit.per === 'limit' && { key: SHARED_KEY }),
    })),
  );
}

/** The key that a limit counts a call under. */
export const limiterKeyOf = ({ limit }: AppliedLimit, key: string): string =>
  limit.per === 'key' ? key : SHARED_KEY;
