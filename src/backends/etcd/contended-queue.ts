/**
 * The queue of one key that several processes write by compare-and-swap: its operations are decided in batches.
 *
 *     operations ──▶ batch ──▶ swap ──▶ won: yields at random
 *                      ▲         │ lost: backs off for a random fraction of some round trips
 *                      └─────────┘
 *
 * Operations of one tick are decided together, and those that arrive during a swap in the next batch. Under contention,
 * random back-off separates swaps.
 */

import { type Clock, type Millis, onNextTick, schedule } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import type { RttEstimator } from '../rtt-estimator.ts';
import type { InFlightLimit } from './in-flight-limit.ts';

export interface OperationHandle {
  resolve(result: unknown): void;
  reject(error: unknown): void;
  /** False once the caller has its reply or has timed out. */
  isWaiting: boolean;
}

export interface QueueContext {
  readonly clock: Clock;
  readonly random: Random;
  readonly rtt: RttEstimator;
  readonly inFlightLimit: InFlightLimit;
  onReply(): void;
  onFailure(error: unknown): void;
}

/** The most operations in one swap. */
const MAX_BATCH_SIZE = 512;

/** After a lost swap, the key counts as contended until this many swaps are won. */
const CONTENTION_SWAPS = 8;

/** An older value is read again before use; under contention, a value older than one round trip. */
const MAX_VALUE_AGE_MS: Millis = 10_000;

/** The longest back-off after lost swaps, in round trips. */
const MAX_BACKOFF_RTTS = 4;

/** Probability that a process yields without known contention: otherwise it might never detect contention. */
const YIELD_PROBABILITY = 1 / 8;

export abstract class ContendedQueue<Operation extends OperationHandle> {
  readonly #context: QueueContext;
  #queue: Operation[] = [];
  #isDraining = false;
  /** Swaps that must be won until the key no longer counts as contended; 0 without contention. */
  #contention = 0;
  #lastSwapAt: Millis = -Infinity;

  constructor(context: QueueContext) {
    this.#context = context;
  }

  /** Decides all operations. If it rejects, they are rejected with its error. */
  protected abstract decideBatch(operations: readonly Operation[]): Promise<void>;

  get isIdle(): boolean {
    return !this.#isDraining;
  }

  enqueue(operation: Operation): void {
    this.#queue.push(operation);
    if (this.#isDraining) return;
    this.#isDraining = true;
    onNextTick(() => this.#drain());
  }

  /** Takes the key out of use until `release`; false if it is in use. Operations wait meanwhile. */
  protected tryHold(): boolean {
    if (this.#isDraining) return false;
    this.#isDraining = true;
    return true;
  }

  protected release(): void {
    onNextTick(() => this.#drain());
  }

  async #drain(): Promise<void> {
    while (this.#queue.length > 0) {
      await this.#yieldToContenders();
      await this.#context.inFlightLimit.run(() => this.#runBatch());
    }
    this.#isDraining = false;
  }

  async #runBatch(): Promise<void> {
    const operations = this.#queue.splice(0, MAX_BATCH_SIZE);
    try {
      await this.decideBatch(operations);
    } catch (error) {
      this.#context.onFailure(error);
      for (const { reject } of operations) reject(error);
    }
  }

  /** Whether a value last current at `validAt` must be read again before use: a read costs less than a lost swap. */
  protected isStale(validAt: Millis): boolean {
    const { clock, rtt } = this.#context;
    return clock.now() - validAt > (this.#contention > 0 ? rtt.meanMs : MAX_VALUE_AGE_MS);
  }

  protected noteWon(): void {
    this.#lastSwapAt = this.#context.clock.now();
    this.#contention = Math.max(0, this.#contention - 1);
  }

  protected noteLost(): void {
    this.#contention = CONTENTION_SWAPS;
  }

  /** Backs off after `lost` lost swaps; the first retry follows at once. */
  protected async backOffAfter(lost: number): Promise<void> {
    if (lost > 1) await this.#backOff(Math.min(lost, MAX_BACKOFF_RTTS));
  }

  /** Yields after a won swap: the winner knows the new revision first and would keep winning. */
  async #yieldToContenders(): Promise<void> {
    const { clock, random, rtt } = this.#context;
    const isWinning = clock.now() - this.#lastSwapAt < rtt.meanMs;
    if (isWinning && (this.#contention > 0 || random() < YIELD_PROBABILITY)) await this.#backOff(1);
  }

  /** Full jitter: a random fraction of `maxRtts` round trips. Keeps the process alive, because callers wait. */
  #backOff(maxRtts: number): Promise<void> {
    const { clock, random, rtt } = this.#context;
    const at = clock.now() + rtt.meanMs * maxRtts * random();
    return new Promise((resolve) => {
      schedule(clock, at, resolve, true);
    });
  }
}
