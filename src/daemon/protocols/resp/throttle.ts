/**
 * CL.THROTTLE with the replies of redis-cell (GCRA): the limit comes with the command.
 *
 *     CL.THROTTLE user123 15 30 60 1        burst 15, then 30 in 60 seconds; takes 1
 *     ──▶  0     allowed (1: limited)
 *          16    the limit: max_burst + 1
 *          15    remaining
 *          -1    retry after, in seconds; -1 if allowed, or never
 *          2     seconds until the limit is full again
 *
 * Seconds are rounded up, so that no client retries too early.
 */

import { NEVER } from '../../../core/decision.ts';
import { type Invocation, NOT_AN_INTEGER, type RespCommand } from './command.ts';

const SECOND_MS = 1000;

/** Fraction of a second that counts as rounding error. */
const ROUNDING_EPSILON = 1e-6;

const ceilSeconds = (ms: number): number =>
  Math.max(0, Math.ceil(ms / SECOND_MS - ROUNDING_EPSILON));

const tooLong = (maxToleranceMs: number): string =>
  `ERR (max_burst + 1) * period / count is over ${maxToleranceMs / SECOND_MS} seconds, the bounds.throttleTolerance`;

export function throttle({ args, reply, context }: Invocation): undefined {
  const { gcraTable } = context;
  const maxBurst = args.integer(2);
  const count = args.integer(3);
  const period = args.integer(4);
  const quantity = args.count > 5 ? args.integer(5) : 1;
  const { router } = context;
  if (router.overload.isShedding) {
    const { isOpen } = router.overload;
    router.overload.countShed(!isOpen);
    if (!isOpen)
      router.recordThrottled(
        args.source,
        args.startOf(1),
        args.endOf(1),
        quantity,
        SECOND_MS,
        true,
      );
    return reply.fiveIntegers(isOpen ? 0 : 1, maxBurst + 1, 0, isOpen ? -1 : 1, 0);
  }
  const isValid =
    !Number.isNaN(maxBurst + count + period + quantity) &&
    maxBurst < Number.MAX_SAFE_INTEGER &&
    gcraTable.throttle(
      args.source,
      args.startOf(1),
      args.endOf(1),
      maxBurst + 1,
      count,
      period * SECOND_MS,
      quantity,
    );
  if (!isValid) {
    const toleranceMs = ((maxBurst + 1) * period * SECOND_MS) / count;
    const isTooLong = count > 0 && quantity >= 0 && toleranceMs > gcraTable.maxToleranceMs;
    return reply.error(isTooLong ? tooLong(gcraTable.maxToleranceMs) : NOT_AN_INTEGER);
  }
  if (router.isSampleDue())
    router.countThrottled(gcraTable.keyHash, args.source, args.startOf(1), args.endOf(1));
  const { isLimited, retryAfterMs } = gcraTable;
  if (isLimited)
    router.recordThrottled(args.source, args.startOf(1), args.endOf(1), quantity, retryAfterMs);
  const retryAfter =
    isLimited && retryAfterMs !== NEVER ? Math.max(1, ceilSeconds(retryAfterMs)) : -1;
  const resetAfter = ceilSeconds(gcraTable.resetAfterMs);
  const { remaining } = gcraTable;
  return reply.fiveIntegers(isLimited ? 1 : 0, maxBurst + 1, remaining, retryAfter, resetAfter);
}

export const clThrottle: RespCommand = {
  name: 'cl.throttle',
  arity: -5,
  maxArity: 6,
  keyIndex: 1,
  takesEmptyKeys: true,
  summary: 'Checks a limit given with the command, as redis-cell does',
  usage: 'key max_burst count period [quantity]',
  run: throttle,
};
