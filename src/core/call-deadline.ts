/** A call with a deadline and a timer of its own. Where many calls run at once, `DeadlineSet` needs one timer for all. */

import { type Clock, type Millis, onImmediate, schedule } from './clock.ts';

export const noReplyWithin = (deadlineMs: Millis): Error =>
  new Error(`no reply within ${deadlineMs} ms`);

/** Rejects if the call has no result within `deadlineMs`. */
export function withDeadline<T>(clock: Clock, deadlineMs: Millis, call: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const expire = (): void => reject(noReplyWithin(deadlineMs));
    // If this process was busy, the reply has arrived and is read before the next immediate.
    const onDeadline = (): unknown => onImmediate(expire);
    const cancel = schedule(clock, clock.now() + deadlineMs, onDeadline, false);
    call.finally(cancel).then(resolve, reject);
  });
}
