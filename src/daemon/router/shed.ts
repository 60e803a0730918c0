/**
 * Checks that are too old to be decided (`server/overload.ts`). Bans and deny lists hold for them. Otherwise the limits
 * on the route say what is done: if one of them fails closed, the check is denied. Nothing is counted.
 */

import { allow, deny } from '../../core/decision.ts';
import type { CheckResult, RoutedRequest } from './request.ts';
import type { AppliedLimit } from './route.ts';
import type { RoutesConfig } from './route-index.ts';
import type { Router } from './router.ts';

/** Knows whether the check that is processed now is too old. */
export interface LoadShedder {
  readonly isShedding: boolean;
  /** The fail mode of limits without their own. */
  readonly isOpen: boolean;
  countShed(isDenied: boolean): void;
  /** Checks that were shed, and those of them that were denied. */
  readonly shedCount: number;
  readonly deniedCount: number;
}

export const SHEDS_NOTHING: LoadShedder = {
  isShedding: false,
  isOpen: true,
  countShed: () => {},
  shedCount: 0,
  deniedCount: 0,
};

/** No rule was applied. */
const OPEN: CheckResult = {
  decision: allow(Number.MAX_SAFE_INTEGER),
  reason: 'overload',
  rules: [],
};
const CLOSED: CheckResult = { decision: deny(1000), reason: 'overload', rules: [] };

const isClosed = ({ limit }: AppliedLimit, isOpen: boolean): boolean =>
  !limit.shadow && (limit.overload === undefined ? !isOpen : limit.overload === 'closed');

/** True if the configuration denies some key while checks are shed, and the fail mode is open. */
export const deniesWhenShed = ({ deny: denied, unmatched, limits }: RoutesConfig): boolean =>
  denied.length > 0 ||
  unmatched === 'deny' ||
  limits.some((limit) => limit.deny.length > 0 || limit.overload === 'closed');

/** The answer to a check that is shed, where no key is denied. */
export function shedOpen({ overload }: Router): CheckResult {
  overload.countShed(false);
  return OPEN;
}

/** The answer to any check that is shed; a denial is recorded. */
export function shed(router: Router, request: RoutedRequest): CheckResult {
  const { staticVerdict, applied } = request.route;
  if (staticVerdict) return router.staticResult(staticVerdict, request);
  const closed = applied.find((each) => isClosed(each, router.overload.isOpen));
  if (!closed) return shedOpen(router);
  router.overload.countShed(true);
  return router.refused(request, { ...CLOSED, limit: closed.name });
}

/** Sheds several checks that are one call: the first that fails closed decides. */
export function shedAll(router: Router, requests: readonly RoutedRequest[]): CheckResult {
  const { isOpen } = router.overload;
  const closed = requests.find(({ route }) => route.applied.some((one) => isClosed(one, isOpen)));
  return closed ? shed(router, closed) : shedOpen(router);
}
