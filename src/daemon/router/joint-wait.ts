import {
  beginCheck,
  createCheck,
  type JointPart,
  listedPart,
  recordRefusal,
  staticResult,
} from './joint-check.ts';
import type { CheckResult } from './request.ts';
import type { Router } from './router.ts';
import { shedAll } from './shed.ts';
import type { WaitLimits } from './waiting.ts';
import type { WaitingCall } from './waiting-call.ts';

/** `checkAll`, waiting if need be. Rejects only if the signal aborts. */
export async function acquireAll(
  router: Router,
  parts: readonly JointPart[],
  holdsPermit: boolean,
  limits: WaitLimits,
): Promise<CheckResult> {
  const listed = listedPart(parts);
  if (listed) return staticResult(router, listed);
  const { charges } = beginCheck(router, parts, holdsPermit);
  const call = waitingCallOf(router, parts, holdsPermit);
  return recordRefusal(router, charges, await router.waiting.acquire(call, limits));
}

/** All parts as one call. */
function waitingCallOf(
  router: Router,
  parts: readonly JointPart[],
  holdsPermit: boolean,
): WaitingCall {
  const reroute = (): WaitingCall | undefined => {
    const next = rerouted(router, parts);
    return next && waitingCallOf(router, next, holdsPermit);
  };
  const { key } = parts[0].request;
  const listed = listedPart(parts);
  if (listed) {
    const decide = (): CheckResult => staticResult(router, listed);
    return { ...NOT_COUNTED, key, decideUncounted: decide, admit: decide, reroute };
  }
  const check = createCheck(router, parts, holdsPermit);
  const { charges, wantsPermit, local, remote } = check;
  return {
    limiters: charges.map(({ applied }) => applied.limiter),
    key,
    wantsPermit,
    local,
    remote,
    decideUncounted: () =>
      router.overload.isShedding
        ? shedAll(
            router,
            parts.map(({ request }) => request),
          )
        : check.run(),
    admit: (remaining, permits) => check.admit(remaining, permits),
    reroute,
  };
}

/** A list decides, such as one that a key came to while its call waited. */
const NOT_COUNTED = { limiters: [], wantsPermit: false, local: undefined, remote: [] };

/** The parts with their routes as of now; undefined if a limit is no longer configured. */
export function rerouted(
  router: Router,
  parts: readonly JointPart[],
): readonly JointPart[] | undefined {
  const next: JointPart[] = [];
  for (const { limit, key, request } of parts) {
    const routed = router.route({ limit, key, cost: request.cost });
    if (!routed) return undefined;
    next.push({ limit, key, request: routed });
  }
  return next;
}
