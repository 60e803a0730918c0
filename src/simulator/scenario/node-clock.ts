/**
 * The clock of a simulated process. A frozen process (SIGSTOP) fires no timers and fires all overdue ones when it
 * resumes; a crashed one never fires them. Time passes for both.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import type { Timeline } from '../timeline.ts';

export class NodeClock implements Clock {
  readonly #timeline: Timeline;
  readonly #onTimer: () => void;
  #isFrozen = false;
  #isDead = false;
  #overdue: (() => void)[] = [];

  /** `onTimer` is called after every timer, because promises may have resolved. */
  constructor(timeline: Timeline, onTimer: () => void) {
    this.#timeline = timeline;
    this.#onTimer = onTimer;
  }

  now(): Millis {
    return this.#timeline.now;
  }

  wakeAt(at: Millis, callback: () => void): () => void {
    let isActive = true;
    const fire = (): void => {
      if (!isActive || this.#isDead) return;
      if (this.#isFrozen) {
        this.#overdue.push(fire);
        return;
      }
      isActive = false;
      callback();
      this.#onTimer();
    };
    this.#timeline.scheduleAt(at, fire);
    return () => {
      isActive = false;
    };
  }

  /** Resolves after `ms` on this clock. */
  sleep(ms: Millis): Promise<void> {
    return new Promise((resolve) => {
      this.wakeAt(this.now() + ms, resolve);
    });
  }

  freeze(): void {
    this.#isFrozen = true;
  }

  thaw(): void {
    this.#isFrozen = false;
    const overdue = this.#overdue;
    this.#overdue = [];
    for (const fire of overdue) fire();
  }

  kill(): void {
    this.#isDead = true;
    this.#overdue = [];
  }
}
