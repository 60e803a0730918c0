import { type HttpResponse, jsonResponse } from './response.ts';

export interface Readiness {
  readonly isStopping: boolean;
  /** Checks were shed a moment ago. */
  readonly isOverloaded: boolean;
  /** Calls are refused until the state of the fleet is here. */
  readonly isJoining: boolean;
  /** Backends are unavailable, and the configuration makes readiness depend on them. */
  readonly isBlocked: boolean;
  /** Limits whose backend is unavailable: `onUnavailable` decides. */
  readonly unavailable: readonly string[];
}

export const ALWAYS_READY: Readiness = {
  isStopping: false,
  isOverloaded: false,
  isJoining: false,
  isBlocked: false,
  unavailable: [],
};

/** Why the daemon should get no requests, as operators see it. */
export function describeReadiness(state: Readiness) {
  const { isStopping, isOverloaded, isJoining, isBlocked, unavailable } = state;
  const reasons = [
    ...(isStopping ? ['stopping'] : []),
    ...(isOverloaded ? ['overload'] : []),
    ...(isJoining ? ['joining'] : []),
    ...(isBlocked ? ['backends'] : []),
  ];
  return { ready: reasons.length === 0, reasons, unavailable };
}

export function readinessResponse(state: Readiness): HttpResponse {
  const described = describeReadiness(state);
  const response = jsonResponse(described.ready ? 200 : 503, described);
  return described.ready
    ? response
    : { ...response, headers: [...response.headers, 'Retry-After', '5'] };
}
