/** One deadline for all calls in flight. On Cloudflare Workers a timer ends with its request: there each call has one. */

import { noReplyWithin, withDeadline } from '../../core/call-deadline.ts';
import { type Clock, type Millis, onImmediate, timersEndWithRequest } from '../../core/clock.ts';
import { DeadlineSet } from '../../core/deadline-set.ts';

interface PendingCall {
  readonly issuedAt: Millis;
  readonly onTimeout: () => unknown;
}

export class CallDeadlines {
  readonly #clock: Clock;
  readonly #deadlineMs: Millis;
  readonly #pending: DeadlineSet<PendingCall>;
  readonly #hasOwnTimers: boolean;

  constructor(clock: Clock, deadlineMs: Millis, hasOwnTimers = timersEndWithRequest) {
    this.#clock = clock;
    this.#deadlineMs = deadlineMs;
    this.#hasOwnTimers = hasOwnTimers;
    this.#pending = new DeadlineSet(clock, deadlineMs, ({ onTimeout }) => onTimeout());
  }

  run<T>(call: Promise<T>): Promise<T> {
    if (this.#hasOwnTimers) return withDeadline(this.#clock, this.#deadlineMs, call);
    return new Promise((resolve, reject) => {
      const expire = (): void => reject(noReplyWithin(this.#deadlineMs));
      // If this process was busy, the reply has arrived and is read before the next immediate.
      const pending = { issuedAt: this.#clock.now(), onTimeout: () => onImmediate(expire) };
      this.#pending.add(pending);
      const end = () => this.#pending.remove(pending);
      call.then(end, end); // `finally` would cost several promises
      call.then(resolve, reject);
    });
  }
}
