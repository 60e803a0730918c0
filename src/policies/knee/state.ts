/** The numbers of the knee rule, for one key. */

import type { LimitCause } from '../policy.ts';

/** The rate is the median of so many windows: one pause does not change it. */
export const WINDOWS = 7;

export const START = 0;
export const HOLD = 1;
export const DRAIN = 2;
export const TEST = 3;

/** Why the limit last changed; 0: it has not. */
export const CAUSES: readonly LimitCause[] = [
  'start',
  'start',
  'test',
  'rate',
  'refusal',
  'silence',
];
export const BY_START = 1;
export const BY_TEST = 2;
export const BY_RATE = 3;
export const BY_REFUSAL = 4;
export const BY_SILENCE = 5;

export const TARGET = 0; //          the limit, with a fraction
export const LIMIT = 1; //           the whole limit of this window
export const CREDIT = 2; //          fractions not yet used
export const MODE = 3;
export const IN_FLIGHT = 4;
export const KEPT = 5; //            slots that a wrapper keeps for others in this window
export const SEEN_AT = 6; //         up to when the window has counted
export const CAUSE = 7; //           of the last change of the limit
// The window:
export const OPENED_AT = 8;
export const CALLS = 9; //           successes
export const BUSY_TIME = 10; //      calls in flight × time
export const FULL_TIME = 11; //      time with the limit reached
export const FAILURES = 12;
export const RTT_SUM = 13;
// What is known:
export const BASE_RTT = 14; //       NaN before the first measurement
export const RATE = 15; //           successes a millisecond at the limit
export const ANCHOR = 16; //         the limit after the last test
export const MEAN_RTT = 17; //       at the limit
export const RTT_MEAN = 18;
export const RTT_SQUARE = 19;
export const RTT_CALLS = 20;
// Hold:
export const RATES = 21; //          of the last windows
export const COUNTS = RATES + WINDOWS;
export const LIMITS = COUNTS + WINDOWS;
export const RING_SIZE = LIMITS + WINDOWS;
export const UPPER_CALLS = RING_SIZE + 1; // with one call more than the lower whole limit
export const UPPER_TIME = RING_SIZE + 2;
export const LOWER_CALLS = RING_SIZE + 3;
export const LOWER_TIME = RING_SIZE + 4;
export const SHARED = RING_SIZE + 5; //      elasticity despite a queue; 0: the queue is this client's own, 1: that of others
export const FREE = RING_SIZE + 6; //        windows in a row without a queue
export const FAR = RING_SIZE + 7; //         windows in a row that want to go further than allowed
export const QUICKER = RING_SIZE + 8; //     windows in a row that are quicker than the base RTT
export const REACHED = RING_SIZE + 9;
export const NEXT_TEST_AT = RING_SIZE + 10;
// The test:
export const TOP = RING_SIZE + 11; //        the limit before it
export const TOP_RATE = RING_SIZE + 12;
export const LEVEL = RING_SIZE + 13; //      the level that is tested
export const LAST_LEVEL = RING_SIZE + 14; // the one before it, with its rate and RTT
export const LAST_RATE = RING_SIZE + 15;
export const LAST_RTT = RING_SIZE + 16;
export const STAGE = RING_SIZE + 17;
export const END_AT = RING_SIZE + 18;
export const LAST_CHANGE = RING_SIZE + 19; // logarithm
export const TESTS = RING_SIZE + 20;
export const LOSS_FROM = RING_SIZE + 41; //  the limit before a sudden loss, until a test; 0: none
// The start:
export const START_CALLS = RING_SIZE + 21; //    calls of the levels that were no slower
export const START_SUM = RING_SIZE + 22; //  of their RTTs
export const START_RATE = RING_SIZE + 23; // the highest rate of any level
export const START_ENDED = RING_SIZE + 24; // 1: a level was slower
export const CAREFUL = RING_SIZE + 25; //    1: it began again, with more calls
// Refusals:
export const PACE = RING_SIZE + 26; //       calls a millisecond; Infinity without
export const NEXT_AT = RING_SIZE + 27; //    when the pace allows the next call
export const CUT_AT = RING_SIZE + 28;
export const EASING = RING_SIZE + 29;
export const EASED_AT = RING_SIZE + 30;
export const TROUBLE = RING_SIZE + 31; //    the rate that was refused
export const OK_AT = RING_SIZE + 32;
export const REFUSED_ROW = RING_SIZE + 33;
export const OK_SINCE_CUT = RING_SIZE + 34;
export const OUTAGE = RING_SIZE + 35; //     1: no call succeeds
export const SLOT = RING_SIZE + 36; //       the second that is counted
export const OK_NOW = RING_SIZE + 37;
export const OK_BEFORE = RING_SIZE + 38;
export const NO_NOW = RING_SIZE + 39;
export const NO_BEFORE = RING_SIZE + 40;
export const ON_GRID = RING_SIZE + 42; //    1: the test began at the same instant as those of all clients
export const SHARED_INFO = RING_SIZE + 43; // inverse variance of it
export const LOWER_LIMIT = RING_SIZE + 44; // the lower of the two whole limits
export const RAISED = RING_SIZE + 45; //     1: no call sent at this level has settled yet
export const WIDTH = RING_SIZE + 46;

/** The options of the rule; `max` is this member's part of it in a pool. */
export interface KneeTerms {
  readonly initial: number;
  readonly max: number;
}
