/**
 * A limit decided by compare-and-swap on linearised registers in etcd, one register for each key.
 *
 * Strict: two permits of a spacing never start closer than the rule says. This holds with wrong clocks, as long as they
 * run at the right speed, and when an etcd member dies. A permit that arrives too late is lost (`delayed-rule.ts`), and
 * so is a permit whose swap has an unknown outcome (`cas-register.ts`). Without a quorum no swap succeeds, and every
 * call is refused within its deadline.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { type AttemptOutcome, allow, type Decision, wait } from '../../core/decision.ts';
import { UnavailableError } from '../../core/errors.ts';
import { cryptoRandom } from '../../core/random.ts';
import {
  converterBetween,
  type Policy,
  type Settlement,
  type State,
} from '../../policies/policy.ts';
import { layoutOf, specsOf } from '../../policies/rules.ts';
import { everyMsOf, lookaheadMs } from '../lookahead.ts';
import {
  type BatchDecision,
  type RemoteBackend,
  type RemoteBackendContext,
  type RemoteDecision,
  toBatchDecision,
} from '../remote-backend.ts';
import { limitIdOf, randomId } from '../remote-limit.ts';
import { RttEstimator } from '../rtt-estimator.ts';
import { CasRegister, type RegisterContext, type RegisterUpdate } from './cas-register.ts';
import { ClockOffsets } from './clock-offsets.ts';
import {
  type DecisionTime,
  DelayedRule,
  type Grant,
  type TimedDecision,
  type TimedDecisions,
} from './delayed-rule.ts';
import { InFlightLimit } from './in-flight-limit.ts';
import { convertKeys } from './key-conversion.ts';
import { LeaseCache } from './leases.ts';
import { type EtcdOnUnavailable, Operations } from './operations.ts';
import { NO_REVISION, type RegisterStore } from './store.ts';

export interface EtcdBackendOptions {
  readonly prefix: string;
  readonly deadlineMs: Millis;
  /** The start tolerance of a policy: how long after its due time a permit may start. */
  startToleranceOf(policy: Policy): Millis;
  readonly onUnavailable: EtcdOnUnavailable;
}

/** Reads the state of a key, and may change it. */
type Apply<T> = (state: State, moment: DecisionTime) => T;

export class EtcdBackend implements RemoteBackend {
  #context: RegisterContext;
  readonly #clock: Clock;
  #policy: Policy;
  #rule: DelayedRule;
  readonly #options: EtcdBackendOptions;
  readonly onUnavailable: EtcdOnUnavailable;
  /**
   * Keys are named `prefix` `limit/kind/key`; the limit's id is encoded so that it contains no slash. The kind is part
   * of the name because limits of different kinds cannot read each other's state.
   */
  #keyPrefix: string;
  readonly #prefixOf: (policy: Policy) => string;
  #everyMs: Millis;
  readonly #operations: Operations<RegisterUpdate, CasRegister>;

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
    this.#policy = policy;
    this.#rule = new DelayedRule(policy, options.startToleranceOf(policy));
    const limitId = encodeURIComponent(limitIdOf(context, policy));
    this.#prefixOf = (of) => `${options.prefix}${limitId}/${layoutOf(of)}/`;
    this.#keyPrefix = this.#prefixOf(policy);
    this.#everyMs = everyMsOf(policy);
    this.#operations = new Operations({
      ...options,
      clock,
      probe: () => store.compareAndSwap(this.#keyPrefix, NO_REVISION),
      onAvailability: context.onAvailability,
      createQueue: (key) => new CasRegister(this.#keyPrefix + key, this.#context),
    });
    const rtt = new RttEstimator(options.deadlineMs);
    this.#context = {
      policy: this.#rule.policy,
      store,
      clock,
      random,
      // Never seeded: a process that takes another process's clock for its own would start permits too early.
      clockId: randomId(cryptoRandom),
      clockOffsets: new ClockOffsets(),
      leases: new LeaseCache(store, clock, rtt),
      rtt,
      inFlightLimit: new InFlightLimit(),
      onReply: () => this.#operations.onReply(),
      onFailure: (error) => this.#operations.onFailure(error),
    };
  }

  get policy(): Policy {
    return this.#rule.policy;
  }

  get isAvailable(): boolean {
    return this.#operations.isAvailable;
  }

  check(key: string, cost: number): Promise<RemoteDecision> {
    return this.#check(key, (state, moment) => this.#rule.check(state, cost, moment, true));
  }

  checkNow(key: string, cost: number, isWaiting = false): Promise<RemoteDecision> {
    return this.#check(key, (state, moment) =>
      isWaiting
        ? this.#rule.checkWaiting(state, cost, moment)
        : this.#rule.check(state, cost, moment, false),
    );
  }

  async #check(key: string, decide: Apply<TimedDecision>): Promise<RemoteDecision> {
    const timed = await this.#submit(key, decide);
    if (!timed) return this.#operations.undecided(key);
    const at = this.#clock.now();
    return { decision: decisionAt(timed, at), decidedAt: at, usableUntil: usableUntilOf(timed) };
  }

  async checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision> {
    const aheadMs = lookaheadMs(this.#everyMs, this.#context.rtt.upperBoundMs);
    const timed = await this.#submit(key, (state, moment) =>
      this.#rule.checkBatch(state, costs, moment, aheadMs),
    );
    if (!timed) return toBatchDecision(this.#operations.undecided(key));
    return { ...batchDecisionAt(timed, this.#clock.now()), lookaheadMs: aheadMs };
  }

  async takeUpTo(key: string, most: number): Promise<number> {
    if (most < 1) return 0;
    const timed = await this.#submit(key, (state, moment) =>
      this.#rule.takeUpTo(state, most, moment),
    );
    if (!timed) return this.#operations.undecided(key).decision.verdict === 'allow' ? 1 : 0;
    return timed.verdict === 'grant' && isInTime(timed, this.#clock.now()) ? timed.remaining : 0;
  }

  async takeSurplus(key: string, most: number, leave: number): Promise<number> {
    const { policy } = this.#rule;
    const { lendMs } = policy.divide ?? {};
    const timed = await this.#submit(key, (state, moment) => {
      const surplus = policy.available(state, 0, moment.now) - leave;
      const taken = this.#rule.takeUpTo(state, Math.min(most, Math.floor(surplus)), moment);
      if (taken.verdict === 'grant' && lendMs)
        policy.chain?.deferTo?.(state, 0, taken.remaining, moment.now + moment.maxDelayMs + lendMs);
      return taken;
    });
    return timed?.verdict === 'grant' ? timed.remaining : 0;
  }

  /** Adds tokens; they are lost if the credit cannot be written. */
  async credit(key: string, tokens: number, upTo: number): Promise<void> {
    const { policy } = this.#rule;
    const apply: Apply<void> = (state, { now }) =>
      policy.divide?.credit?.(state, 0, tokens, upTo, now);
    await this.#submit(key, apply, true);
  }

  /** Settles; unused units stay taken if the settlement cannot be written. */
  async settle(key: string, settlement: Settlement): Promise<void> {
    const { outcome, cost, used = cost } = settlement;
    const isCredit = outcome === 'ignored' || used < cost;
    const apply: Apply<void> = (state, { now }) => this.#rule.settle(state, settlement, now);
    await this.#submit(key, apply, isCredit);
  }

  async forget(key: string): Promise<void> {
    const { policy } = this.#rule;
    await this.#enqueue(key, (state, { now }) => policy.init(state, 0, now), false);
  }

  /** A success returns attempts, so it is dropped if in doubt: the attempt then counts as a failure. */
  async report(key: string, report: AttemptOutcome | 'refusal', count: number): Promise<void> {
    const { policy } = this.#rule;
    const apply: Apply<boolean> = (state, { now }) =>
      policy.update(state, 0, { report, count }, now);
    await this.#submit(key, apply, report === 'success');
  }

  /** The first process that changes the limit converts the keys: `key-conversion.ts`. */
  prepareChange(policy: Policy): (() => Promise<void>) | undefined {
    const rule = new DelayedRule(policy, this.#options.startToleranceOf(policy));
    const convert = converterBetween(this.#rule.policy, rule.policy);
    if (!convert) return undefined;
    return async () => {
      if (!this.isAvailable) throw new UnavailableError('etcd');
      const [from, to] = [this.#context, { ...this.#context, policy: rule.policy }];
      const change = JSON.stringify([specsOf(this.#policy), specsOf(policy)]);
      const [prefix, newPrefix] = [this.#keyPrefix, this.#prefixOf(policy)];
      await convertKeys({ from, to, prefix, newPrefix, convert, change });
      this.#policy = policy;
      this.#rule = rule;
      this.#everyMs = everyMsOf(policy);
      this.#context = to;
      this.#keyPrefix = newPrefix;
      if (newPrefix !== prefix) this.#operations.clear();
      for (const register of this.#operations.queues.values()) register.usePolicy(rule.policy);
    };
  }

  async addHits(key: string, hits: number): Promise<void> {
    const { policy } = this.#rule;
    await this.#submit(key, (state, { now }) => policy.update(state, 0, { hits }, now));
  }

  readState(key: string): Promise<{ state: State; at: Millis } | undefined> {
    return this.#submit(key, (state, moment) => ({
      state: state.slice(),
      at: this.#rule.readingTime(moment),
    }));
  }

  async close(): Promise<void> {
    this.#operations.close();
    this.#context.store.close();
  }

  /** Resolves with the result of `apply`; undefined if there is no decision in time. */
  #submit<T>(key: string, apply: Apply<T>, isCredit = false): Promise<T | undefined> {
    return this.#enqueue(key, apply, isCredit).catch(() => undefined);
  }

  #enqueue<T>(key: string, apply: Apply<T>, isCredit: boolean): Promise<T> {
    return this.#operations.run(key, { apply, isCredit }, (result) => result as T);
  }
}

const usableUntilOf = (timed: TimedDecision): Millis =>
  timed.verdict === 'grant' ? timed.usableUntil : Infinity;

const isInTime = ({ usableUntil }: Grant, now: Millis): boolean => now <= usableUntil;

function decisionAt(timed: TimedDecision, now: Millis): Decision {
  if (timed.verdict === 'deny') return timed;
  if (!isInTime(timed, now)) return timed.refusalIfLate;
  return timed.dueAt > now ? wait(timed.dueAt - now) : allow(timed.remaining);
}

/**
 * Converts the decisions of a batch. If the first of two grants has expired and the second is ahead of its time, the
 * one admitted waiter starts between both, where no other process has a permit.
 */
function batchDecisionAt(timed: TimedDecisions, at: Millis): BatchDecision {
  const decisions = timed.map((one) => decisionAt(one, at));
  const refusal = decisions.find(({ verdict }) => verdict === 'deny');
  const granted = decisions.filter(({ verdict }) => verdict !== 'deny').length;
  const usableUntils = timed.map(usableUntilOf).filter((_, n) => decisions[n].verdict !== 'deny');
  const last = decisions[granted - 1];
  const dueInMs = last?.verdict === 'wait' ? [last.waitMs] : [];
  return { granted, dueInMs, usableUntils, refusal, decidedAt: at };
}
