/**
 * Limits replies per requester (GCRA).
 *
 * A correct node stays within the limit. A recorded request of an unverified node can be replayed without bound; each
 * datagram of a peer counts once (`replay-window.ts`). Requests that a network partition delayed arrive together, and
 * one reply is enough for all of them.
 */

import type { Millis } from '../../core/clock.ts';
import type { MessageKind } from './messages.ts';

/** The theoretical arrival time: the time up to which the reply budget is spent. */
export interface Requester {
  replyBudgetUntil: Millis;
}

/** Cost of a reply by kind of request, and the burst. Other messages get no reply. */
const REPLY_COST_MS: { readonly [Kind in MessageKind]?: Millis } = {
  hello: 10,
  nack: 10,
  'state-request': 2,
  'levels-request': 10,
};
const REPLY_BURST_MS: Millis = 200;

const RETRANSMIT_COST_MS = 0.5;

/** Whether a reply is within the budget; if so, charges it. */
export function allowReply(requester: Requester, kind: MessageKind, now: Millis): boolean {
  const costMs = REPLY_COST_MS[kind];
  if (costMs === undefined) return true;
  const until = Math.max(requester.replyBudgetUntil, now - REPLY_BURST_MS) + costMs;
  if (until > now) return false;
  requester.replyBudgetUntil = until;
  return true;
}

export function chargeRetransmits(requester: Requester, reports: number): void {
  requester.replyBudgetUntil += reports * RETRANSMIT_COST_MS;
}
