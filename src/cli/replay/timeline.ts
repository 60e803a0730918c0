/**
 * Calls over time, in a bounded number of steps whatever the log spans: when they do not suffice, steps are joined to
 * longer ones. Each length is a multiple of the one before, so that steps begin at whole minutes, hours or days.
 */

import type { Millis } from '../../core/clock.ts';

const MAX_STEPS = 480;

/** Seconds, minutes, hours and days of the log's zone; further ones are four times as long each. */
const STEP_SECONDS = [
  1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 604_800,
];

interface TimelineStep {
  readonly at: Millis;
  readonly calls: number;
  readonly denied: number;
}

export class Timeline {
  readonly #zoneMs: Millis;
  #level = 0;
  #first = 0;
  #length = 0;
  #calls = new Float64Array(MAX_STEPS);
  #denied = new Float64Array(MAX_STEPS);

  constructor(zoneMinutes: number) {
    this.#zoneMs = zoneMinutes * 60_000;
  }

  get stepMs(): Millis {
    return stepMsOf(this.#level);
  }

  /** Times never decrease. */
  add(at: Millis, isDenied: boolean): void {
    let step = this.#stepOf(at);
    if (this.#length === 0) this.#first = step;
    while (step - this.#first >= MAX_STEPS) {
      this.#join();
      step = this.#stepOf(at);
    }
    const n = step - this.#first;
    if (n >= this.#length) this.#length = n + 1;
    this.#calls[n]++;
    if (isDenied) this.#denied[n]++;
  }

  /** The steps, joined until there are at most `most`. */
  steps(most: number): { readonly stepMs: Millis; readonly steps: readonly TimelineStep[] } {
    const copy = new Timeline(this.#zoneMs / 60_000);
    copy.#level = this.#level;
    copy.#first = this.#first;
    copy.#length = this.#length;
    copy.#calls = this.#calls.slice();
    copy.#denied = this.#denied.slice();
    while (copy.#length > Math.max(1, most)) copy.#join();
    const { stepMs } = copy;
    const steps = Array.from({ length: copy.#length }, (_, n) => ({
      at: (copy.#first + n) * stepMs - this.#zoneMs,
      calls: copy.#calls[n],
      denied: copy.#denied[n],
    }));
    return { stepMs, steps };
  }

  #stepOf(at: Millis): number {
    return Math.floor((at + this.#zoneMs) / this.stepMs);
  }

  /** Joins steps to those of the next length. */
  #join(): void {
    const ratio = stepMsOf(this.#level + 1) / this.stepMs;
    const first = Math.floor(this.#first / ratio);
    const [calls, denied] = [new Float64Array(MAX_STEPS), new Float64Array(MAX_STEPS)];
    let length = 0;
    for (let n = 0; n < this.#length; n++) {
      const to = Math.floor((this.#first + n) / ratio) - first;
      calls[to] += this.#calls[n];
      denied[to] += this.#denied[n];
      length = to + 1;
    }
    this.#level++;
    this.#first = first;
    this.#length = length;
    this.#calls = calls;
    this.#denied = denied;
  }
}

function stepMsOf(level: number): Millis {
  const last = STEP_SECONDS.length - 1;
  return STEP_SECONDS[Math.min(level, last)] * 4 ** Math.max(0, level - last) * 1000;
}
