/**
 * A waiting call takes from all of its limits, or from none.
 *
 *     waits in the queue of one limit, holding nothing ──▶ takes from the other limits ──▶ admitted
 *                            ▲                                  │ one refuses: everything is given
 *                            └──────────────────────────────────┘ back, and the call waits there
 *
 * All local limits are one queue position (`limiter/composite-limiter.ts`); each remote limit is another one.
 */

import { UNAVAILABLE_RETRY_MS } from '../../backends/remote-limit.ts';
import type { Clock, Millis } from '../../core/clock.ts';
import { type Decision, deny, WHEN_SETTLED } from '../../core/decision.ts';
import type { AsyncLimiter } from '../../limiter/async-limiter.ts';
import type { CompositeLimiter } from '../../limiter/composite-limiter.ts';
import type { AcquireOptions } from '../../limiter/limiter-interface.ts';
import { type Permit, Refusal } from '../../limiter/permit.ts';
import type { RemoteCall } from '../../limiter/remote-charge.ts';
import type { SyncLimiter } from '../../limiter/sync-limiter.ts';
import type { CheckResult } from './request.ts';

/** All local limits of a call as one. */
export interface LocalCall {
  readonly limits: CompositeLimiter;
  /** Without those on calls in flight. */
  readonly counting: CompositeLimiter | undefined;
  readonly key: string;
  readonly cost: number;
}

/** A call on one limit or several, of one check or several. */
export interface WaitingCall {
  /** Also of limits in shadow mode. A reload that replaces one makes it another call. */
  readonly limiters: readonly (SyncLimiter | AsyncLimiter)[];
  /** The key of the first check: calls of one key have one queue, and are one flow. */
  readonly key: string;
  readonly wantsPermit: boolean;
  /** Undefined together with an empty `remote`: no limit counts the call. */
  readonly local: LocalCall | undefined;
  readonly remote: readonly RemoteCall[];
  /** Decides where no limit counts. */
  decideUncounted(): CheckResult | Promise<CheckResult>;
  /** Completes the call when all limits have admitted it. */
  admit(remaining: number, permits: readonly Permit[]): CheckResult;
  /** The call by the configuration of now; undefined if a limit that it names is gone. */
  reroute(): WaitingCall | undefined;
}

/** The grant of one limit, or of all local limits together. */
interface Grant {
  readonly remaining: number;
  readonly permits: readonly Permit[];
  giveBack(): void;
}

type Part = (options: AcquireOptions) => Promise<Grant | Refusal>;

type WaitOptions = Omit<AcquireOptions, 'wait' | 'signal'> & { readonly signal: AbortSignal };

/** False if the configuration decides, or limits in shadow mode only count. */
export const isCounted = ({ local, remote }: WaitingCall): boolean =>
  local !== undefined || remote.length > 0;

export const clockOf = ({ limiters }: WaitingCall): Clock => limiters[0].clock;

/** True if the call would not wait, as far as this process knows. */
export const isFree = ({ local, remote }: WaitingCall): boolean =>
  remote.length === 0 && local !== undefined && !isHeldBack(local);

export const hasSameLimits = (one: WaitingCall, other: WaitingCall): boolean =>
  one.limiters.length === other.limiters.length &&
  one.limiters.every((limiter, n) => limiter === other.limiters[n]);

/** Takes from all limits or from none, until the time is over. Rejects if the signal aborts. */
export async function takeWaiting(
  call: WaitingCall,
  until: Millis,
  options: WaitOptions,
): Promise<CheckResult> {
  const clock = clockOf(call);
  const parts = partsOf(call);
  for (let at = firstPart(call); ; ) {
    const wait = Math.max(0, until - clock.now());
    const taken = await takeAll(parts, at, { ...options, wait });
    if ('grants' in taken) {
      const remaining = Math.min(...taken.grants.map((grant) => grant.remaining));
      return call.admit(
        remaining,
        taken.grants.flatMap(({ permits }) => permits),
      );
    }
    const { refusal, part } = taken;
    const isFinal = part === at || refusal.reason === 'never' || clock.now() >= until;
    if (isFinal) return refusalResult(refusal, call);
    at = part;
  }
}

/** Where a call waits first: at the local limits if they refuse it, else at a remote one, which may have a queue. */
const firstPart = ({ local, remote }: WaitingCall): number =>
  local && !isHeldBack(local) && remote.length > 0 ? 1 : 0;

const isHeldBack = ({ limits, key, cost }: LocalCall): boolean =>
  limits.hasWaiters(key) || limits.peek(key, cost).verdict === 'deny';

/** Waits at the part `at`, then takes from the others without waiting; else gives everything back. */
async function takeAll(
  parts: readonly Part[],
  at: number,
  options: AcquireOptions & { readonly signal: AbortSignal },
): Promise<{ grants: readonly Grant[] } | { refusal: Refusal; part: number }> {
  const grants: Grant[] = [];
  const giveBack = (): void => {
    for (const grant of grants) grant.giveBack();
  };
  const order = [at, ...parts.keys()].filter((part, n) => n === 0 || part !== at);
  try {
    for (const part of order) {
      const grant = await parts[part](part === at ? options : { ...options, wait: false });
      if (grant instanceof Refusal) {
        giveBack();
        return { refusal: grant, part };
      }
      grants.push(grant);
    }
    options.signal.throwIfAborted(); // the client has left since the last grant
  } catch (error) {
    giveBack();
    throw error;
  }
  return { grants };
}

/** All local limits as one, then each remote one. */
function partsOf({ local, remote, wantsPermit }: WaitingCall): readonly Part[] {
  const others = remote.map(remotePart);
  return local ? [localPart(local, wantsPermit), ...others] : others;
}

const localPart =
  ({ limits, counting, key, cost }: LocalCall, wantsPermit: boolean): Part =>
  async (options) => {
    if (wantsPermit) return toGrant(await limits.acquire(key, cost, options));
    const result = await limits.checkWaiting(key, cost, options);
    if (result instanceof Refusal) return result;
    const giveBack = (): void => counting?.settle(key, { outcome: 'ignored', cost });
    return { remaining: remainingOf(result), permits: [], giveBack };
  };

const remotePart =
  ({ limiter, key, cost }: RemoteCall): Part =>
  async (options) =>
    toGrant(await limiter.acquire(key, cost, options));

const remainingOf = (decision: Decision): number =>
  decision.verdict === 'allow' ? decision.remaining : UNKNOWN;

const UNKNOWN = Number.MAX_SAFE_INTEGER;

const toGrant = (permit: Permit | Refusal): Grant | Refusal =>
  permit instanceof Refusal
    ? permit
    : {
        remaining: permit.remaining ?? UNKNOWN,
        permits: [permit],
        giveBack: () => permit.settle({ outcome: 'ignored' }),
      };

/** The refusal of a remote queue says 0 if the queue does not know when the limit opens. */
async function refusalResult(refusal: Refusal, { remote }: WaitingCall): Promise<CheckResult> {
  const { limit, retryAfterMs, reason, rule } = refusal;
  const call = remote.find(({ limiter }) => limiter.name === limit);
  if (call && reason === 'too-long' && retryAfterMs === WHEN_SETTLED) return remoteRefusal(call);
  const decision = rule === undefined ? deny(retryAfterMs) : { ...deny(retryAfterMs), rule };
  if (reason === 'queue-full') return { decision, limit, reason };
  const isUnavailable = reason === 'unavailable' || reason === 'closed';
  return { decision, limit, ...(isUnavailable && { reason: 'unavailable' as const }) };
}

async function remoteRefusal({ limiter, key, cost }: RemoteCall): Promise<CheckResult> {
  const { name: limit } = limiter;
  const peeked = await limiter.peek(key, cost);
  if (peeked === undefined)
    return { decision: deny(UNAVAILABLE_RETRY_MS), limit, reason: 'unavailable' };
  return { decision: peeked.verdict === 'deny' ? peeked : deny(0), limit };
}

/** A refusal with the time after which the call may fit. */
export async function refusalNow({ local, remote }: WaitingCall): Promise<CheckResult> {
  const decision = local?.limits.peek(local.key, local.cost);
  if (decision?.verdict === 'deny' || remote.length === 0) {
    const limit = local?.limits.refusingLimit(local.key, local.cost) ?? '';
    return { decision: decision?.verdict === 'deny' ? decision : deny(0), limit };
  }
  return remoteRefusal(remote[0]);
}
