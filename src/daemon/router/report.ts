import type { AttemptOutcome, Decision } from '../../core/decision.ts';
import { ConfigError } from '../../core/errors.ts';
import { internalsOf } from '../../limiter/internals.ts';
import { REPORTABLE } from '../../limiter/limiter-core.ts';
import type { RoutedRequest } from './request.ts';
import { limiterKeyOf } from './route.ts';

/**
 * Resolves to the number of limits that got the report: 0 where a list or a ban decides.
 * @throws {ConfigError} if limits apply to the key, and none has a lock-out.
 */
export async function reportAttempt(
  { route, key }: RoutedRequest,
  attempt: AttemptOutcome,
): Promise<number> {
  const told = route.applied.filter(({ limiter }) => internalsOf(limiter as unknown).takesReports);
  if (told.length === 0 && route.staticVerdict === undefined)
    throw new ConfigError('limit', REPORTABLE, route.applied.map(({ name }) => name).join(', '));
  await Promise.all(
    told.map((applied) => applied.limiter.report(limiterKeyOf(applied, key), attempt)),
  );
  return told.length;
}

/** True if a lock-out refused. */
export const isLocked = (decision: Decision): boolean =>
  decision.verdict === 'deny' && decision.reason === 'locked';
