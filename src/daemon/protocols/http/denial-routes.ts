/**
 * Which keys are throttled, and why: for operators, guarded by `access.ts`.
 *
 *     GET /top?span=now|hour&max=10                  limits with their counters, and the most denied and most called keys of each
 *     GET /denials?key=&limit=&since=1h&max=100      recent denials, the latest first
 */

import { parseDuration } from '../../../core/duration.ts';
import type { LimitConfig } from '../../config/limits.ts';
import { shadowTest } from '../../config/shadow.ts';
import type { History } from '../../history/history.ts';
import { toKeyText } from '../../keys/binary-key.ts';
import type { LimiterRegistry } from '../../router/limiter-registry.ts';
import type { Router } from '../../router/router.ts';
import { hasValidLength, keyLengthProblem } from './check-request.ts';
import type { EndpointHandler } from './endpoint.ts';
import { readParameters, ValidationProblem } from './parameters.ts';
import {
  type HttpResponse,
  isHttpResponse,
  jsonResponse,
  noSuchLimit,
  problemResponse,
} from './response.ts';

export interface DenialContext {
  readonly router: Router;
  /** Left out where nothing is sampled. */
  readonly history?: Pick<History, 'lastUseOf'> | undefined;
  readonly bounds: { readonly maxKey: number };
}

/** Limits and reasons in a response of /top, and keys of each. */
const MAX_TOP_LIMITS = 20;
const MAX_TOP_KEYS = 100;
const DEFAULT_TOP_KEYS = 10;

const MAX_DENIALS = 1000;
const DEFAULT_DENIALS = 100;

export const denialRoutes = (
  context: DenialContext,
): Readonly<Record<string, EndpointHandler>> => ({
  '/top': ({ url = '' }, queryAt) => respond(topOf(context, url, queryAt)),
  '/denials': ({ url = '' }, queryAt) => respond(denialsOf(context, url, queryAt)),
});

function respond(result: object): HttpResponse {
  if (isHttpResponse(result)) return result;
  return result instanceof ValidationProblem
    ? problemResponse(400, result.detail)
    : jsonResponse(200, result);
}

function topOf({ router, history }: DenialContext, url: string, queryAt: number): object {
  const values = readParameters(url, queryAt, ['span', 'max']);
  if (values instanceof ValidationProblem) return values;
  const [span = 'now', rawMax] = values;
  if (span !== 'now' && span !== 'hour') return new ValidationProblem('span', 'now or hour', span);
  const max = readMax(rawMax, DEFAULT_TOP_KEYS, MAX_TOP_KEYS);
  if (max instanceof ValidationProblem) return max;
  const { calls, denials, staticDenials, registry, overload } = router;
  const { 'allow-list': _, ...reasons } = staticDenials;
  return {
    at: Math.round(denials.now),
    span,
    spanSeconds: calls.secondsOf(span),
    limits: countersOf(router.limits, registry, history),
    reasons: { ...reasons, overload: overload.deniedCount },
    shed: overload.shedCount,
    denied: denials.top(span, MAX_TOP_LIMITS, max),
    called: calls.top(span, MAX_TOP_LIMITS, max),
  };
}

/** Calls allowed and denied since the start, by limit; those of its overrides are included. */
function countersOf(
  limits: readonly LimitConfig[],
  registry: LimiterRegistry,
  history: DenialContext['history'],
): object[] {
  const isShadow = shadowTest(limits);
  const totals = new Map(limits.map(({ name }) => [name, { allowed: 0, denied: 0 }]));
  for (const { name, limiter } of registry.all) {
    const total = totals.get(name.split('[', 1)[0]);
    if (!total) continue;
    total.allowed += limiter.allowed;
    total.denied += limiter.denied;
  }
  return [...totals].map(([name, total]) => {
    const use = history?.lastUseOf(name);
    return {
      name,
      ...(isShadow(name) && { shadow: true }),
      ...total,
      ...(use !== undefined && { use }),
    };
  });
}

function denialsOf({ router, bounds }: DenialContext, url: string, queryAt: number): object {
  const values = readParameters(url, queryAt, ['key', 'limit', 'since', 'max']);
  if (values instanceof ValidationProblem) return values;
  const [key, limit, rawSince = '1h', rawMax] = values;
  if (key !== undefined && !hasValidLength(key, bounds.maxKey))
    return keyLengthProblem(key, bounds.maxKey);
  const sinceMs = parseDuration(rawSince);
  if (sinceMs === undefined) return new ValidationProblem('since', 'such as 10m or 1h', rawSince);
  const max = readMax(rawMax, DEFAULT_DENIALS, MAX_DENIALS);
  if (max instanceof ValidationProblem) return max;
  const { denials } = router;
  const hash = key === undefined ? undefined : router.route({ key, cost: 1 });
  const found = denials.recent({ limit, hash, since: denials.now - sinceMs, max });
  // A limit that a reload has removed may still have denials.
  if (limit !== undefined && found.length === 0 && !isLimit(router, limit))
    return noSuchLimit(limit, router.limits);
  return {
    at: Math.round(denials.now),
    ...(key !== undefined && { key: toKeyText(key) }),
    ...(hash && { lastHours: denials.countsOf(hash) }),
    denials: found,
  };
}

/** True for a limit, and for one of its plans or overrides: `api[pro]`. */
const isLimit = ({ limits }: Router, given: string): boolean =>
  limits.some(({ name }) => name === given.split('[', 1)[0]);

function readMax(text: string | undefined, fallback: number, max: number) {
  if (text === undefined) return fallback;
  const value = /^\d{1,6}$/.test(text) ? Number(text) : 0;
  const isValid = value >= 1 && value <= max;
  return isValid ? value : new ValidationProblem('max', `an integer from 1 to ${max}`, text);
}
