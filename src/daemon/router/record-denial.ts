import { UNAVAILABLE_RETRY_MS } from '../../backends/remote-limit.ts';
import { type Decision, deny } from '../../core/decision.ts';
import { AsyncLimiter } from '../../limiter/async-limiter.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import type { DenialRecorder } from '../denials/denial-recorder.ts';
import type { CheckResult, RoutedRequest } from './request.ts';
import { type AppliedLimit, limiterKeyOf } from './route.ts';

/** No more permits can be held: no limit refused. */
const PERMITS_FULL = 'permits-full';

export function recordDenial(
  denials: DenialRecorder,
  request: RoutedRequest,
  { decision, limit, staticVerdict, reason }: CheckResult,
): void {
  const cause = staticVerdict?.reason ?? (limit === undefined ? PERMITS_FULL : reason);
  if (cause !== undefined) {
    const about = { ...(limit !== undefined && { limit }), reason: cause };
    denials.record(`${cause} ${limit ?? ''}`, about, request, decision);
    return;
  }
  const applied = request.route.applied.find(({ name }) => name === limit);
  if (applied) recordByLimit(denials, applied, request, decision);
}

/** A limit refused the call, or would have in shadow mode. */
export function recordByLimit(
  denials: DenialRecorder,
  applied: AppliedLimit,
  request: RoutedRequest,
  decision: Decision,
): void {
  const { name, limiter, limit } = applied;
  const id = limit.shadow ? `shadow ${name}` : name;
  const about = limit.shadow ? ({ limit: name, shadow: true } as const) : undefined;
  denials.record(id, about, request, decision, limiter, limiterKeyOf(applied, request.key));
}

/** A batch took nothing: records the first of these limits that has nothing left. Returns the reason of an outage. */
export function recordEmptyBatch(
  denials: DenialRecorder,
  request: RoutedRequest,
  candidates: readonly AppliedLimit[],
): 'unavailable' | undefined {
  for (const applied of candidates) {
    const { limiter, name: limit } = applied;
    if (limiter instanceof AsyncLimiter && limiter.isFailingClosed) {
      const reason = 'unavailable';
      recordDenial(denials, request, { decision: deny(UNAVAILABLE_RETRY_MS), limit, reason });
      return reason;
    }
    const limiterKey = limiterKeyOf(applied, request.key);
    const decision = limiter instanceof SyncLimiter ? limiter.peek(limiterKey) : deny(0);
    if (decision.verdict !== 'deny') continue;
    recordByLimit(denials, applied, request, decision);
    return undefined;
  }
  return undefined;
}
