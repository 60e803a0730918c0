/** What comes out of a call of the script. */

import { allow, type Decision, deny, NEVER, wait } from '../../core/decision.ts';

/** One answer: a number, or a text where a number would lose something. */
export type ReplyValue = string | number;

/** The answer to an ask: what is left, `w` and how long to wait, -1 for never, -2 and less for later. */
export function decisionOf(reply: ReplyValue): Decision {
  if (typeof reply === 'string' && reply.startsWith('w')) return wait(Number(reply.slice(1)));
  const value = Number(reply);
  if (value >= 0) return allow(value);
  return deny(value === -1 ? NEVER : -2 - value);
}
