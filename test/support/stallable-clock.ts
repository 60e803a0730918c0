import { type Clock, type Millis, schedule, systemClock } from '../../src/core/clock.ts';

/**
 * The clock of a process that can be suspended, as by SIGSTOP: meanwhile no timer fires, and time passes.
 * The caller makes no calls for the process while it is suspended.
 */
export class StallableClock implements Clock {
  readonly #inner: Clock;
  #isStalled = false;
  readonly #overdue = new Set<() => void>();

  constructor(inner: Clock) {
    this.#inner = inner;
  }

  now(): Millis {
    return this.#inner.now();
  }

  wakeAt(at: Millis, callback: () => void, keepAlive: boolean): () => void {
    const fire = (): unknown => (this.#isStalled ? this.#overdue.add(callback) : callback());
    const cancel = schedule(this.#inner, at, fire, keepAlive);
    return () => {
      cancel();
      this.#overdue.delete(callback);
    };
  }

  stall(): void {
    this.#isStalled = true;
  }

  /** Ends the suspension. The process may make calls before `fireOverdue`, as one that wakes up. */
  resume(): void {
    this.#isStalled = false;
  }

  fireOverdue(): void {
    for (const callback of this.#overdue) callback();
    this.#overdue.clear();
  }
}

/** The system clock without some timers, by the time until they fire: heartbeats or renewals that must not help. */
export const systemClockWithout = (isDropped: (inMs: Millis) => boolean): Clock => ({
  now: () => systemClock.now(),
  wakeAt: (at, act, keepAlive) =>
    isDropped(at - systemClock.now()) ? () => {} : schedule(systemClock, at, act, keepAlive),
});
