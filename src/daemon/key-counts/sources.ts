/**
 * Records of keys by the source of the decision: a limit, a list or a command. The first `MAX_SOURCES` have a record
 * each. Further ones share one, until one of the first was not used for 10 minutes.
 */

import type { Clock, Millis } from '../../core/clock.ts';

/** A limit; or a reason that is not an exhausted limit, of a limit or of the whole daemon. */
export interface SourceName {
  readonly limit?: string | undefined;
  /** Such as `deny-list`, `unmatched`, `unavailable`, `permits-full`. */
  readonly reason?: string | undefined;
  /** The command that carries its limit: `CL.THROTTLE`. */
  readonly command?: string | undefined;
  /** True if the limit is in shadow mode. */
  readonly shadow?: true | undefined;
}

/** Sources with records of their own. */
const MAX_SOURCES = 100;
const FORGOTTEN_AFTER_MS: Millis = 600_000;

/** Time between two searches for a source to forget. */
const SEARCH_INTERVAL_MS: Millis = 1000;

const FURTHER: SourceName = { reason: 'further-limits' };
const FURTHER_ID = 'further-limits ';

interface Keys {
  /** When a key was last recorded. */
  readonly lastAt: Millis;
}

interface Source<K> {
  readonly about: SourceName;
  readonly keys: K;
}

export class Sources<K extends Keys> {
  readonly #clock: Clock;
  readonly #create: () => K;
  readonly #sources = new Map<string, Source<K>>();
  #nextSearchAt: Millis = Number.NEGATIVE_INFINITY;
  /** The last source: floods meet one limit. */
  #lastId: string | undefined;
  #lastKeys: K;

  constructor(clock: Clock, create: () => K) {
    this.#clock = clock;
    this.#create = create;
    this.#lastKeys = create();
  }

  get all(): readonly Source<K>[] {
    return [...this.#sources.values()];
  }

  /** The record of a source. `about` undefined: `id` is the name of a limit. */
  keysOf(id: string, about?: SourceName): K {
    if (id === this.#lastId) return this.#lastKeys;
    const { about: owner, keys } = this.#sources.get(id) ?? this.#add(id, about ?? { limit: id });
    this.#lastId = owner === FURTHER ? undefined : id; // it gets a record of its own when there is room
    this.#lastKeys = keys;
    return keys;
  }

  #add(id: string, about: SourceName): Source<K> {
    if (this.#sources.size >= MAX_SOURCES && !this.#forgetOne())
      return this.#sources.get(FURTHER_ID) ?? this.#createSource(FURTHER_ID, FURTHER);
    return this.#createSource(id, about);
  }

  #createSource(id: string, about: SourceName): Source<K> {
    const source = { about, keys: this.#create() };
    this.#sources.set(id, source);
    return source;
  }

  /** Forgets a source without calls for long; false if there is none. */
  #forgetOne(): boolean {
    const now = this.#clock.now();
    if (now < this.#nextSearchAt) return false;
    this.#nextSearchAt = now + SEARCH_INTERVAL_MS;
    for (const [id, { keys }] of this.#sources) {
      if (id === FURTHER_ID || keys.lastAt > now - FORGOTTEN_AFTER_MS) continue;
      this.#nextSearchAt = now; // there may be more
      return this.#sources.delete(id);
    }
    return false;
  }
}
