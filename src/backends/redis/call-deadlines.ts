/** Calls in flight with one deadline for all of them: a call without a reply by then is rejected. */

import { type Clock, type Millis, onImmediate } from '../../core/clock.ts';
import { DeadlineSet } from '../../core/deadline-set.ts';

interface PendingCall {
  readonly issuedAt: Millis;
  readonly onTimeout: () => unknown;
}

export class CallDeadlines {
  readonly #clock: Clock;
  readonly #deadlineMs: Millis;
  readonly #pending: DeadlineSet<PendingCall>;

  constructor(clock: Clock, deadlineMs: Millis) {
    this.#clock = clock;
    this.#deadlineMs = deadlineMs;
    this.#pending = new DeadlineSet(clock, deadlineMs, ({ onTimeout }) => onTimeout());
  }

  run<T>(call: Promise<T>): Promise<T> {
    return new Promise((resolve, reject) => {
      const expire = (): void => reject(new Error(`no reply within ${this.#deadlineMs} ms`));
      // If this process was busy, the reply has arrived and is read before the next immediate.
      const pending = { issuedAt: this.#clock.now(), onTimeout: () => onImmediate(expire) };
      this.#pending.add(pending);
      call.finally(() => this.#pending.remove(pending)).then(resolve, reject);
    });
  }
}
