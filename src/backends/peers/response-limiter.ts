/**
 * Nobody is answered more than so often.
 *
 * A node asks less often by itself. Somebody who recorded a question of a node that is not known yet may send it
 * as often as he likes; of one that is known, each counts once (`replay-window.ts`). And where questions are held up and
 * come all at once, as they do when a cut is healed, one answer would do for all of them.
 */

import type { Millis } from '../../core/clock.ts';

/** Who may ask: until when it has had its share of answers. */
export interface Requester {
  replyBudgetUntil: Millis;
}

/** What each answer takes of that share, and how much may come at once. */
const REPLY_COST_MS = { hello: 10, nack: 10, 'state-request': 2, 'levels-request': 10 } as const;
const REPLY_BURST_MS: Millis = 200;

/** And what each report that is told again takes of it. */
const RETRANSMIT_COST_MS = 0.5;

/** Whether it has not been answered too often lately; counts this answer if so. */
export function allowReply(
  requester: Requester,
  request: keyof typeof REPLY_COST_MS,
  now: Millis,
): boolean {
  const to = Math.max(requester.replyBudgetUntil, now - REPLY_BURST_MS) + REPLY_COST_MS[request];
  if (to > now) return false;
  requester.replyBudgetUntil = to;
  return true;
}

/** An answer told so many reports again. */
export function chargeRetransmits(requester: Requester, reports: number): void {
  requester.replyBudgetUntil += reports * RETRANSMIT_COST_MS;
}
