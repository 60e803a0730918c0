/**
 * The engine: one road from ask to decision.
 *
 *     const api = limiter({ limit: { bucket: { rate: '100/s', burst: 20 } } });
 *     if (api.ask(userId).verdict === 'allow') serve();
 */

import { type Clock, type Millis, systemClock, turnClock } from './clock.ts';
import { type Decision, OUTCOMES, type Outcome } from './decision.ts';
import { ConfigError } from './errors.ts';
import { Fields, isRecord, requireNumber } from './options.ts';
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
  readonly dueAt?: Millis;
  /** How long the work took. */
  readonly rttMs?: Millis;
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
  /** True if a permit that was due then is wasted by now (or at `at`): ask again. */
  isExpired(dueAt: Millis, at?: Millis): boolean;
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
  const limit = fields.raw('limit');
  const range = { min: 1, max: KEYS_MAX_MAX, whole: true };
  const keysMax = fields.number('keysMax', range, KEYS_MAX_DEFAULT);
  const given = fields.optional('clock', isClock, 'a clock: an object with now()');
  const random = fields.optional('random', isFunction, 'a function') ?? systemRandom;
  fields.done();

  const policy = policyOf(limit, random);
  const clock = given ?? (policy.exactTime ? systemClock : turnClock());
  const share = new LocalShare(policy, { clock, random, keysMax });
  return new Engine(share, clock, policy.expireMs);
}

const isFunction = (value: unknown): value is Random => typeof value === 'function';

/** Anything with now(): a clock of ours, or `Date` itself. */
const isClock = (value: unknown): value is Clock =>
  (isFunction(value) || isRecord(value)) && 'now' in value && isFunction(value.now);

class Engine implements Limiter {
  readonly #share: Share;
  readonly #clock: Clock;
  readonly #expireMs: Millis;

  constructor(share: Share, clock: Clock, expireMs: Millis) {
    this.#share = share;
    this.#clock = clock;
    this.#expireMs = expireMs;
  }

  ask(key: string, cost = 1): Decision {
    requireKey(key);
    if (typeof cost !== 'number') throw new ConfigError('cost', 'a number of at least 0', cost);
    return this.#share.ask(key, cost);
  }

  take(key: string, most: number): number {
    requireKey(key);
    if (most !== Infinity) requireNumber('most', most, { min: 0, whole: true });
    return this.#share.take(key, most);
  }

  give(key: string, unused: number): void {
    requireNumber('unused', unused, { min: 0, whole: true });
    this.settle(key, { outcome: 'ignored', cost: unused });
  }

  settle(key: string, result: Result = {}): void {
    requireKey(key);
    requireFields('result', result, RESULT_FIELDS);
    const { outcome = 'ok', cost = 1, dueAt = this.#clock.now(), used, rttMs } = result;
    if (!OUTCOMES.includes(outcome)) throw new ConfigError('outcome', OUTCOME_NAMES, outcome);
    requireNumber('cost', cost, { min: 0 });
    requireNumber('dueAt', dueAt, {});
    if (used !== undefined) requireNumber('used', used, { min: 0 });
    if (rttMs !== undefined) requireNumber('rttMs', rttMs, { min: 0 });
    this.#share.settle(key, { ...result, outcome, cost, dueAt });
  }

  isExpired(dueAt: Millis, at = this.#clock.now()): boolean {
    return at > dueAt + this.#expireMs;
  }

  hear(key: string, news: News): boolean {
    requireKey(key);
    requireNews(news);
    return this.#share.hear(key, news);
  }

  inspect(key: string): View {
    requireKey(key);
    return this.#share.inspect(key);
  }

  stats(): { keys: number; evicted: number; bytes: number } {
    const { keys, evicted, bytes } = this.#share;
    return { keys, evicted, bytes };
  }
}

const OUTCOME_NAMES = `one of ${OUTCOMES.join(', ')}`;

function requireKey(key: string): void {
  if (typeof key !== 'string') throw new ConfigError('key', 'a text', key);
}

const RESULT_FIELDS = ['outcome', 'cost', 'used', 'dueAt', 'rttMs'];
const NEWS_FIELDS = ['hits', 'poolSize', 'rank', 'resume', 'reachedAt'];

/** A misspelt field is a mistake, not a default. */
function requireFields(what: string, value: unknown, known: readonly string[]): void {
  if (!isRecord(value)) throw new ConfigError(what, 'an object', value);
  for (const name in value) {
    if (!known.includes(name)) throw new ConfigError(name, `one of ${known.join(', ')}`, name);
  }
}

function requireNews(news: News): void {
  requireFields('news', news, NEWS_FIELDS);
  if ('hits' in news) {
    requireNumber('hits', news.hits, { min: 0 });
  } else if ('poolSize' in news) {
    requireNumber('poolSize', news.poolSize, { min: 1, whole: true });
    if (news.rank === undefined) return;
    requireNumber('rank', news.rank, { min: 0, max: news.poolSize - 1, whole: true });
  } else {
    requireNumber('resume', news.resume, { above: 0 });
    requireNumber('reachedAt', news.reachedAt, {});
  }
}
