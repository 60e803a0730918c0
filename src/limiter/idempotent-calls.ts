/**
 * Remembers allowed calls by an id of the caller: a repeated call is charged once and gets the same result.
 *
 * A caller that lost the reply does not know whether its call was charged, so it repeats the call with the same id. A
 * refusal charges nothing and is not remembered: its repeat is decided anew.
 *
 * Ids are stored as keyed hashes with their results, oldest first. Beyond the bound, the oldest is forgotten.
 */

import type { Clock, Millis } from '../core/clock.ts';
import { ConfigError } from '../core/errors.ts';
import { createHasher, type Hasher, randomHashSeed } from '../core/hash.ts';
import type { Random } from '../core/random.ts';
import { Permit } from './permit.ts';

/** How long an id is remembered by default. */
export const DEFAULT_ID_FOR_MS: Millis = 60_000;

/** The most ids that one limiter remembers. */
const MAX_REMEMBERED_IDS = 100_000;

const MAX_ID_CHARS = 256;

interface IdempotentCall {
  readonly result: unknown;
  /** The result that the promise resolved to; undefined until then. */
  value?: unknown;
  readonly until: Millis;
}

/** A call that waits for one or more callers. */
interface WaitingCall {
  readonly controller: AbortController;
  callers: number;
}

/** A decision, a permit or a refusal. */
export interface Decided {
  readonly verdict: string;
}

/** Whether a repeat may have the result: it was charged, and the charge was not returned. */
const isAllowed = (result: Decided): boolean =>
  result.verdict !== 'deny' && !(result instanceof Permit && result.isReturned);

/** `isAllowed` for concurrency limits: a settled permit cannot be returned again. */
export const isHeld = (result: Decided): boolean =>
  isAllowed(result) && !(result instanceof Permit && result.isSettled);

export class IdempotentCalls<Result extends object = Decided> {
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #isCharged: (result: Result) => boolean;
  readonly #periodMs: Millis;
  readonly #calls = new Map<number, IdempotentCall>();
  readonly #waiting = new WeakMap<object, WaitingCall>();
  /** Created with the first id, so that a seeded random generator is not used before. */
  #hasher: Hasher | undefined;

  constructor(
    clock: Clock,
    random: Random,
    periodMs: Millis = DEFAULT_ID_FOR_MS,
    isCharged: (result: Result) => boolean = isAllowed as never,
  ) {
    this.#clock = clock;
    this.#random = random;
    this.#isCharged = isCharged;
    this.#periodMs = periodMs;
  }

  /** The result of the call with this id; `decide` runs if there is none. Concurrent calls share one promise. */
  idempotent<T extends Result | Promise<Result>>(key: string, id: string, decide: () => T): T {
    const hash = this.#hash(key, id);
    const known = this.#calls.get(hash);
    const isKnown = known !== undefined && this.#clock.now() < known.until;
    if (isKnown && (known.value === undefined || this.#isCharged(known.value as Result)))
      return known.result as T;
    const result = decide();
    if (result instanceof Promise) {
      const call = this.#add(hash, result);
      const forget = (): void => {
        if (this.#calls.get(hash) === call) this.#calls.delete(hash);
      };
      result.then((late) => {
        call.value = late;
        if (!this.#isCharged(late)) forget();
      }, forget);
    } else if (this.#isCharged(result as Result)) this.#add(hash, result).value = result;
    return result;
  }

  /**
   * `idempotent` for a call that waits: repeats join it. A caller that aborts leaves alone, and the call is aborted when its
   * last caller leaves.
   */
  idempotentWait<T extends Result>(
    key: string,
    id: string,
    signal: AbortSignal | undefined,
    wait: (signal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    if (signal?.aborted) return Promise.reject(signal.reason);
    const result = this.idempotent(key, id, () => {
      const controller = new AbortController();
      const waiting = wait(controller.signal);
      this.#waiting.set(waiting, { controller, callers: 0 });
      return waiting;
    });
    const call = this.#waiting.get(result);
    return call ? join(result, call, signal) : result;
  }

  #add(hash: number, result: unknown): IdempotentCall {
    const now = this.#clock.now();
    this.#calls.delete(hash); // re-inserted as the last entry, the newest
    for (const [oldest, { until }] of this.#calls) {
      if (until > now && this.#calls.size < MAX_REMEMBERED_IDS) break;
      this.#calls.delete(oldest);
    }
    const call: IdempotentCall = { result, until: now + this.#periodMs };
    this.#calls.set(hash, call);
    return call;
  }

  /** 53 bits of a keyed hash. The length separates the key from the id. */
  #hash(key: string, id: string): number {
    this.#hasher ??= createHasher(randomHashSeed(this.#random));
    this.#hasher.hash(`${key.length} ${key}${id}`);
    return (this.#hasher.high & 0x1fffff) * 2 ** 32 + (this.#hasher.low >>> 0);
  }
}

function join<T>(
  result: Promise<T>,
  call: WaitingCall,
  signal: AbortSignal | undefined,
): Promise<T> {
  call.callers++;
  if (!signal) return result;
  return new Promise((resolve, reject) => {
    const onAbort = (): void => {
      if (--call.callers === 0) call.controller.abort(signal.reason);
      reject(signal.reason);
    };
    const onEnd = (): void => signal.removeEventListener('abort', onAbort);
    signal.addEventListener('abort', onAbort, { once: true });
    result.then(resolve, reject).then(onEnd);
  });
}

/** @throws {ConfigError} for an id that cannot be remembered. */
export function requireId(id: unknown): asserts id is string {
  if (!isId(id)) throw new ConfigError('id', EXPECTED_ID, id);
}

export const isId = (id: unknown): id is string =>
  typeof id === 'string' && id.length > 0 && id.length <= MAX_ID_CHARS;

export const EXPECTED_ID = `a string of 1 to ${MAX_ID_CHARS} characters`;
