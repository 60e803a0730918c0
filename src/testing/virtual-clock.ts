import type { Clock, Millis } from '../core/clock.ts';
import { Heap } from '../core/heap.ts';
import { requireNumber } from '../core/options.ts';

/**
 * A clock that moves only when told to.
 *
 * Public on purpose: whoever limits with this package will want to test without sleeping too.
 *
 *     const clock = new VirtualClock();
 *     const api = limiter({ limit: { spacing: { every: '6s' } }, clock });
 *     api.ask('alice');      // allow
 *     api.ask('alice');      // deny, retry after 6000
 *     clock.advance(6000);
 *     api.ask('alice');      // allow
 */
export class VirtualClock implements Clock {
  #now: Millis;
  readonly #timers = new Heap<Timer>(
    (a, b) => a.at < b.at || (a.at === b.at && a.sequence < b.sequence),
  );
  #lastSequence = 0;

  constructor(now: Millis = 0) {
    this.#now = now;
  }

  now(): Millis {
    return this.#now;
  }

  wakeAt(at: Millis, callback: () => void): () => void {
    const timer: Timer = { at, sequence: ++this.#lastSequence, callback, isActive: true };
    this.#timers.push(timer);
    return () => {
      timer.isActive = false;
    };
  }

  /** Moves time on, never back, and wakes whoever wanted to be woken on the way. */
  advance(span: Millis): void {
    requireNumber('span', span, { min: 0 });
    const end = this.#now + span;
    for (let next = this.#timers.peek(); next && next.at <= end; next = this.#timers.peek()) {
      this.#timers.pop();
      this.#now = Math.max(this.#now, next.at);
      if (next.isActive) next.callback();
    }
    this.#now = Math.max(this.#now, end); // somebody who was woken may have moved it further
  }

  /**
   * Moves time on like `advance`, but lets everybody who was woken finish what they do (promises
   * and all) before time goes on to the next alarm.
   */
  async advanceAsync(span: Millis): Promise<void> {
    requireNumber('span', span, { min: 0 });
    const end = this.#now + span;
    await drainMicrotasks();
    for (let next = this.#timers.peek(); next && next.at <= end; next = this.#timers.peek()) {
      this.advance(Math.max(0, next.at - this.#now));
      await drainMicrotasks();
    }
    this.advance(Math.max(0, end - this.#now));
    await drainMicrotasks();
  }
}

interface Timer {
  readonly at: Millis;
  /** Whoever set its alarm first is woken first. */
  readonly sequence: number;
  readonly callback: () => void;
  isActive: boolean;
}

/** More turns of the promise queue than any chain of ours is long. */
const MICROTASK_TURNS = 50;

async function drainMicrotasks(): Promise<void> {
  for (let n = 0; n < MICROTASK_TURNS; n++) await Promise.resolve();
}
