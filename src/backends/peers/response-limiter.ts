/**
 * Nobody is answered more than so often.
 *
 * A node asks less often by itself. Somebody who recorded a question of a node that is not known yet may send it
 * as often as he likes; of one that is known, each counts once (`replay-window.ts`). And where questions are held up and
 * come all at once, as they do when a cut is healed, one answer would do for all of them.
 */

import type { Millis } from '../../core/clock.ts';

/** Who may ask: until when it has had its share of answers. */
export interface Asker {
  answeredTo: Millis;
}

/** What each answer takes of that share, and how much may come at once. */
const ANSWER_MS = { hello: 10, missing: 10, 'ask-state': 2, 'ask-levels': 10 } as const;
const AHEAD_MS: Millis = 200;

/** And what each report that is told again takes of it. */
const AGAIN_MS = 0.5;

/** Whether it has not been answered too often lately; counts this answer if so. */
export function mayAnswer(asker: Asker, question: keyof typeof ANSWER_MS, now: Millis): boolean {
  const to = Math.max(asker.answeredTo, now - AHEAD_MS) + ANSWER_MS[question];
  if (to > now) return false;
  asker.answeredTo = to;
  return true;
}

/** An answer told so many reports again. */
export function countAgain(asker: Asker, reports: number): void {
  asker.answeredTo += reports * AGAIN_MS;
}
