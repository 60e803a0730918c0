import type { Millis } from '../../core/clock.ts';
import { allow, type Decision, NEVER, wait } from '../../core/decision.ts';
import type { ScriptReply } from './client.ts';
import { RESERVED_ERROR } from './lua-reservations.ts';

type Denied = Extract<Decision, { verdict: 'deny' }>;

/** A number; a string where an integer reply would lose the fraction. */
export type ReplyValue = string | number;

/** Receives a reply and its time on Redis's clock. */
export type OnReply = (value: ReplyValue, at: Millis) => void;

/** A reply and its time on Redis's clock. */
export interface TimedReply {
  readonly value: ReplyValue;
  readonly at: Millis;
}

/** The reply to a one-way command that arrived too late to be executed. */
export const NOT_EXECUTED = 'late';

/** The time of a reply, which may be a late one. */
export const redisTimeOf = ([first]: ScriptReply): Millis =>
  Number(String(first).replace('late ', ''));

export const isReservedError = (error: unknown): boolean =>
  error instanceof Error && error.message.includes(RESERVED_ERROR);

/**
 * Reads the reply to a check: `remaining`, `w<ms>` to wait, -1 for never, -2 - ms for a refusal, `L<ms>` if locked. The
 * refusal of several rules ends with `#` and the number of the rule that refused, from 1.
 */
export function decisionOf(reply: ReplyValue, ruleNames: readonly string[] = []): Decision {
  if (typeof reply === 'string' && reply.includes('#')) {
    const [refusal, number] = reply.split('#');
    return { ...deniedOf(refusal), rule: ruleNames[Number(number) - 1] };
  }
  if (typeof reply === 'string' && reply.startsWith('w')) return wait(Number(reply.slice(1)));
  const value = Number(reply);
  return value >= 0 ? allow(value) : deniedOf(reply);
}

function deniedOf(reply: ReplyValue): Denied {
  if (typeof reply === 'string' && reply.startsWith('L'))
    return { verdict: 'deny', retryAfterMs: Number(reply.slice(1)), reason: 'locked' };
  const value = Number(reply);
  return { verdict: 'deny', retryAfterMs: value === -1 ? NEVER : -2 - value };
}

/** A decision. For a permit also its due time and fencing token; both are 0 where they do not apply. */
export interface GrantReply {
  readonly decision: Decision;
  readonly dueInMs: Millis;
  readonly token: number;
}

/** Reads `<remaining> <due in ms> <token>` of a permit, or a refusal. */
export function grantOf(reply: ReplyValue, ruleNames?: readonly string[]): GrantReply {
  const [first, dueIn = 0, token = 0] = String(reply).split(' ');
  return { decision: decisionOf(first, ruleNames), dueInMs: Number(dueIn), token: Number(token) };
}
