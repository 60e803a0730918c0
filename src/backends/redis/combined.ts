/**
 * A limit that counts calls in flight besides other rules: `{ all: [{ bucket: … }, { concurrency: 8 }] }`.
 *
 * Calls in flight are leases in a sorted set, which are renewed and released (`semaphore.ts`). The other rules are
 * numbers in one string, which are settled by cost (`backend.ts`). Both keys have one hash tag and so one slot, and the
 * script of joint checks charges both or neither:
 *
 *     check ──▶ sluice:{name:key}:bucket        │ numbers │   ┐ one script call
 *           └─▶ sluice:{name:key}:concurrency   id ─▶ ends at ┘
 *
 *     settle ─▶ the lease is removed; the numbers change if the call used more or less than its cost
 *
 * If there are several concurrency limits, the smallest decides: all of them count the same calls.
 */

import type { Millis } from '../../core/clock.ts';
import {
  type AttemptOutcome,
  allow,
  type Decision,
  type OnUnavailable,
  wait,
} from '../../core/decision.ts';
import { UnavailableError } from '../../core/errors.ts';
import { all } from '../../policies/all.ts';
import { converterBetween, type Policy, type Settlement } from '../../policies/policy.ts';
import { type NamedRule, namesOfRules, rulesOf } from '../../policies/rules.ts';
import {
  type BatchDecision,
  type JointDecision,
  type JointPartRequest,
  type RemoteBackend,
  type RemoteBackendContext,
  type RemoteDecision,
  type RemoteLease,
  toBatchDecision,
} from '../remote-backend.ts';
import { limitIdOf } from '../remote-limit.ts';
import { RedisBackend } from './backend.ts';
import type { RedisConfig } from './context.ts';
import { chargeTogether, type JointCall, type JointMode } from './joint.ts';
import { SemaphoreBackend } from './semaphore.ts';

type Denied = Extract<Decision, { verdict: 'deny' }>;

export class CombinedBackend implements RemoteBackend {
  readonly #numbers: RedisBackend;
  readonly #leases: SemaphoreBackend;
  readonly onUnavailable: OnUnavailable;
  #policy: Policy;
  #limit: SplitLimit;

  constructor(policy: Policy, context: RemoteBackendContext, config: RedisConfig) {
    this.onUnavailable = config.onUnavailable;
    this.#policy = policy;
    this.#limit = split(policy);
    const [ofNumbers, ofLeases] = this.#availabilityListeners(context.onAvailability);
    // A limit without a name is identified by all its numbers, and so are both of its keys.
    const named = { ...context, name: limitIdOf(context, policy), hasExplicitName: true };
    const { rest, concurrency } = this.#limit;
    this.#numbers = new RedisBackend(rest, { ...named, onAvailability: ofNumbers }, config);
    this.#leases = new SemaphoreBackend(
      concurrency,
      { ...named, onAvailability: ofLeases },
      config,
    );
  }

  /** The limit is available if both backends are. Calls of the fallback are registered as soon as one is. */
  #availabilityListeners(report: RemoteBackendContext['onAvailability']) {
    const unavailable = new Set<number>();
    return [0, 1].map((n) => (isAvailable: boolean, why: unknown): void => {
      const before = unavailable.size;
      if (isAvailable) unavailable.delete(n);
      else unavailable.add(n);
      if (isAvailable) this.#leases.renewAll();
      const hasChanged = (before === 0) !== (unavailable.size === 0);
      if (hasChanged) report(unavailable.size === 0, why);
    });
  }

  get isAvailable(): boolean {
    return this.#numbers.isAvailable && this.#leases.isAvailable;
  }

  check(key: string, cost: number): Promise<RemoteDecision> {
    return this.#charge(key, cost, this.#policy.traits.canReserve ? 'a' : 'n');
  }

  checkNow(key: string, cost: number, isWaiting = false): Promise<RemoteDecision> {
    return this.#charge(key, cost, isWaiting ? 'q' : 'n');
  }

  async checkBatch(key: string, [cost]: readonly number[]): Promise<BatchDecision> {
    return toBatchDecision(await this.#charge(key, cost, 'q'));
  }

  async #charge(key: string, cost: number, mode: JointMode): Promise<RemoteDecision> {
    const charged = (await chargeTogether([{ backend: this, key, cost }], mode)) as JointDecision;
    return charged.decisions[0] as RemoteDecision;
  }

  chargeTogether(
    parts: readonly JointPartRequest[],
    isWaiting = false,
  ): Promise<JointDecision> | undefined {
    return chargeTogether(parts, isWaiting ? 'q' : 'n');
  }

  jointCall(key: string, cost: number, isWaiting: boolean): JointCall {
    const numbers = this.#numbers.jointPart(key, cost, isWaiting, true);
    return {
      parts: [numbers, this.#leases.jointPart(key, cost)],
      join: ([numbers, lease]) => this.#join(numbers, lease),
    };
  }

  /** The stricter of both decisions; undefined if both would allow. */
  #join(
    numbers: RemoteDecision | undefined,
    lease: RemoteDecision | undefined,
  ): RemoteDecision | undefined {
    const refused = this.#strictest(
      numbers && this.#nameRule(numbers),
      lease && nameLease(lease, this.#limit.concurrencyName),
    );
    if (refused || !numbers || !lease) return refused;
    const fromFallback = numbers.fromFallback || lease.fromFallback;
    return {
      decision: joinAllowed(numbers.decision, lease.decision),
      decidedAt: numbers.decidedAt,
      leaseId: lease.leaseId,
      ...(fromFallback && { fromFallback }),
    };
  }

  /** The refusal with the longest wait; on a tie, that of the first rule. */
  #strictest(...decisions: readonly (RemoteDecision | undefined)[]): RemoteDecision | undefined {
    const rankOf = ({ rule = '' }: Denied): number => this.#limit.names.indexOf(rule);
    let found: RemoteDecision | undefined;
    for (const one of decisions) {
      if (one?.decision.verdict !== 'deny') continue;
      const other = found?.decision as Denied | undefined;
      const longerMs = other ? one.decision.retryAfterMs - other.retryAfterMs : Infinity;
      const isEqual = other?.retryAfterMs === one.decision.retryAfterMs;
      if (isEqual ? rankOf(one.decision) < rankOf(other) : longerMs > 0) found = one;
    }
    return found;
  }

  /** Maps a rule's name in `rest` to its name in the whole limit. */
  #nameRule({ decision, ...reply }: RemoteDecision): RemoteDecision {
    if (decision.verdict !== 'deny') return { decision, ...reply };
    const { innerNames, restNames } = this.#limit;
    const rule = restNames[Math.max(0, innerNames.indexOf(decision.rule ?? ''))];
    return { decision: { ...decision, rule }, ...reply };
  }

  async takeUpTo(key: string, most: number): Promise<number> {
    if (most < 1) return 0;
    const { decision } = await this.checkNow(key, 1);
    return decision.verdict === 'deny' ? 0 : 1;
  }

  async settle(key: string, settlement: Settlement): Promise<void> {
    const { outcome, cost, used = cost, fromFallback } = settlement;
    const isAsCharged = outcome !== 'ignored' && used === cost;
    const settled = isAsCharged || fromFallback ? undefined : this.#numbers.settle(key, settlement);
    await Promise.all([this.#leases.settle(key, settlement), settled]);
  }

  /** Reserves in two calls: a lease needs no confirmation, because it expires. */
  async reserve(key: string, cost: number, isWaiting = false): Promise<RemoteDecision> {
    const numbers = await this.#numbers.reserve(key, cost, isWaiting);
    if (numbers.decision.verdict === 'deny') return this.#nameRule(numbers);
    const { reservationId = '' } = numbers;
    const lease = await this.#leases.reserve(key, cost);
    const reply = this.#join(numbers, lease) as RemoteDecision;
    if (lease.leaseId !== undefined)
      return reservationId === ''
        ? reply
        : { ...reply, reservationId: `${reservationId} ${lease.leaseId}` };
    if (reservationId !== '') await this.#numbers.cancel(key, reservationId);
    else this.#numbers.cancelFallback(key, cost);
    return reply;
  }

  confirm(key: string, reservationId: string): Promise<boolean> {
    return this.#numbers.confirm(key, reservationId.split(' ')[0]);
  }

  async cancel(key: string, reservationId: string): Promise<void> {
    const [id, leaseId] = reservationId.split(' ');
    const released = { outcome: 'ignored', cost: 0, dueAt: Number.NaN, leaseId } as const;
    await Promise.all([this.#numbers.cancel(key, id), this.#leases.settle(key, released)]);
  }

  cancelFallback(key: string, cost: number): void {
    this.#numbers.cancelFallback(key, cost);
  }

  leaseOf(leaseId: string): RemoteLease | undefined {
    return this.#leases.leaseOf(leaseId);
  }

  /** Forgets the numbers; calls in flight stay. */
  forget(key: string): Promise<void> {
    return this.#numbers.forget(key);
  }

  report(key: string, report: AttemptOutcome | 'refusal', count: number): Promise<void> {
    return this.#numbers.report(key, report, count);
  }

  addHits(key: string, count: number): Promise<void> {
    return this.#numbers.addHits(key, count);
  }

  toServerTime(key: string, at: Millis): Millis {
    return this.#numbers.toServerTime(key, at);
  }

  async readState(key: string): Promise<{ state: Float64Array; at: Millis } | undefined> {
    const [numbers, inFlight] = await Promise.all([
      this.#numbers.readState(key),
      this.#leases.readInFlight(key),
    ]);
    if (!numbers || !inFlight) return undefined;
    const state = new Float64Array(this.#policy.width);
    this.#policy.init(state, 0, numbers.at);
    let from = 0;
    for (const { policy, offset } of this.#limit.rules) {
      if (slotsOf(policy) < Infinity) policy.check(state, offset, inFlight.count, numbers.at);
      else {
        state.set(numbers.state.subarray(from, from + policy.width), offset);
        from += policy.width;
      }
    }
    return { state, at: numbers.at };
  }

  prepareChange(policy: Policy): (() => Promise<void>) | undefined {
    if (!converterBetween(this.#policy, policy)) return undefined;
    const next = split(policy);
    const changeNumbers = this.#numbers.prepareChange(next.rest);
    return (
      changeNumbers &&
      (async () => {
        if (!this.isAvailable) throw new UnavailableError('Redis');
        await changeNumbers();
        await this.#leases.changeLimit(next.concurrency);
        this.#policy = policy;
        this.#limit = next;
      })
    );
  }

  async close(): Promise<void> {
    await this.#leases.close();
    await this.#numbers.close();
  }
}

/** Whether a limit counts calls in flight besides other rules. */
export const isCombinedLimit = ({ traits, rules }: Policy): boolean =>
  traits.concurrencyLimit !== undefined && rules.some(({ policy }) => slotsOf(policy) === Infinity);

/** A limit as Redis stores it: leases, and numbers. */
interface SplitLimit {
  readonly rules: readonly NamedRule[];
  /** Names of all rules, in order. */
  readonly names: readonly string[];
  /** The smallest concurrency limit. */
  readonly concurrency: Policy;
  readonly concurrencyName: string;
  /** The other rules as a limit, and their names in the whole limit and in this one. */
  readonly rest: Policy;
  readonly restNames: readonly string[];
  readonly innerNames: readonly string[];
}

/** Number of calls in flight that a rule allows; Infinity: it does not count them. */
const slotsOf = ({ traits }: Policy): number => traits.concurrencyLimit ?? Infinity;

function split(limit: Policy): SplitLimit {
  const rules = rulesOf(limit);
  const others = rules.filter(({ policy }) => slotsOf(policy) === Infinity);
  const smallest = rules.reduce((a, b) => (slotsOf(b.policy) < slotsOf(a.policy) ? b : a));
  const rest = others.length === 1 ? others[0].policy : all(others.map(({ policy }) => policy));
  return {
    rules,
    names: rules.map(({ name }) => name),
    concurrency: smallest.policy,
    concurrencyName: smallest.name,
    rest,
    restNames: others.map(({ name }) => name),
    innerNames: namesOfRules(rest),
  };
}

const nameLease = ({ decision, ...reply }: RemoteDecision, rule: string): RemoteDecision =>
  decision.verdict === 'deny'
    ? { decision: { ...decision, rule }, ...reply }
    : { decision, ...reply };

function joinAllowed(numbers: Decision, lease: Decision): Decision {
  if (numbers.verdict === 'wait') return wait(numbers.waitMs);
  const remaining = [numbers, lease].map((one) => (one.verdict === 'allow' ? one.remaining : 0));
  return allow(Math.min(...remaining));
}
