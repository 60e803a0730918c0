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
import type { Formula } from '../../policies/policy.ts';
import { jitterMsMax } from '../remote-backend.ts';

/** Timers are late by a millisecond or two; a busy process by a few more. */
const TIMER_MS = 5;

/** How much a single trip counts. */
const NEWEST = 0.2;

export class Lead {
  readonly #isSpaced: boolean;
  readonly #slackMs: Millis;
  #tripMs: Millis = 0;

  constructor(formulas: readonly Formula[]) {
    const [first] = formulas;
    this.#isSpaced = formulas.length === 1 && first.kind === 'spacing';
    const everyMs = this.#isSpaced ? first.numbers[0] : 0;
    this.#slackMs = TIMER_MS + jitterMsMax(everyMs);
  }

  get ms(): Millis {
    return this.#isSpaced ? this.#slackMs + this.#tripMs : 0;
  }

  /** A trip took so long. */
  seen(tripMs: Millis): void {
    this.#tripMs += (tripMs - this.#tripMs) * NEWEST;
  }
}
