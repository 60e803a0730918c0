import type { Clock, Millis } from '../core/clock.ts';
import { Heap } from '../core/heap.ts';
import { requireNumber } from '../core/options.ts';

/**
 * A clock that moves only when a test advances it.
 *
 *     const clock = new VirtualClock();
 *     const api = limiter({ limit: { spacing: { every: '6s' } }, clock });
 *     api.check('alice');    // allow
 *     api.check('alice');    // deny, retry after 6000
 *     clock.advance(6000);
 *     api.check('alice');    // allow
 */
export class VirtualClock implements Clock {
  #now: Millis;
  readonly #timers = new Heap<Timer>(
    (a, b) => a.at < b.at || (a.at === b.at && a.sequence < b.sequence),
  );
  #lastSequence = 0;
  /** Cancelled timers that are still in the heap. */
  #cancelled = 0;

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
      if (!timer.isActive) return;
      timer.isActive = false;
      if (++this.#cancelled > this.#timers.size / 2 + MAX_CANCELLED) {
        this.#timers.retain(({ isActive }) => isActive);
        this.#cancelled = 0;
      }
    };
  }

  /** Advances the time and calls the timers that are due on the way, each at its instant. */
  advance(span: Millis): void {
    requireNumber('span', span, { min: 0 });
    const end = this.#now + span;
    for (let next = this.#timers.peek(); next && next.at <= end; next = this.#timers.peek()) {
      this.#timers.pop();
      this.#now = Math.max(this.#now, next.at);
      if (!next.isActive) {
        this.#cancelled--;
        continue;
      }
      next.isActive = false;
      next.callback();
    }
    this.#now = Math.max(this.#now, end); // a callback may have advanced it further
  }

  /**
   * Advances like `advance`, but lets the promises that a timer resolves run to completion before the next timer.
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

/** Cancelled timers that may stay in the heap before it is rebuilt. */
const MAX_CANCELLED = 64;

interface Timer {
  readonly at: Millis;
  /** Timers of the same instant are called in the order they were set. */
  readonly sequence: number;
  readonly callback: () => void;
  isActive: boolean;
}

/** More microtask turns than the longest promise chain of this package needs. */
const MICROTASK_TURNS = 50;

/** Lets promises that are resolved run to completion. */
export async function drainMicrotasks(): Promise<void> {
  for (let n = 0; n < MICROTASK_TURNS; n++) await Promise.resolve();
}
