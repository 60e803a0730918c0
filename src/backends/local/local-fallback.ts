/**
 * The local fallback: decides in this process while the server is unavailable, and counts in the server afterwards.
 *
 *     server available      its replies lower the local count: the fallback starts with the remaining capacity
 *     server unavailable    this process's part: the whole limit with every cost multiplied by the number of processes
 *     server is back        its count is lowered to the remaining local capacity, for each key that was used
 *
 * Both directions take the lower count, so that several processes may do the same.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { type AttemptOutcome, type Decision, NEVER } from '../../core/decision.ts';
import type { LockoutRuling, Policy } from '../../policies/policy.ts';
import { type NamedRule, rulesOf } from '../../policies/rules.ts';
import { LocalBackend, type LocalOptions } from './backend.ts';

/** The most keys whose grants are counted in the server after an outage. */
const MAX_RECONCILED_KEYS = 10_000;

/** Decides while the server is unavailable. */
export interface Fallback {
  /** `isWaiting`: a refused call continues to wait, so no lock-out counts the refusal. */
  check(key: string, cost: number, isWaiting?: boolean): Decision;
  /** Observes a decision of the server. `isWaiting` as in `check`. */
  observe(key: string, cost: number, decision: Decision, isWaiting?: boolean): void;
  /** Lock-out: reports how attempts ended, so that attempts that the server decided do not count as failures here. */
  report?(key: string, report: AttemptOutcome | 'refusal', count: number): void;
  /** The server is available again. */
  reconcile(): void;
  /** Changes the numbers of the limit. */
  change?(policy: Policy): void;
  /** The key was forgotten in the server. */
  forget?(key: string): void;
  /** Undoes a cost that `check` has just granted. */
  undo(key: string, cost: number): void;
}

/** Lowers the key's remaining capacity in the server to `left`; rejects while the server is unavailable. */
export type LowerRemaining = (key: string, left: number) => Promise<unknown>;

export class LocalFallback implements Fallback {
  readonly #local: LocalBackend;
  readonly #clock: Clock;
  readonly #processes: number;
  readonly #lower: LowerRemaining;
  /** The remaining capacity after a denial; undefined where a reply does not include the capacity of all processes. */
  #leftAfterRefusal: ((cost: number, retryAfterMs: Millis) => number) | undefined;
  /** True if a lock-out counts refusals. */
  #countsRefusals: boolean;
  #lockouts: readonly NamedRule[];
  #hasOneRule: boolean;
  /** Keys with grants of the fallback. */
  readonly #usedKeys = new Set<string>();

  constructor(policy: Policy, options: LocalOptions, processes: number, lower: LowerRemaining) {
    this.#local = new LocalBackend(policy, options);
    this.#clock = options.clock;
    this.#processes = processes;
    this.#lower = lower;
    this.#leftAfterRefusal = leftAfterRefusalOf(policy);
    this.#countsRefusals = policy.chain?.recordRefusal !== undefined;
    this.#lockouts = lockoutsOf(policy);
    this.#hasOneRule = policy.rules.length === 1;
  }

  change(policy: Policy): void {
    this.#local.prepareChange(policy)?.();
    this.#leftAfterRefusal = leftAfterRefusalOf(policy);
    this.#countsRefusals = policy.chain?.recordRefusal !== undefined;
    this.#lockouts = lockoutsOf(policy);
    this.#hasOneRule = policy.rules.length === 1;
  }

  forget(key: string): void {
    this.#local.forget(key);
    this.#usedKeys.delete(key);
  }

  check(key: string, cost: number, isWaiting = false): Decision {
    if (isWaiting && this.#countsRefusals) {
      const peeked = this.#local.peek(key, this.#chargeOf(key, cost));
      if (peeked.verdict === 'deny') return peeked;
    }
    const decision = this.#checkPart(key, cost, this.#clock.now());
    if (decision.verdict !== 'deny' && this.#usedKeys.size < MAX_RECONCILED_KEYS)
      this.#usedKeys.add(key);
    return decision;
  }

  /** Charges a cost that is too large for a part once, without the factor. */
  #checkPart(key: string, cost: number, now: Millis): Decision {
    const scaled = this.#local.checkNow(key, cost * this.#processes, now);
    const isTooLarge = scaled.verdict === 'deny' && scaled.retryAfterMs === NEVER;
    return isTooLarge ? this.#local.checkNow(key, cost, now) : scaled;
  }

  undo(key: string, cost: number): void {
    const now = this.#clock.now();
    const charged = this.#chargeOf(key, cost);
    this.#local.settle(key, { outcome: 'ignored', cost: charged, dueAt: now }, now);
  }

  /** The cost that `check` charges. */
  #chargeOf(key: string, cost: number): number {
    const scaled = this.#local.peek(key, cost * this.#processes);
    const isTooLarge = scaled.verdict === 'deny' && scaled.retryAfterMs === NEVER;
    return isTooLarge ? cost : cost * this.#processes;
  }

  /** Counts a reply. Buckets, windows and quotas report the capacity of all processes; else only own calls count. */
  observe(key: string, cost: number, decision: Decision, isWaiting = false): void {
    const isLock = decision.verdict === 'deny' && decision.reason === 'locked';
    if (isWaiting && decision.verdict === 'deny' && this.#countsRefusals && !isLock) return;
    const leftAfterRefusal = this.#leftAfterRefusal;
    if (this.#lockouts.length > 0) {
      this.#observeLockouts(key, cost, decision);
    } else if (leftAfterRefusal === undefined) {
      this.#local.checkNow(key, cost, this.#clock.now());
    } else if (decision.verdict === 'allow') {
      this.#local.update(key, { remaining: decision.remaining });
    } else if (decision.verdict === 'deny' && decision.retryAfterMs !== NEVER) {
      const left = leftAfterRefusal(cost, decision.retryAfterMs);
      this.#local.update(key, { remaining: Math.max(0, left) });
    }
  }

  /** Counts a reply of a limit with lock-outs: a lone lock-out's reply includes the attempts of all processes. */
  #observeLockouts(key: string, cost: number, decision: Decision): void {
    if (cost === 0) return; // allowed even if the key is locked
    const isLone = this.#hasOneRule;
    if (decision.verdict === 'deny' && decision.reason === 'locked') {
      const { retryAfterMs, rule } = decision;
      const locking = this.#lockouts.filter(({ name }) => isLone || name === rule);
      this.#follow(key, { lockedMs: retryAfterMs }, locking);
      return;
    }
    if (decision.verdict === 'deny' && isLone) return; // it took nothing
    if (decision.verdict !== 'deny') this.#follow(key, { lockedMs: 0 });
    this.#local.checkNow(key, cost, this.#clock.now());
    if (decision.verdict !== 'allow' || !isLone) return;
    this.#follow(key, { attemptsLeft: decision.remaining });
  }

  #follow(key: string, ruling: LockoutRuling, lockouts = this.#lockouts): void {
    this.#local.changeState(key, (state, i, now) => {
      for (const { policy, offset } of lockouts) policy.update(state, i + offset, ruling, now);
    });
  }

  report(key: string, report: AttemptOutcome | 'refusal', count: number): void {
    this.#local.update(key, { report, count });
  }

  reconcile(): void {
    for (const key of this.#usedKeys) {
      const left = Math.max(0, Math.floor(this.#local.keyState(key).remaining));
      this.#lower(key, left).catch(() => this.#usedKeys.add(key));
    }
    this.#usedKeys.clear();
  }
}

/** By the kind of the only rule. */
const LEFT_AFTER_REFUSAL: Readonly<
  Record<string, (cost: number, retryAfterMs: Millis, params: readonly number[]) => number>
> = {
  bucket: (cost, ms, [perMs]) => cost - ms * perMs,
  window: (cost) => cost - 1,
  quota: (cost) => cost - 1,
};

function leftAfterRefusalOf({ rules }: Policy) {
  const [{ spec }, ...others] = rules;
  const leftOf = spec && others.length === 0 ? LEFT_AFTER_REFUSAL[spec.kind] : undefined;
  return leftOf && ((cost: number, ms: Millis) => leftOf(cost, ms, spec?.params ?? []));
}

const lockoutsOf = (policy: Policy): readonly NamedRule[] =>
  rulesOf(policy).filter(({ policy: { share } }) => share?.events);
