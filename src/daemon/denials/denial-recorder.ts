/**
 * Records which keys every limit, list and command of the daemon denies, and why.
 *
 *     router ──▶ record ──▶ DeniedKeys of the limit ──▶ /top, /denials, /feed, the denial log
 *
 * Allowed calls do not come here. A denied one is counted by the key's hash. Memory is bounded whatever clients send:
 * by the number of sources, the keys of each, and the length of a key. Nothing is written to disk.
 */

import { type Clock, type Millis, systemClock } from '../../core/clock.ts';
import { type Decision, NEVER, WHEN_SETTLED } from '../../core/decision.ts';
import type { KeyHash } from '../../core/hash.ts';
import { type SourceName, Sources } from '../key-counts/sources.ts';
import type { Span } from '../key-counts/span-counts.ts';
import { toKeyText } from '../keys/binary-key.ts';
import { type Denial, DeniedKeys, type RecentDenial } from './denied-keys.ts';

/** The source of a denial. `shadow`: a limit that would have denied the call. */
export type DeniedBy = SourceName;

/** A denied call: its key, with the hash, and its cost. */
interface Refused extends KeyHash {
  readonly key: string;
  readonly cost: number;
}

/** A limiter in this process, which may know what a key has left. */
interface Inspectable {
  readonly name: string;
  inspect?(key: string): KeyLevel;
}

/** A limiter that another server decides: undefined while that is unavailable. */
interface RemoteInspectable {
  inspect(key: string): Promise<KeyLevel | undefined>;
}

interface KeyLevel {
  readonly remaining: number;
  /** Until a call of cost 1 fits. */
  readonly opensInMs?: Millis;
}

/** The denied keys of one source, most denied first. */
export interface TopDenied extends DeniedBy {
  /** Denials in the span, of all keys. */
  readonly denied: number;
  readonly keys: readonly (Estimate & { readonly key: string })[];
}

interface Estimate {
  readonly denied: number;
  /** The true number differs by at most this; left out if it is exact. */
  readonly error?: number;
}

/** Denials of a key by one rule within 10 s. */
export interface DenialView extends DeniedBy {
  readonly key: string;
  readonly firstAt: Millis;
  readonly lastAt: Millis;
  readonly denied: number;
  readonly rule?: string;
  readonly cost: number;
  readonly remaining?: number;
  readonly retryAfterMs: Millis;
  /** When the key opens, if a lock-out denied it. */
  readonly lockedUntil?: Millis;
}

/** A key whose calls are denied again and again. */
export interface ThrottledKey extends DeniedBy {
  readonly key: string;
  /** The first denial that no longer gap separates from now. */
  readonly since: Millis;
  /** Denials since then. */
  readonly denied: number;
}

/** A key without a denial for this time is no longer throttled. Entries cover 10 s. */
const THROTTLED_GAP_MS: Millis = 20_000;

export interface DenialQuery {
  readonly limit?: string | undefined;
  readonly hash?: KeyHash | undefined;
  /** Only denials at this time or later. */
  readonly since?: Millis;
  readonly max: number;
}

export class DenialRecorder {
  readonly #clock: Clock;
  readonly #sources: Sources<DeniedKeys>;

  constructor(clock: Clock = systemClock) {
    this.#clock = clock;
    this.#sources = new Sources(clock, () => new DeniedKeys());
  }

  /** Milliseconds since 1970, as all times here. */
  get now(): Millis {
    return this.#clock.now();
  }

  /** A denial of a key in bytes: decodes it only if it is shown. `about` undefined: by a limit. */
  recordBytes(
    limiter: Inspectable,
    { low, high }: KeyHash,
    bytes: Buffer,
    from: number,
    to: number,
    decision: Decision,
    about?: DeniedBy,
    cost = 1,
  ): void {
    const keys = this.#sources.keysOf(limiter.name, about);
    const now = this.#clock.now();
    const wanted = keys.count(low, high, now, ruleOf(decision));
    if (wanted === 'nothing') return;
    const key = bytes.toString('latin1', from, to);
    if (wanted === 'name') keys.setName(key);
    else
      keys.setDetails(
        detailsOf({ key, cost, low, high }, decision, now, limiter.inspect?.(key).remaining),
      );
  }

  /** Records a denial by a local limit that counts by this key. */
  recordLocal(limiter: Inspectable, refused: Refused, decision: Decision): void {
    this.record(limiter.name, undefined, refused, decision, limiter, refused.key);
  }

  /**
   * Records any other denial. `about` undefined: `id` is the name of a limit. `limiter` knows what `limiterKey` has
   * left; a remote one is read once for each entry, and entries begin at a bounded rate.
   */
  record(
    id: string,
    about: DeniedBy | undefined,
    refused: Refused,
    decision: Decision,
    limiter?: Inspectable | RemoteInspectable,
    limiterKey = '',
  ): void {
    const keys = this.#sources.keysOf(id, about);
    const now = this.#clock.now();
    const wanted = keys.count(refused.low, refused.high, now, ruleOf(decision));
    if (wanted === 'name') keys.setName(refused.key);
    if (wanted !== 'details') return;
    const level = limiter?.inspect?.(limiterKey);
    if (!(level instanceof Promise))
      return void keys.setDetails(detailsOf(refused, decision, now, level?.remaining));
    const denial = keys.setDetails(detailsOf(refused, decision, now, undefined));
    void level.then(
      (known) => known && complete(denial, known),
      () => {}, // it stays unknown
    );
  }

  /** The sources with most denials in the span, and their most denied keys. */
  top(span: Span, maxSources: number, maxKeys: number): TopDenied[] {
    const now = this.#clock.now();
    return this.#sources.all
      .map(({ about, keys }) => ({ about, keys, denied: keys.counts.total(span, now) }))
      .filter(({ denied }) => denied > 0)
      .sort((a, b) => b.denied - a.denied)
      .slice(0, maxSources)
      .map(({ about, keys, denied }) => ({
        ...about,
        denied,
        keys: keys.counts.top(span, now, maxKeys).map(({ value, count, error }) => ({
          key: toKeyText(value.key),
          denied: count,
          ...(error > 0 && { error }),
        })),
      }));
  }

  /** How often each source denied a key in the last one to two hours, most first. */
  countsOf(hash: KeyHash): (DeniedBy & Estimate)[] {
    const now = this.#clock.now();
    const found = this.#sources.all.flatMap(({ about, keys }) => {
      const counted = keys.counts.countOf(hash, 'hour', now);
      if (!counted) return [];
      const { count: denied, error } = counted;
      return [{ ...about, denied, ...(error > 0 && { error }) }];
    });
    return found.sort((a, b) => b.denied - a.denied);
  }

  /** The keys that are throttled now, those that have been for longest first. */
  longest(max: number): ThrottledKey[] {
    const now = this.#clock.now();
    return this.#sources.all
      .filter(({ keys }) => keys.lastAt >= now - THROTTLED_GAP_MS)
      .flatMap(({ about, keys }) => throttledKeysOf(about, keys, now))
      .sort((a, b) => a.since - b.since || b.denied - a.denied)
      .slice(0, max);
  }

  /** Recent denials, the latest first. */
  recent({ limit, hash, since = 0, max }: DenialQuery): DenialView[] {
    const found: DenialView[] = [];
    for (const { about, keys } of this.#sources.all) {
      if (limit !== undefined && !isOfLimit(about, limit)) continue;
      if (keys.lastAt < since) continue;
      for (const denial of keys.recent()) {
        if (denial.lastAt < since) continue;
        if (hash && !isSameHash(hash, denial.first)) continue;
        found.push(viewOf(about, denial));
      }
    }
    return found.sort((a, b) => b.lastAt - a.lastAt).slice(0, max);
  }
}

/** Goes back from now, entry by entry, until the first gap of each key. */
function throttledKeysOf(about: DeniedBy, keys: DeniedKeys, now: Millis): ThrottledKey[] {
  const found = new Map<string, { since: Millis; denied: number }>();
  const ended = new Set<string>();
  for (const { key, first, lastAt, denied } of keys.recent()) {
    if (ended.has(key)) continue;
    const known = found.get(key) ?? { since: now, denied: 0 };
    if (lastAt < known.since - THROTTLED_GAP_MS) ended.add(key);
    else found.set(key, { since: first.at, denied: known.denied + denied });
  }
  return [...found].map(([key, { since, denied }]) => ({
    key: toKeyText(key),
    ...about,
    since: Math.round(since),
    denied,
  }));
}

const isSameHash = (a: KeyHash, b: KeyHash): boolean => a.low === b.low && a.high === b.high;

/** The rule of a denial by a lock-out; in `all` it may be numbered. */
const LOCKOUT = 'lockout';

/** The rule that refused, of a limit with several. */
function ruleOf(decision: Decision): string | undefined {
  if (decision.verdict !== 'deny') return undefined;
  return decision.rule ?? (decision.reason === 'locked' ? LOCKOUT : undefined);
}

function detailsOf(
  { key, cost, low, high }: Refused,
  decision: Decision,
  at: Millis,
  remaining: number | undefined,
): Denial {
  const retryAfterMs = decision.verdict === 'deny' ? decision.retryAfterMs : NEVER;
  return { key, low, high, at, cost, rule: ruleOf(decision), remaining, retryAfterMs };
}

/** Adds what a remote limiter has reported. An empty batch did not say when its limit opens. */
function complete(denial: Denial, { remaining, opensInMs = 0 }: KeyLevel): void {
  denial.remaining = remaining;
  if (denial.retryAfterMs === WHEN_SETTLED) denial.retryAfterMs = opensInMs;
}

const viewOf = (about: DeniedBy, { first, lastAt, denied }: RecentDenial): DenialView => ({
  key: toKeyText(first.key),
  ...about,
  ...(first.rule !== undefined && { rule: first.rule }),
  denied,
  firstAt: Math.round(first.at),
  lastAt: Math.round(lastAt),
  cost: first.cost,
  ...(first.remaining !== undefined && { remaining: first.remaining }),
  retryAfterMs: first.retryAfterMs,
  ...(first.rule?.startsWith(LOCKOUT) && {
    lockedUntil: Math.round(first.at + first.retryAfterMs),
  }),
});

/** True for the limit itself, and for one of its overrides. */
const isOfLimit = ({ limit = '' }: DeniedBy, name: string): boolean =>
  limit === name || limit.startsWith(`${name}[`);
