/**
 * The local fallback: decides in this process while Redis is unavailable, and counts in Redis afterwards.
 *
 *     Redis available      its replies lower the count here: the fallback begins with what was left
 *     Redis unavailable    this process's part: the whole limit with every cost multiplied by the number of processes
 *     Redis is back        Redis's count is lowered to what is left here, for each key that was used
 *
 * Both directions take the lower count, so that several processes may do the same.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { type AttemptOutcome, type Decision, NEVER } from '../../core/decision.ts';
import { MAX_AMOUNT } from '../../core/options.ts';
import type { Policy } from '../../policies/policy.ts';
import { LocalBackend, type LocalOptions } from '../local/backend.ts';
import type { SendCommand } from './fair-queue.ts';

/** Keys counted in Redis after an outage; what further keys were granted is not counted there. */
const MAX_RECONCILED_KEYS = 10_000;

/** Decides while Redis is unavailable. */
export interface Fallback {
  check(key: string, cost: number): Decision;
  /** What Redis has decided. */
  observe(key: string, cost: number, decision: Decision): void;
  /** Lock-out: how attempts ended, so that those that Redis has decided do not count as failures here. */
  report?(key: string, report: AttemptOutcome | 'refusal', count: number): void;
  /** Redis is available again. */
  reconcile(): void;
  /** The limit has other numbers. */
  change?(policy: Policy): void;
}

export class LocalFallback implements Fallback {
  readonly #local: LocalBackend;
  readonly #clock: Clock;
  readonly #processes: number;
  readonly #send: SendCommand;
  /** What is left for a cost that was refused; undefined where a reply does not say what is left for all processes. */
  #leftAfterRefusal: ((cost: number, retryAfterMs: Millis) => number) | undefined;
  /** Keys of which the fallback granted something. */
  readonly #usedKeys = new Set<string>();

  constructor(policy: Policy, options: LocalOptions, processes: number, send: SendCommand) {
    this.#local = new LocalBackend(policy, options);
    this.#clock = options.clock;
    this.#processes = processes;
    this.#send = send;
    this.#leftAfterRefusal = leftAfterRefusalOf(policy);
  }

  change(policy: Policy): void {
    this.#local.prepareChange(policy)?.();
    this.#leftAfterRefusal = leftAfterRefusalOf(policy);
  }

  check(key: string, cost: number): Decision {
    const decision = this.#checkPart(key, cost, this.#clock.now());
    if (decision.verdict !== 'deny' && this.#usedKeys.size < MAX_RECONCILED_KEYS)
      this.#usedKeys.add(key);
    return decision;
  }

  /** A cost that is too large for a part is charged once. */
  #checkPart(key: string, cost: number, now: Millis): Decision {
    const scaled = this.#local.checkNow(key, cost * this.#processes, now);
    const isTooLarge = scaled.verdict === 'deny' && scaled.retryAfterMs === NEVER;
    return isTooLarge ? this.#local.checkNow(key, cost, now) : scaled;
  }

  /** The reply of a bucket, window or quota says what is left for all processes. Of other limits, the calls of this process are counted. */
  observe(key: string, cost: number, decision: Decision): void {
    const leftAfterRefusal = this.#leftAfterRefusal;
    if (leftAfterRefusal === undefined) {
      this.#local.checkNow(key, cost, this.#clock.now());
    } else if (decision.verdict === 'allow') {
      this.#local.update(key, { remaining: decision.remaining });
    } else if (decision.verdict === 'deny' && decision.retryAfterMs !== NEVER) {
      const left = leftAfterRefusal(cost, decision.retryAfterMs);
      this.#local.update(key, { remaining: Math.max(0, left) });
    }
  }

  report(key: string, report: AttemptOutcome | 'refusal', count: number): void {
    this.#local.update(key, { report, count });
  }

  reconcile(): void {
    for (const key of this.#usedKeys) {
      const left = Math.max(0, Math.floor(this.#local.keyState(key).remaining));
      this.#send(key, `t${MAX_AMOUNT} ${left}`).catch(() => this.#usedKeys.add(key));
    }
    this.#usedKeys.clear();
  }
}

function leftAfterRefusalOf({ buckets = [], specs = [] }: Policy) {
  const [bucket] = buckets;
  if (buckets.length === 1) return (cost: number, ms: Millis) => cost - ms * bucket.perMs;
  const isCounted = specs.length === 1 && ['window', 'quota'].includes(specs[0].kind);
  return isCounted ? (cost: number) => cost - 1 : undefined;
}
