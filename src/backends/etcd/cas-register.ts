/**
 * One key: a register that everybody swaps, and those of this process who want something of it.
 *
 *     asks ──▶ decided here, all that wait at once, on what was seen last ──▶ swap, if the revision is still the same
 *                  ▲                                                            │ it is not: this is what is there
 *                  └────────────────────────────────────────────────────────────┘
 *
 * What changes nothing is told if it was looked at since it was asked, and costs no write. So every answer is one of the
 * latest revision. Where others are at it too, a random moment passes between swaps. Who gave up meanwhile is not told: what
 * was taken for it is lost.
 *
 * Nobody hears of a swap whose outcome is not known. If it has happened, what it took is gone; if it has not and happens
 * later, it finds another revision, or makes the next swap find one. Where a swap was tried twice, as the first server
 * did not answer, one that is lost may have been lost to itself: asks are decided anew, gifts are lost.
 */

import { type Clock, type Millis, onNextTick, schedule } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import type { Random } from '../../core/random.ts';
import type { Policy, State } from '../../policies/policy.ts';
import type { ClockOffsets } from './clock-offsets.ts';
import type { DecisionTime } from './delayed-rule.ts';
import type { LeaseCache } from './leases.ts';
import { decodeValue, encodeValue, type RegisterValue } from './register-value.ts';
import type { RttEstimator } from './rtt-estimator.ts';
import type { Semaphore } from './semaphore.ts';
import { NO_REVISION, type RegisterStore, type SwapResult } from './store.ts';

/** One who wants something: it reads the numbers, may change them, and is told what it made of them. */
export interface RegisterOperation {
  apply(state: State, moment: DecisionTime): unknown;
  resolve(told: unknown): void;
  reject(error: unknown): void;
  /** False once nobody waits for it. */
  isWaiting: boolean;
  /** True if it gives something: done twice it would give twice, and so it had better not be done. */
  readonly isCredit: boolean;
}

/** What all registers of a limit have in common. */
export interface RegisterContext {
  readonly policy: Policy;
  readonly store: RegisterStore;
  readonly clock: Clock;
  readonly random: Random;
  /** By what name others know our clock. */
  readonly clockId: string;
  readonly clockOffsets: ClockOffsets;
  readonly leases: LeaseCache;
  readonly rtt: RttEstimator;
  readonly semaphore: Semaphore;
  /** The server has answered, or it has not. */
  onReply(): void;
  onFailure(error: unknown): void;
}

/** The most that is decided in one swap. */
const MAX_BATCH_SIZE = 512;

/** For so many swaps there are rivals, once one was lost. */
const CONTENTION_SWAPS = 8;

/** What was seen so long ago may have changed since; where there are rivals, a trip is long ago. */
const MAX_VALUE_AGE_MS: Millis = 10_000;

/** Whoever lost often waits for so many trips at most. */
const MAX_BACKOFF_RTTS = 4;

/** How often those who know of no rivals let others in: else they would never know. */
const YIELD_PROBABILITY = 1 / 8;

export class CasRegister {
  readonly #key: string;
  readonly #context: RegisterContext;
  readonly #instantIndex: number;
  #queue: RegisterOperation[] = [];
  #isDraining = false;
  /** Above zero if others seem to swap it at the same time: swaps to be won until that is forgotten. */
  #contention = 0;
  #lastSwapAt: Millis = -Infinity;
  /** When it was surely as it was seen last. */
  #validAt: Millis = -Infinity;
  /** What was seen last, */
  #revision = NO_REVISION;
  #value: RegisterValue | undefined;
  /** and its instant on our clock, as early as it could be told so far. */
  #localInstant: Millis = Infinity;

  constructor(key: string, context: RegisterContext) {
    this.#key = key;
    this.#context = context;
    this.#instantIndex = context.policy.instantIndex ?? 0;
  }

  get isIdle(): boolean {
    return !this.#isDraining;
  }

  /** Whatever is wanted in one tick is decided together; what comes during a swap, in the next. */
  enqueue(operation: RegisterOperation): void {
    this.#queue.push(operation);
    if (this.#isDraining) return;
    this.#isDraining = true;
    onNextTick(() => this.#drain());
  }

  async #drain(): Promise<void> {
    while (this.#queue.length > 0) {
      await this.#yieldToContenders();
      await this.#context.semaphore.run(() => this.#runBatch());
    }
    this.#isDraining = false;
  }

  async #runBatch(): Promise<void> {
    const operations = this.#queue.splice(0, MAX_BATCH_SIZE);
    try {
      await this.#decideBatch(operations);
    } catch (error) {
      this.#context.onFailure(error);
      for (const { reject } of operations) reject(error);
    }
  }

  async #decideBatch(operations: readonly RegisterOperation[]): Promise<void> {
    const { clock, rtt, policy, leases } = this.#context;
    const since = clock.now();
    for (let lost = 0; ; ) {
      const asking = operations.filter(({ isWaiting }) => isWaiting);
      if (asking.length === 0) return;
      if (this.#isStale()) await this.#refresh();
      const state = this.#localState();
      const moment = { now: clock.now(), maxDelayMs: rtt.upperBoundMs };
      let isChanged = false;
      const told = asking.map((operation) => {
        const before = state.slice();
        const one = operation.apply(state, moment);
        isChanged ||= state.some((number, n) => number !== before[n]);
        return one;
      });
      // A place that one gave back and another took is written, too: where it lies is news to the others.
      if (!isChanged) {
        if (this.#validAt >= since) return resolveAll(asking, told);
        await this.#refresh();
        continue;
      }
      const goesAt = policy.removableAt(state, 0);
      const leaseId = leases.findValidUntil(goesAt);
      // Asking for a lease takes a while, and so does letting others pass: then it is decided again.
      if (leaseId === undefined) {
        await leases.request(goesAt);
        continue;
      }
      const swapped = await this.#compareAndSwap(state, moment.now, leaseId);
      if (swapped.isMatch) return resolveAll(asking, told);
      if (swapped.isAmbiguous) rejectCredits(asking);
      if (++lost > 1) await this.#backOff(Math.min(lost, MAX_BACKOFF_RTTS));
    }
  }

  /** Looking costs less than a swap that is lost, and more than none. */
  #isStale(): boolean {
    const { clock, rtt } = this.#context;
    return clock.now() - this.#validAt > (this.#contention > 0 ? rtt.meanMs : MAX_VALUE_AGE_MS);
  }

  async #refresh(): Promise<void> {
    const { store, clock } = this.#context;
    const askedAt = clock.now();
    this.#onReply(await store.compareAndSwap(this.#key, this.#revision), askedAt);
  }

  /** Puts the numbers in place of what was seen last, unless somebody else was faster. */
  async #compareAndSwap(state: State, now: Millis, leaseId: string): Promise<SwapResult> {
    const { store, clock, clockId, rtt, leases } = this.#context;
    const value = { by: clockId, at: now, numbers: [...state] };
    const replacement = { text: encodeValue(value), leaseId };
    const swapped = await store
      .compareAndSwap(this.#key, this.#revision, replacement)
      .catch((error: unknown) => {
        leases.clear(); // it may be the lease that is gone
        throw error;
      });
    rtt.observe(clock.now() - now);
    this.#onReply(swapped, now);
    if (!swapped.isMatch) {
      this.#contention = CONTENTION_SWAPS;
      return swapped;
    }
    this.#setValue(swapped.revision, value);
    this.#lastSwapAt = clock.now();
    this.#contention = Math.max(0, this.#contention - 1);
    return swapped;
  }

  /** What is there was so after it was asked, whenever that was heard. */
  #onReply(swapped: SwapResult, askedAt: Millis): void {
    const { policy, clockOffsets, clock } = this.#context;
    this.#context.onReply();
    this.#validAt = askedAt;
    if (swapped.isMatch) return;
    const { current } = swapped;
    const value = current && decodeValue(current.text, policy.width, this.#key);
    if (value) clockOffsets.observe(value.by, value.at, clock.now());
    this.#setValue(current?.revision ?? NO_REVISION, value);
  }

  #setValue(revision: string, value: RegisterValue | undefined): void {
    this.#revision = revision;
    this.#value = value;
    this.#localInstant = Infinity;
  }

  /** The numbers on our clock: what happened on another's happened at the latest it can have. */
  #localState(): State {
    const { policy, clock, clockOffsets, clockId } = this.#context;
    const state = new Float64Array(policy.width);
    if (!this.#value) {
      policy.init(state, 0, clock.now());
      return state;
    }
    const { by, numbers } = this.#value;
    const theirs = numbers[this.#instantIndex];
    state.set(numbers);
    const here = by === clockId ? theirs : clockOffsets.latestLocalTimeOf(by, theirs);
    this.#localInstant = Math.min(this.#localInstant, here);
    state[this.#instantIndex] = this.#localInstant;
    return state;
  }

  /** Who has won is the first to know what is there, and would win for ever: others are let in between. */
  async #yieldToContenders(): Promise<void> {
    const { clock, random, rtt } = this.#context;
    const isWinning = clock.now() - this.#lastSwapAt < rtt.meanMs;
    if (isWinning && (this.#contention > 0 || random() < YIELD_PROBABILITY)) await this.#backOff(1);
  }

  /** For a random part of so many trips. */
  #backOff(mostTrips: number): Promise<void> {
    const { clock, random, rtt } = this.#context;
    const at = clock.now() + rtt.meanMs * mostTrips * random();
    return new Promise((over) => {
      schedule(clock, at, over, false);
    });
  }
}

function resolveAll(operations: readonly RegisterOperation[], told: readonly unknown[]): void {
  for (const [n, operation] of operations.entries()) operation.resolve(told[n]);
}

function rejectCredits(operations: readonly RegisterOperation[]): void {
  const error = new UnavailableError('etcd', 'nobody knows whether it was given');
  for (const { isCredit, reject } of operations) if (isCredit) reject(error);
}
