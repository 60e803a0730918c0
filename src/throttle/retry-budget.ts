/**
 * Retry budget: retries are at most a share of the calls of the last ten seconds.
 *
 *     retries ≤ max(budget × calls, minPerSecond × 10 s)
 *
 * Retries multiply the load of a server when it has least capacity. If calls time out because of a queue, their retries
 * keep the queue full, and the overload outlasts its cause (a metastable failure). A share bounds the load to
 * 1 + `budget` times the calls. The minimum lets a client with few calls retry at all.
 *
 * Calls and retries are counted by the second, in a ring:
 *
 *     second   … 41   42   43 …
 *     calls       7    9    2        current second: the oldest count is dropped when the next one begins
 *     retries     1    0    0
 */

import type { Clock } from '../core/clock.ts';

/** Seconds that count. */
const PERIOD_SECONDS = 10;

export class RetryBudget {
  readonly #clock: Clock;
  readonly #share: number;
  readonly #least: number;
  readonly #calls = new Float64Array(PERIOD_SECONDS);
  readonly #retries = new Float64Array(PERIOD_SECONDS);
  #second = -Infinity;

  constructor(clock: Clock, share: number, minPerSecond: number) {
    this.#clock = clock;
    this.#share = share;
    this.#least = minPerSecond * PERIOD_SECONDS;
  }

  /** A call makes its first attempt. */
  recordCall(): void {
    this.#calls[this.#slotOfNow()]++;
  }

  /** True if a retry is within the budget; it is counted then. */
  tryRetry(): boolean {
    const slot = this.#slotOfNow();
    const most = Math.max(this.#share * sumOf(this.#calls), this.#least);
    if (sumOf(this.#retries) + 1 > most) return false;
    this.#retries[slot]++;
    return true;
  }

  #slotOfNow(): number {
    const second = Math.max(this.#second, Math.floor(this.#clock.now() / 1000));
    const first = Math.max(this.#second + 1, second - PERIOD_SECONDS + 1);
    for (let n = first; n <= second; n++) this.#calls[slotOf(n)] = this.#retries[slotOf(n)] = 0;
    this.#second = second;
    return slotOf(second);
  }
}

/** Clocks may begin before zero. */
const slotOf = (second: number): number =>
  ((second % PERIOD_SECONDS) + PERIOD_SECONDS) % PERIOD_SECONDS;

function sumOf(counts: Float64Array): number {
  let sum = 0;
  for (const count of counts) sum += count;
  return sum;
}
