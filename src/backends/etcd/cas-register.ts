/**
 * The register of one key: batches the operations of this process and applies them by compare-and-swap.
 *
 *     operations ──▶ applied as a batch to the last known value ──▶ swap if the revision is unchanged
 *                        ▲                                            │ it changed: take the current value
 *                        └────────────────────────────────────────────┘
 *
 * A batch that changes nothing needs no write, only a read that is newer than the batch. So every result refers to the
 * latest revision. An operation whose caller has timed out is not resolved, and the units it took are lost.
 *
 * A swap with an unknown outcome rejects its operations. If it succeeded, the units it took are lost. If it arrives
 * later, it meets another revision or makes the next swap fail. A swap is repeated if the first server does not reply.
 * If the repeated swap fails, it may have lost to itself: checks are decided again, credits are dropped.
 */

import type { Millis } from '../../core/clock.ts';
import { UnavailableError } from '../../core/errors.ts';
import type { Policy, State } from '../../policies/policy.ts';
import type { ClockOffsets } from './clock-offsets.ts';
import { ContendedQueue, type OperationHandle, type QueueContext } from './contended-queue.ts';
import type { DecisionTime } from './delayed-rule.ts';
import type { LeaseCache } from './leases.ts';
import { decodeValue, encodeValue, type RegisterValue } from './register-value.ts';
import { NO_REVISION, type RegisterStore, type SwapResult } from './store.ts';

/** Reads the state of the register, may change it, and resolves with the result of `apply`. */
export interface RegisterUpdate {
  /** `isNew`: the register has no value. */
  apply(state: State, moment: DecisionTime, isNew: boolean): unknown;
  /** True if it adds tokens: applied twice it would add them twice, so it is dropped if in doubt. */
  readonly isCredit: boolean;
  /** Id of the limit change that this operation belongs to: a register that has it is not changed again. */
  readonly changeId?: string;
}

export type RegisterOperation = RegisterUpdate & OperationHandle;

export interface RegisterContext extends QueueContext {
  readonly policy: Policy;
  readonly store: RegisterStore;
  /** The id of the local clock in other processes. */
  readonly clockId: string;
  readonly clockOffsets: ClockOffsets;
  readonly leases: LeaseCache;
}

export class CasRegister extends ContendedQueue<RegisterOperation> {
  readonly #key: string;
  #context: RegisterContext;
  readonly #instantIndices: readonly number[];
  /** The last instant at which the known value was certainly current. */
  #validAt: Millis = -Infinity;
  #revision = NO_REVISION;
  #value: RegisterValue | undefined;
  /** The instants of the state on the local clock: the earliest upper bounds known so far. */
  readonly #localInstants: Millis[];

  constructor(key: string, context: RegisterContext) {
    super(context);
    this.#key = key;
    this.#context = context;
    this.#instantIndices = context.policy.traits.instants;
    this.#localInstants = this.#instantIndices.map(() => Infinity);
  }

  /** Changes the numbers of the limit, from the next batch on. */
  usePolicy(policy: Policy): void {
    this.#context = { ...this.#context, policy };
  }

  protected async decideBatch(operations: readonly RegisterOperation[]): Promise<void> {
    const { clock, clockId, rtt, policy, leases } = this.#context;
    const startedAt = clock.now();
    for (let lost = 0; ; ) {
      const waiting = operations.filter(({ isWaiting }) => isWaiting);
      if (waiting.length === 0) return;
      if (this.isStale(this.#validAt)) await this.#refresh();
      const state = this.#localState();
      const moment = { now: clock.now(), maxDelayMs: rtt.upperBoundMs };
      let isChanged = false;
      const isNew = this.#value === undefined;
      let changeId = this.#value?.changeId;
      const results = waiting.map((operation) => {
        if (operation.changeId !== undefined && operation.changeId === changeId) return undefined;
        changeId = operation.changeId ?? changeId;
        const before = state.slice();
        const result = operation.apply(state, moment, isNew);
        // A converted register is written even if its numbers are equal: its lease is that of the new rule.
        isChanged ||= operation.changeId !== undefined && !isNew;
        isChanged ||= state.some((number, n) => number !== before[n]);
        return result;
      });
      // Returning a permit and taking it again counts as a change, because its instant may differ for other processes.
      if (!isChanged) {
        if (this.#validAt >= startedAt) return resolveAll(waiting, results);
        await this.#refresh();
        continue;
      }
      const freshAt = policy.freshAt(state, 0, false);
      const lease = leases.findValidUntil(freshAt);
      // A lease request or a back-off takes time, so the batch is decided again after both.
      if (!lease) {
        await leases.request(freshAt);
        continue;
      }
      const value = { by: clockId, at: moment.now, numbers: [...state], changeId };
      const swapped = await this.#compareAndSwap(value, lease.id);
      if (swapped.isMatch) return resolveAll(waiting, results);
      if (swapped.isAmbiguous) rejectCredits(waiting);
      await this.backOffAfter(++lost);
    }
  }

  async #refresh(): Promise<void> {
    const { store, clock } = this.#context;
    const sentAt = clock.now();
    this.#onReply(await store.compareAndSwap(this.#key, this.#revision), sentAt);
  }

  /** Replaces the known revision; fails if another process was faster. */
  async #compareAndSwap(value: RegisterValue, leaseId: string): Promise<SwapResult> {
    const { store, clock, rtt, leases } = this.#context;
    const replacement = { text: encodeValue(value), leaseId };
    const swapped = await store
      .compareAndSwap(this.#key, this.#revision, replacement)
      .catch((error: unknown) => {
        leases.clear(); // the lease may be gone
        throw error;
      });
    rtt.observe(clock.now() - value.at);
    this.#onReply(swapped, value.at);
    if (!swapped.isMatch) {
      this.noteLost();
      return swapped;
    }
    this.#setValue(swapped.revision, value);
    this.noteWon();
    return swapped;
  }

  /** A reply shows the register at some time after the request was sent. */
  #onReply(swapped: SwapResult, sentAt: Millis): void {
    const { policy, clockOffsets, clock } = this.#context;
    this.#context.onReply();
    this.#validAt = sentAt;
    if (swapped.isMatch) return;
    const { current } = swapped;
    const value = current && decodeValue(current.text, policy.width, this.#key);
    if (value) clockOffsets.observe(value.by, value.at, clock.now());
    this.#setValue(current?.revision ?? NO_REVISION, value);
  }

  #setValue(revision: string, value: RegisterValue | undefined): void {
    this.#revision = revision;
    this.#value = value;
    this.#localInstants.fill(Infinity);
  }

  /** The state on the local clock: each instant of another clock becomes the latest local time it can be. */
  #localState(): State {
    const { policy, clock, clockOffsets, clockId } = this.#context;
    const state = new Float64Array(policy.width);
    if (!this.#value) {
      policy.init(state, 0, clock.now());
      return state;
    }
    const { by, numbers } = this.#value;
    state.set(numbers);
    for (const [n, index] of this.#instantIndices.entries()) {
      const instant = numbers[index];
      const local = by === clockId ? instant : clockOffsets.latestLocalTimeOf(by, instant);
      this.#localInstants[n] = Math.min(this.#localInstants[n], local);
      state[index] = this.#localInstants[n];
    }
    return state;
  }
}

function resolveAll(operations: readonly RegisterOperation[], results: readonly unknown[]): void {
  for (const [n, operation] of operations.entries()) operation.resolve(results[n]);
}

function rejectCredits(operations: readonly RegisterOperation[]): void {
  const reason = 'the outcome of the swap is unknown, so the credit is not repeated';
  const error = new UnavailableError('etcd', reason);
  for (const { isCredit, reject } of operations) if (isCredit) reject(error);
}
