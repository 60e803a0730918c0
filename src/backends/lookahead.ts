/**
 * Lookahead: the time before the next permit of a spacing is due at which a waiting call may already be granted it.
 *
 * A queue that checks exactly when the permit is due is always late: by a timer, its jitter and a round trip. Therefore
 * it checks earlier, is granted the next permit and sleeps until it is due:
 *
 *     lookahead = round trip + timer lateness + jitter      usually 6 to 30 ms
 *
 * etcd grants at most one permit ahead. Redis grants all permits of two round trips ahead.
 */

import type { Millis } from '../core/clock.ts';
import type { Policy } from '../policies/policy.ts';
import { maxJitterMs } from './remote-backend.ts';

/** Timers are late by 1 to 2 ms, in a busy process by a few more. */
const TIMER_LATENESS_MS: Millis = 5;

/** 0 unless the limit is a spacing. */
export const lookaheadMs = (everyMs: Millis, rttMs: Millis): Millis =>
  everyMs > 0 ? rttMs + TIMER_LATENESS_MS + maxJitterMs(everyMs) : 0;

/** The interval of a limit that is one spacing; 0 for every other limit. */
export const everyMsOf = ({ rules, queue }: Policy): Millis =>
  rules.length === 1 ? (queue?.minIntervalMs ?? 0) : 0;
