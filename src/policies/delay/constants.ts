import type { Millis } from '../../core/clock.ts';

/**
 * The constants that were tuned: unit, meaning, and the range in which the mean scores of one client and of several change
 * by less than 0.02, by `node bench/adaptive-constants.mjs`. Narrow: a sixth more or less already changes one.
 */
export const C = {
  // The reading of a window
  quick: 0.25, // part of the calls: the quickest, which show the queue [narrow]
  few: 24, // calls: the least that a window or a test needs; the start needs a sixth [24-36]
  memory: 256, // calls: memory of the mean round trip [90-768]
  sigma: 2, // standard errors that count as a difference [0.7-6]
  clip: 4, // mean round trips: a call that takes longer counts as this [3.4-12]
  // The limit
  slower: 0.1, // part of the round trip: a queue of this length ends the start [0.07-0.15]
  rounds: 1.5, // calls for each slot at a level of the start [0.5-1.5]
  room: 0.8, // calls: headroom above a knee; above a knee of 1 half of it [0.56-0.96]
  part: 0.02, // part of the knee: headroom beside it [0.01-0.06]
  gain: 0.4, // part of the way in one step: limit, averages, floor [0.2-0.48]
  grow: 2, // how much faster the limit grows with each further window in a row without a queue [0.7-6]
  step: 0.75, // part of the limit that one step leaves at least [0.26-0.9]
  // The test
  period: 10_000, // ms from test to test; ten tests at least [7-12 s]
  depth: 0.5, // part of the limit in a test [narrow]
  rtts: 3, // round trips of a test, and the most to drain before it [1.5-9]
  clean: 0.6, // part of the queue that a test must remove to show the floor [0.3-0.9]
  believe: 0.1, // part of the way if it did not remove the queue, doubled with each such test in a row [0.035-0.3]
  join: 2.5, // standard errors: quicker calls are a test of others; falls to a quarter until the next own test [1.75-3]
  rest: 0.3, // part of the period without a test after a test [0.11-0.36]
  // Complaints
  second: 1000, // ms: memory of the counts of replies; least silence; a quarter of it: least window [350-2000]
  tolerated: 0.02, // part of the calls that may be refused or lost [0.014-0.06]
  cut: 0.95, // part of the rate of successes at which a pace begins [0.81-1]
  ease: 0.005, // 1/s²: a pace grows by exp(ease t² / 2) [0.0018-0.015]
  silent: 5, // mean round trips without a reply that are silence [1.8-15]
} as const;

/** What was learnt about a service that has not been called for this long is dropped. */
export const STALE_MS: Millis = 60_000;
