/**
 * A share where a register decides, linearised: everybody swaps it, and nobody's clock counts for others.
 *
 * Strict: no two permits begin closer than the rule says, on any clock that goes at the right speed, whoever decides, however
 * wrong the clocks are set and whichever server dies. A permit that comes too late to be used is lost (`delayed-rule.ts`), and so is
 * one whose swap has an unknown outcome (`cas-register.ts`). Without a quorum nothing can be swapped, and everybody is
 * refused within the deadline.
 */

import { type Clock, type Millis, onImmediate } from '../../core/clock.ts';
import { DeadlineSet } from '../../core/deadline-set.ts';
import { allow, type Decision, deny, wait } from '../../core/decision.ts';
import { UnavailableError } from '../../core/errors.ts';
import type { Policy, Settlement, State } from '../../policies/policy.ts';
import { CircuitBreaker, RejectionPacer } from '../circuit-breaker.ts';
import {
  type BatchDecision,
  maxJitterMs,
  type RemoteBackend,
  type RemoteBackendContext,
  type RemoteDecision,
  toBatchDecision,
} from '../remote-backend.ts';
import { CasRegister, type RegisterContext, type RegisterOperation } from './cas-register.ts';
import { ClockOffsets } from './clock-offsets.ts';
import {
  type DecisionTime,
  DelayedRule,
  everyMsOf,
  type Grant,
  type TimedDecision,
  type TimedDecisions,
} from './delayed-rule.ts';
import { createEtcdKeyMapper, randomClockId } from './keys.ts';
import { LeaseCache } from './leases.ts';
import { RttEstimator } from './rtt-estimator.ts';
import { Semaphore } from './semaphore.ts';
import { NO_REVISION, type RegisterStore } from './store.ts';

/** What a call is told while there is no quorum. */
export type OnNoQuorum = 'deny' | 'allow';

export interface EtcdBackendOptions {
  readonly prefix: string;
  readonly deadlineMs: Millis;
  /** How long after its place opened a permit may begin. */
  readonly startToleranceMs: Millis;
  readonly onUnavailable: OnNoQuorum;
}

/** What somebody is told who is refused because nobody can decide: that may have changed by then. */
const UNAVAILABLE_RETRY_MS: Millis = 500;

/** Timers are late by a millisecond or two; a busy process by a few more. */
const TIMER_LATENESS_MS: Millis = 5;

/** The most that is asked and not answered. */
const MAX_PENDING_OPERATIONS = 10_000;

/** The longest key: etcd would not take one of half a million bytes, and many of them are remembered. */
const MAX_KEY_CHARS = 32_768;

/** Registers that are remembered. One that is not costs a look, and may seem to open later than it does. */
const MAX_REGISTERS = 10_000;

interface PendingOperation extends RegisterOperation {
  readonly issuedAt: Millis;
}

export class EtcdBackend implements RemoteBackend {
  readonly #context: RegisterContext;
  readonly #clock: Clock;
  readonly #rule: DelayedRule;
  readonly #options: EtcdBackendOptions;
  readonly onUnavailable: OnNoQuorum;
  readonly #etcdKeyOf: (key: string) => string;
  readonly #lookaheadMs: Millis;
  readonly #registers = new Map<string, CasRegister>();
  readonly #pending: DeadlineSet<PendingOperation>;
  readonly #breaker: CircuitBreaker;
  readonly #rejectionPacer = new RejectionPacer();
  #lastReplyAt: Millis = -Infinity;
  #isClosed = false;

  constructor(
    policy: Policy,
    context: RemoteBackendContext,
    store: RegisterStore,
    options: EtcdBackendOptions,
  ) {
    const { clock, random } = context;
    this.#clock = clock;
    this.#options = options;
    this.onUnavailable = options.onUnavailable;
    this.#rule = new DelayedRule(policy, options.startToleranceMs);
    this.#etcdKeyOf = createEtcdKeyMapper(options.prefix, context, policy);
    const everyMs = everyMsOf(policy);
    this.#lookaheadMs = everyMs > 0 ? TIMER_LATENESS_MS + maxJitterMs(everyMs) : 0;
    this.#pending = new DeadlineSet(clock, options.deadlineMs, (operation) =>
      this.#timeOut(operation),
    );
    this.#breaker = new CircuitBreaker(
      clock,
      () => store.compareAndSwap(this.#etcdKeyOf(''), NO_REVISION),
      context.onAvailability,
    );
    const rtt = new RttEstimator(options.deadlineMs);
    this.#context = {
      policy: this.#rule.policy,
      store,
      clock,
      random,
      clockId: randomClockId(),
      clockOffsets: new ClockOffsets(),
      leases: new LeaseCache(store, clock, rtt),
      rtt,
      semaphore: new Semaphore(),
      onReply: () => {
        this.#lastReplyAt = clock.now();
      },
      onFailure: (error) => this.#openBreaker(error),
    };
  }

  get policy(): Policy {
    return this.#rule.policy;
  }

  get isAvailable(): boolean {
    return !this.#breaker.isOpen;
  }

  check(key: string, cost: number): Promise<RemoteDecision> {
    return this.#check(key, cost, true);
  }

  checkNow(key: string, cost: number): Promise<RemoteDecision> {
    return this.#check(key, cost, false);
  }

  async #check(key: string, cost: number, mayReserve: boolean): Promise<RemoteDecision> {
    try {
      const told = await this.#submit(
        key,
        (state, moment): TimedDecision => this.#rule.check(state, cost, moment, mayReserve),
      );
      const at = this.#clock.now();
      return { decision: decisionAt(told, at), decidedAt: at, usableUntil: usableUntilOf(told) };
    } catch {
      return this.#fallbackDecision();
    }
  }

  async checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision> {
    const lookaheadMs =
      this.#lookaheadMs > 0 ? this.#lookaheadMs + this.#context.rtt.upperBoundMs : 0;
    try {
      const told = await this.#submit(
        key,
        (state, moment): TimedDecisions => this.#rule.checkBatch(state, costs, moment, lookaheadMs),
      );
      return { ...batchDecisionAt(told, this.#clock.now()), lookaheadMs };
    } catch {
      return toBatchDecision(this.#fallbackDecision());
    }
  }

  async takeUpTo(key: string, most: number): Promise<number> {
    if (most < 1) return 0;
    try {
      const told = await this.#submit(
        key,
        (state, moment): TimedDecision => this.#rule.takeUpTo(state, most, moment),
      );
      return told.verdict === 'grant' && isInTime(told, this.#clock.now()) ? told.remaining : 0;
    } catch {
      return this.#fallbackDecision().decision.verdict === 'allow' ? 1 : 0;
    }
  }

  async takeSurplus(key: string, most: number, leave: number): Promise<number> {
    const apply = (state: State, moment: DecisionTime): TimedDecision => {
      const spare = this.#rule.policy.available(state, 0, moment.now) - leave;
      return this.#rule.takeUpTo(state, Math.min(most, Math.floor(spare)), moment);
    };
    const told = await this.#submit(key, apply).catch(() => undefined);
    return told?.verdict === 'grant' ? told.remaining : 0;
  }

  async credit(key: string, units: number, upTo: number): Promise<void> {
    const { policy } = this.#rule;
    const apply = (state: State, { now }: DecisionTime): void =>
      policy.credit?.(state, 0, units, upTo, now);
    await this.#submit(key, apply, true).catch(() => {}); // lost, as if it had not come
  }

  /** What cannot be told is lost: what was not used stays taken. */
  async settle(key: string, settlement: Settlement): Promise<void> {
    const { outcome, cost, used = cost } = settlement;
    const isCredit = outcome === 'ignored' || used < cost;
    const apply = (state: State, { now }: DecisionTime): void =>
      this.#rule.settle(state, settlement, now);
    await this.#submit(key, apply, isCredit).catch(() => {});
  }

  async addHits(key: string, count: number): Promise<void> {
    await this.#submit(key, (state, { now }) => this.#rule.hits(state, count, now)).catch(() => {});
  }

  async readState(key: string): Promise<{ state: State; at: Millis } | undefined> {
    // As it stands when this is known: a permit is reserved until it begins.
    const look = (state: State, { now, maxDelayMs }: DecisionTime) => ({
      state: state.slice(),
      at: now + maxDelayMs,
    });
    return this.#submit(key, look).catch(() => undefined);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#breaker.stop();
    this.#context.store.close();
  }

  #fallbackDecision(): RemoteDecision {
    const decision = this.onUnavailable === 'allow' ? allow(0) : deny(UNAVAILABLE_RETRY_MS);
    return { decision, decidedAt: this.#clock.now(), fromFallback: true };
  }

  /** Rejects if nobody can decide in time. */
  #submit<T>(
    key: string,
    apply: (state: State, moment: DecisionTime) => T,
    isCredit = false,
  ): Promise<T> {
    if (this.#breaker.isOpen) return this.#rejectionPacer.reject(new UnavailableError('etcd'));
    if (key.length > MAX_KEY_CHARS)
      return this.#rejectionPacer.reject(new UnavailableError('etcd', 'the key is too long'));
    if (this.#pending.size >= MAX_PENDING_OPERATIONS)
      return this.#rejectionPacer.reject(new UnavailableError('etcd', 'too much is asked at once'));
    return new Promise<T>((resolve, reject) => {
      const operation: PendingOperation = {
        issuedAt: this.#clock.now(),
        isWaiting: true,
        isCredit,
        apply,
        resolve: (told) => this.#complete(operation) && resolve(told as T),
        reject: (error) => this.#complete(operation) && reject(error),
      };
      this.#pending.add(operation);
      this.#registerOf(key).enqueue(operation);
    });
  }

  /** False if it was over already. */
  #complete(operation: PendingOperation): boolean {
    const { isWaiting } = operation;
    operation.isWaiting = false;
    this.#pending.remove(operation);
    return isWaiting;
  }

  /** If it was this process that was busy, the answer is there and is read before the turn is over. */
  #timeOut(operation: PendingOperation): void {
    onImmediate(() => {
      const { deadlineMs } = this.#options;
      const error = new UnavailableError('etcd', `no decision within ${deadlineMs} ms`);
      // Where others were faster all the time, it has answered, and will again.
      if (operation.isWaiting && this.#lastReplyAt < operation.issuedAt) this.#openBreaker(error);
      operation.reject(error);
    });
  }

  /** Nobody is sent there until it answers again. */
  #openBreaker(error: unknown): void {
    if (!this.#isClosed) this.#breaker.trip(error);
  }

  #registerOf(key: string): CasRegister {
    const register =
      this.#registers.get(key) ?? new CasRegister(this.#etcdKeyOf(key), this.#context);
    this.#registers.delete(key);
    this.#registers.set(key, register); // the one used last is the last to go
    if (this.#registers.size > MAX_REGISTERS) this.#evictIdle();
    return register;
  }

  #evictIdle(): void {
    for (const [key, register] of this.#registers) {
      if (!register.isIdle) continue;
      this.#registers.delete(key);
      return;
    }
  }
}

const usableUntilOf = (told: TimedDecision): Millis =>
  told.verdict === 'grant' ? told.usableUntil : Infinity;

const isInTime = ({ usableUntil }: Grant, now: Millis): boolean => now <= usableUntil;

function decisionAt(told: TimedDecision, now: Millis): Decision {
  if (told.verdict === 'deny') return told;
  if (!isInTime(told, now)) return told.refusalIfLate;
  return told.dueAt > now ? wait(told.dueAt - now) : allow(told.remaining);
}

/**
 * Of two, the first may have come too late for its place and the second is early for the next: then one of them begins in
 * between, where nobody else does.
 */
function batchDecisionAt(told: TimedDecisions, at: Millis): BatchDecision {
  const decisions = told.map((one) => decisionAt(one, at));
  const refusal = decisions.find(({ verdict }) => verdict === 'deny');
  const granted = decisions.filter(({ verdict }) => verdict !== 'deny').length;
  const usableUntils = told.map(usableUntilOf).filter((_, n) => decisions[n].verdict !== 'deny');
  const last = decisions[granted - 1];
  const dueInMs = last?.verdict === 'wait' ? last.waitMs : 0;
  return { granted, lastDueInMs: dueInMs, usableUntils, refusal, decidedAt: at };
}
