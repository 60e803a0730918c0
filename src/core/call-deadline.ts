/**
 * Deadlines for replies. A deadline that passed while this process was blocked is no outage of the server.
 *
 *     timer ── late: the process was blocked ──▶ more time, a few times at most
 *       └───── on time ──▶ replies that have arrived are read ──▶ expired
 *
 * Each has a timer of its own. Where many calls run at once, `DeadlineSet` needs one timer for all.
 */

import { type Clock, type Millis, onImmediate, schedule } from './clock.ts';

/** How often a deadline is extended: if the process is blocked all the time, calls must still end. */
export const MAX_EXTENSIONS = 3;

/** A timer that is late by more than this part of its deadline shows that the process was blocked. */
const LATE_PART = 0.25;

/** One that is late by more than this shows it too, and an extension takes this long at most. */
const MAX_LATE_MS: Millis = 20;
const MAX_EXTENSION_MS: Millis = 200;

export const wasBlocked = (lateMs: Millis, deadlineMs: Millis): boolean =>
  lateMs > Math.min(MAX_LATE_MS, deadlineMs * LATE_PART);

/** Calls back when replies that have arrived have been read. One turn of the event loop may begin to read before they are there. */
export const afterReads = (callback: () => void): void => {
  onImmediate(() => onImmediate(callback));
};

/** Calls back when `deadlineMs` have passed after `from`; the returned function cancels it. */
export function scheduleDeadline(
  clock: Clock,
  from: Millis,
  deadlineMs: Millis,
  onExpired: () => void,
  keepAlive: boolean,
): () => void {
  let cancelTimer = (): void => {};
  let isCancelled = false;
  let extensions = 0;
  const wakeAt = (at: Millis): void => {
    cancelTimer = schedule(clock, at, () => onTimer(clock.now(), at), keepAlive);
  };
  const onTimer = (now: Millis, at: Millis): void => {
    if (wasBlocked(now - at, deadlineMs) && extensions++ < MAX_EXTENSIONS) {
      wakeAt(now + Math.min(deadlineMs, MAX_EXTENSION_MS));
      return;
    }
    afterReads(() => {
      if (!isCancelled) onExpired();
    });
  };
  wakeAt(from + deadlineMs);
  return () => {
    isCancelled = true;
    cancelTimer();
  };
}

export const noReplyWithin = (deadlineMs: Millis): Error =>
  new Error(`no reply within ${deadlineMs} ms`);

/** Rejects if the call has no result within `deadlineMs`. */
export function withDeadline<T>(clock: Clock, deadlineMs: Millis, call: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const expire = (): void => reject(noReplyWithin(deadlineMs));
    const cancel = scheduleDeadline(clock, clock.now(), deadlineMs, expire, false);
    call.finally(cancel).then(resolve, reject);
  });
}
