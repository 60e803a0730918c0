/**
 * How long before a place opens a line may have it.
 *
 * Where calls are kept apart, a line that asks when it was told to comes a little late each time: a
 * timer, a random moment, the way to Redis. On every place, all of that is lost. So who stands in line
 * may come a little early, gets the next place before it opens and sleeps the rest; the place itself
 * is not a moment early. What is handed out ahead is one place, and as little time as will do:
 *
 *     the way there and back  +  what timers need  +  the random moment     most often 6 to 30 ms
 */

import type { Millis } from '../../core/clock.ts';
import type { Policy } from '../../policies/policy.ts';
import { maxJitterMs } from '../remote-backend.ts';

/** Timers are late by a millisecond or two; a busy process by a few more. */
const TIMER_LATENESS_MS = 5;

/** How much a single trip counts. */
const RTT_WEIGHT = 0.2;

export class Lookahead {
  readonly #isSpacing: boolean;
  readonly #marginMs: Millis;
  #rttMs: Millis = 0;

  constructor({ specs, minIntervalMs: everyMs = 0 }: Pick<Policy, 'specs' | 'minIntervalMs'>) {
    this.#isSpacing = specs?.length === 1 && everyMs > 0;
    this.#marginMs = TIMER_LATENESS_MS + maxJitterMs(this.#isSpacing ? everyMs : 0);
  }

  get ms(): Millis {
    return this.#isSpacing ? this.#marginMs + this.#rttMs : 0;
  }

  /** A trip took so long. */
  observeRtt(rttMs: Millis): void {
    this.#rttMs += (rttMs - this.#rttMs) * RTT_WEIGHT;
  }
}
