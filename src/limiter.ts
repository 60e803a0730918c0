/**
 * The engine: one road from ask to decision.
 *
 *     const api = limiter({ limit: { bucket: { rate: '100/s', burst: 20 } } });
 *     if (api.ask(userId).verdict === 'allow') serve();
 */

import { type Clock, systemClock, turnClock } from './clock.ts';
import type { Decision, Outcome } from './decision.ts';
import { ConfigError } from './errors.ts';
import { Fields } from './options.ts';
import { type Limit, policyOf } from './policy/limit.ts';
import type { News, View } from './policy/policy.ts';
import { type Random, systemRandom } from './random.ts';
import { LocalShare } from './share/local.ts';
import type { Share } from './share/share.ts';
import { KEYS_MAX_DEFAULT, KEYS_MAX_MAX } from './share/table.ts';

export interface LimiterOptions {
  /** The rule, spelled with one key: `{ bucket: { rate: '100/s' } }`. */
  readonly limit: Limit;
  /** The most keys to remember at once. Default 1,048,576. */
  readonly keysMax?: number;
  /** Where time comes from. Default: the system's, looked at as often as the rule needs. */
  readonly clock?: Clock;
  /** Where chance comes from. Default: the system's. */
  readonly random?: Random;
}

/** How a call went, for `settle`. Only what is known needs to be said. */
export interface Result {
  /** Default ok. */
  readonly outcome?: Outcome;
  /** What was asked for. Default 1. */
  readonly cost?: number;
  /** What was really used, if that was not the cost. */
  readonly used?: number;
  /** When the permit was good, on the limiter's clock. Default now. */
  readonly dueAt?: number;
  /** How long the work took. */
  readonly rttMs?: number;
}

export interface Limiter {
  /** May `cost` (default 1) happen for this key now? All or nothing. */
  ask(key: string, cost?: number): Decision;
  /** Takes up to `most` and says how many it got; Infinity takes all there is. */
  take(key: string, most: number): number;
  /** Gives back `unused` of what `take` granted. */
  give(key: string, unused: number): void;
  /** Says how a call went that had been allowed. */
  settle(key: string, result?: Result): void;
  /** Takes in what happened elsewhere; false if this limit has no use for it. */
  hear(key: string, news: News): boolean;
  /** How the key stands. Looking changes nothing. */
  inspect(key: string): View;
  /** Keys remembered, keys that had to make room, memory held. */
  stats(): { readonly keys: number; readonly evicted: number; readonly bytes: number };
}

/** Makes a limiter. @throws {ConfigError} if the limit makes no sense. */
export function limiter(options: LimiterOptions): Limiter {
  const fields = new Fields('', options, 'an object with a limit');
  const random = options.random ?? systemRandom;
  const policy = policyOf(fields.raw('limit'), random);
  const range = { min: 1, max: KEYS_MAX_MAX, whole: true };
  const keysMax = fields.number('keysMax', range, KEYS_MAX_DEFAULT);
  for (const name of ['clock', 'random']) fields.raw(name);
  fields.done();

  const clock = options.clock ?? (policy.exactTime ? systemClock : turnClock());
  return new Engine(new LocalShare(policy, { clock, random, keysMax }), clock);
}

class Engine implements Limiter {
  readonly #share: Share;
  readonly #clock: Clock;

  constructor(share: Share, clock: Clock) {
    this.#share = share;
    this.#clock = clock;
  }

  ask(key: string, cost = 1): Decision {
    return this.#share.ask(key, cost);
  }

  take(key: string, most: number): number {
    if (most !== Infinity) requireAmount('most', most);
    return this.#share.take(key, most);
  }

  give(key: string, unused: number): void {
    requireAmount('unused', unused);
    this.settle(key, { outcome: 'ignored', cost: unused });
  }

  settle(key: string, result: Result = {}): void {
    const { outcome = 'ok', cost = 1, dueAt = this.#clock.now() } = result;
    this.#share.settle(key, { ...result, outcome, cost, dueAt });
  }

  hear(key: string, news: News): boolean {
    return this.#share.hear(key, news);
  }

  inspect(key: string): View {
    return this.#share.inspect(key);
  }

  stats(): { keys: number; evicted: number; bytes: number } {
    const { keys, evicted, bytes } = this.#share;
    return { keys, evicted, bytes };
  }
}

function requireAmount(field: string, value: number): void {
  if (Number.isInteger(value) && value >= 0) return;
  throw new ConfigError(field, 'a whole number of at least 0', value);
}
