/**
 * Which limits a key meets, and why.
 *
 * The answer depends on the configuration and the key alone, so it is worked out once and found again
 * by the key's hash: a direct-mapped table, where a newcomer simply takes the place.
 *
 *     key ──▶ deny lists ──▶ allow lists ──▶ the most specific limit, its override ──▶ all that say always
 */

import type { KeyHash } from '../../core/hash.ts';
import type { Underway } from '../../core/pending.ts';
import type { RemoteLimiter } from '../../limiter/async-limiter.ts';
import { type AllOf, allOf } from '../../limiter/composite-limiter.ts';
import { Engine } from '../../limiter/sync-limiter.ts';
import type { LimitConfig, OverrideConfig } from '../config/limits.ts';
import { EVERYTHING, type Pattern } from '../keys/pattern.ts';
import { PatternIndex } from '../keys/pattern-index.ts';
import { countsFlights, overrideName, type Shelf } from './limiter-registry.ts';

/** One limit that applies to a key. */
export interface Applied {
  readonly limit: LimitConfig;
  /** The limit's name, or its override's. */
  readonly name: string;
  /** The pattern that brought it here. */
  readonly by: Pattern;
  readonly limiter: Engine | RemoteLimiter;
  readonly underway: Underway;
}

/** One that this process decides. */
export type AppliedHere = Applied & { readonly limiter: Engine };

/** Why a key needs no count: a list says so, or nothing is for it. */
export interface Settled {
  readonly isAllowed: boolean;
  readonly reason: 'allow-list' | 'deny-list' | 'unmatched';
  /** The limit whose list it is; none: the list for all. */
  readonly limit?: string;
  readonly by?: Pattern;
}

/** What happens to a key. */
export interface Route {
  readonly settled?: Settled;
  readonly applied: readonly Applied[];
  /** A single limit that is answered by the key's hash alone. */
  readonly quick: Engine | undefined;
  /** All that decide here and take something when asked, as one. */
  readonly here: AllOf | undefined;
  /** The same with those that count calls in flight, for who holds a permit. */
  readonly hereHolding: AllOf | undefined;
  /** Those that count calls in flight: who holds nothing can only look. */
  readonly looked: readonly AppliedHere[];
  /** Those that somebody else decides. */
  readonly there: readonly Applied[];
  /** Those that only count. */
  readonly shadows: readonly Applied[];
}

export interface RoutesConfig {
  readonly allow: readonly Pattern[];
  readonly deny: readonly Pattern[];
  readonly unmatched: 'allow' | 'deny';
  readonly limits: readonly LimitConfig[];
}

/** A power of two. */
const REMEMBERED = 65_536;

/** Distinct routes kept apart; as many as there are ways to combine limits, in practice a handful. */
const ROUTES_MAX = 10_000;

/** The key under which all keys of a limit count together. */
const TOGETHER = '*';

export class Routes {
  readonly #config: RoutesConfig;
  readonly #shelf: Shelf;
  readonly #lists: Listing;
  readonly #limits: ReadonlyMap<string, Indexed>;
  /** The patterns of all limits of which only the most specific one applies. */
  readonly #specific: PatternIndex<Matched>;
  readonly #always: readonly Indexed[];
  /** The one route there is, if the key makes no difference. */
  readonly #only: Route | undefined;
  readonly #hashes: Int32Array;
  readonly #found: (Route | undefined)[];
  readonly #byName = new Map<string, Route>();
  /** Routes to a limit by its name where the key makes no difference: no more than there are limits. */
  readonly #sameForAll = new Map<string, Route>();

  constructor(config: RoutesConfig, shelf: Shelf) {
    this.#config = config;
    this.#shelf = shelf;
    this.#lists = listingOf(config);
    const limits = config.limits.map(indexed);
    this.#limits = new Map(limits.map((own) => [own.limit.name, own]));
    this.#always = limits.filter(({ limit }) => limit.always);
    const alone = limits.filter(({ limit }) => !limit.always);
    this.#specific = new PatternIndex(
      alone.flatMap((own) => own.limit.match.map((by) => ({ own, by }))),
      ({ by }) => by,
    );
    this.#only = isForAll(config) ? this.#find('') : undefined;
    const size = this.#only ? 0 : REMEMBERED;
    this.#hashes = new Int32Array(size * 2);
    this.#found = new Array(size);
  }

  /** The route of a key that was found before, by its hash. */
  recall({ low, high }: KeyHash): Route | undefined {
    if (this.#only) return this.#only;
    const at = low & (REMEMBERED - 1);
    const isSame = this.#hashes[at * 2] === low && this.#hashes[at * 2 + 1] === high;
    return isSame ? this.#found[at] : undefined;
  }

  /** The route of a key, found anew. */
  routeOf(tag: string): Route {
    return this.#find(tag);
  }

  /** The route of a key, found and remembered. */
  find({ low, high }: KeyHash, tag: string): Route {
    const route = this.#find(tag);
    if (this.#only) return route;
    const at = low & (REMEMBERED - 1);
    this.#hashes[at * 2] = low;
    this.#hashes[at * 2 + 1] = high;
    this.#found[at] = route;
    return route;
  }

  /** The route of a key to one limit by name, whatever the limit is for; undefined if there is none. */
  named(name: string, tag: string): Route | undefined {
    return this.#sameForAll.get(name) ?? this.#named(name, tag);
  }

  #named(name: string, tag: string): Route | undefined {
    const own = this.#limits.get(name);
    if (!own) return undefined;
    const settled = listed(this.#lists, tag) ?? listedBy(own, tag);
    if (settled) return nothing(settled);
    const { limit } = own;
    const route = this.#route([this.#applied({ own, by: limit.match[0] }, tag)]);
    if (!hasLists(this.#config) && !hasExceptions(limit)) this.#sameForAll.set(name, route);
    return route;
  }

  #find(tag: string): Route {
    const everybody = listed(this.#lists, tag);
    if (everybody) return nothing(everybody);
    const matching = this.#matching(tag);
    const counting: Matched[] = [];
    let excused: Settled | undefined;
    for (const matched of matching) {
      const settled = listedBy(matched.own, tag);
      if (settled && !settled.isAllowed) return nothing(settled);
      if (settled) excused ??= settled;
      else counting.push(matched);
    }
    if (counting.length > 0) {
      return this.#route(counting.map((matched) => this.#applied(matched, tag)));
    }
    return nothing(
      excused ?? { isAllowed: this.#config.unmatched === 'allow', reason: 'unmatched' },
    );
  }

  /** The most specific limit and all that say always, in the order they were written. */
  #matching(tag: string): readonly Matched[] {
    const first = this.#specific.best(tag);
    const found = first ? [first] : [];
    for (const own of this.#always) {
      const by = own.match.best(tag);
      if (by) found.push({ own, by });
    }
    return found.length > 1 ? found.sort((a, b) => a.own.place - b.own.place) : found;
  }

  #applied({ own, by }: Matched, tag: string): Applied {
    const { limit } = own;
    const override = own.overrides.best(tag)?.match;
    const name = override ? overrideName(limit.name, override.text) : limit.name;
    const shelved = this.#shelf.get(name);
    if (!shelved) throw new Error(`limit ${name} is not on the shelf`);
    const { engine: limiter, underway } = shelved;
    return { limit, name, by: override ?? by, limiter, underway };
  }

  /** Routes that meet the same limits are one. */
  #route(applied: readonly Applied[]): Route {
    const name = applied.map((own) => `${own.name} ${own.by.text}`).join('\n');
    const known = this.#byName.get(name);
    if (known) return known;
    const route = routeOf(applied);
    if (this.#byName.size >= ROUTES_MAX) this.#byName.clear();
    this.#byName.set(name, route);
    return route;
  }
}

/** True if every key meets the same limits. */
const isForAll = (config: RoutesConfig): boolean =>
  !hasLists(config) &&
  config.limits.every(
    (limit) => limit.match.every((own) => own === EVERYTHING) && !hasExceptions(limit),
  );

const hasLists = ({ allow, deny }: Lists): boolean => allow.length + deny.length > 0;

const hasExceptions = (limit: LimitConfig): boolean =>
  hasLists(limit) || limit.overrides.length > 0;

type Lists = Pick<RoutesConfig, 'allow' | 'deny'>;

/** Lists to look keys up in. */
interface Listing {
  readonly allow: PatternIndex<Pattern>;
  readonly deny: PatternIndex<Pattern>;
}

/** A limit whose patterns can be found among many. */
interface Indexed extends Listing {
  readonly limit: LimitConfig;
  /** As it was written. */
  readonly place: number;
  readonly match: PatternIndex<Pattern>;
  readonly overrides: PatternIndex<OverrideConfig>;
}

/** A limit that is for a key, and the pattern that says so. */
interface Matched {
  readonly own: Indexed;
  readonly by: Pattern;
}

const indexOf = (patterns: readonly Pattern[]): PatternIndex<Pattern> =>
  new PatternIndex(patterns, (own) => own);

const listingOf = ({ allow, deny }: Lists): Listing => ({
  allow: indexOf(allow),
  deny: indexOf(deny),
});

const indexed = (limit: LimitConfig, place: number): Indexed => ({
  ...listingOf(limit),
  limit,
  place,
  match: indexOf(limit.match),
  overrides: new PatternIndex(limit.overrides, ({ match }) => match),
});

/** What lists say of a key. One that is on both is denied. */
function listed({ allow, deny }: Listing, tag: string): Settled | undefined {
  const denied = deny.best(tag);
  if (denied) return { isAllowed: false, reason: 'deny-list', by: denied };
  const allowed = allow.best(tag);
  return allowed && { isAllowed: true, reason: 'allow-list', by: allowed };
}

function listedBy(own: Indexed, tag: string): Settled | undefined {
  const settled = listed(own, tag);
  return settled && { ...settled, limit: own.limit.name };
}

const NONE = {
  applied: [],
  quick: undefined,
  here: undefined,
  hereHolding: undefined,
  looked: [],
  there: [],
  shadows: [],
};

const nothing = (settled: Settled): Route => ({ ...NONE, settled });

const isHere = (own: Applied): own is AppliedHere => own.limiter instanceof Engine;

function routeOf(applied: readonly Applied[]): Route {
  const active = applied.filter(({ limit }) => !limit.shadow);
  const here = active.filter(isHere);
  const counting = here.filter(({ limiter }) => !countsFlights(limiter));
  const [first] = applied;
  const isQuick = applied.length === 1 && counting.length === 1 && first.limit.per === 'key';
  const quick = isQuick && counting[0].limiter.isSimple ? counting[0].limiter : undefined;
  return {
    applied,
    quick,
    here: together(counting),
    hereHolding: together(here),
    looked: here.filter(({ limiter }) => countsFlights(limiter)),
    there: active.filter((own) => !isHere(own)),
    shadows: applied.filter(({ limit }) => limit.shadow),
  };
}

/** Several limiters as one, all or nothing; nothing is reserved for later. */
function together(parts: readonly AppliedHere[]): AllOf | undefined {
  if (parts.length === 0) return undefined;
  return allOf(
    parts.map(({ limiter, limit }) => ({
      limiter,
      ...(limit.per === 'limit' && { key: TOGETHER }),
    })),
  );
}

/** The key that a limit counts a call under. */
export const keyFor = ({ limit }: Applied, tag: string): string =>
  limit.per === 'key' ? tag : TOGETHER;
