/**
 * How `bounds.drain` is divided: calls that wait are refused after 90 % of it, and connections are destroyed at its end.
 *
 *     SIGTERM ── 90 %: waiting calls are admitted ──▶ refused ── 10 %: refusals are sent ──▶ connections are destroyed
 *
 * The last part begins when the first has ended. So refusals are sent also if the process stalled at the end of the first.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';

const ADMITTING_PART = 0.9;

/** When calls that wait are refused. */
export const admittingMsOf = (drainMs: Millis): Millis => Math.floor(drainMs * ADMITTING_PART);

/** Calls back at the end; returns a function that cancels. */
export function scheduleDrainEnd(clock: Clock, drainMs: Millis, end: () => void): () => void {
  const admittingMs = admittingMsOf(drainMs);
  const beginSending = (): void => {
    cancel = schedule(clock, clock.now() + drainMs - admittingMs, end, true);
  };
  let cancel = schedule(clock, clock.now() + admittingMs, beginSending, true);
  return () => cancel();
}
