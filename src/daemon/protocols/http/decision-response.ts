/**
 * Encodes a decision as an HTTP response: 200 or a refusal, with RateLimit headers (draft-ietf-httpapi-
 * ratelimit-headers), Retry-After and a JSON body in the library's words. JSON has no Infinity: a
 * `retryAfterMs` of null means never.
 */

import { HeaderWriter } from '../../../adapters/http/headers.ts';
import { buildProblem, type ChargedRule } from '../../../adapters/http/refusal.ts';
import { NEVER } from '../../../core/decision.ts';
import { COOLDOWN, type Inspection, type NamedRuleStatus } from '../../../limiter/inspection.ts';
import { SyncLimiter } from '../../../limiter/sync-limiter.ts';
import { type Charge, chargesOf, type JointPart } from '../../router/joint-check.ts';
import type { CheckResult, RoutedRequest } from '../../router/router.ts';
import {
  type AppliedLimit,
  limiterKeyOf,
  type Route,
  type StaticVerdict,
} from '../../router/routes.ts';
import type { CheckParams } from './check-request.ts';
import { type EventualResponse, type HttpResponse, problemOf } from './response.ts';

/** What a refusal depends on. */
type RefusalParams = Pick<CheckParams, 'cost' | 'status'>;

/** The status of a key with all limits of its route, merged. */
type RouteStatus = Pick<Inspection, 'name' | 'rules' | 'by'>;

const NO_STATUS: RouteStatus = { name: '', rules: [] };

const JSON_TYPE: readonly string[] = ['Content-Type', 'application/json'];
const PROBLEM_TYPE: readonly string[] = ['Content-Type', 'application/problem+json'];

/** What responses on a route have in common. The header writer caches the policies, which hardly ever change. */
interface RouteReporter {
  readonly writer: HeaderWriter;
  readonly applied: readonly AppliedLimit[];
  readonly isLocal: boolean;
}

export class CheckResponder {
  readonly #reporters = new WeakMap<Route, RouteReporter>();

  /** A promise only if the status of a limit has to be read from a remote backend. */
  respond(
    params: CheckParams,
    { route, key }: RoutedRequest,
    result: CheckResult,
  ): EventualResponse {
    const { staticVerdict, rules } = result;
    if (staticVerdict) return staticResponse(params, staticVerdict);
    const { writer, applied, isLocal } = this.#reporters.get(route) ?? this.#addReporter(route);
    if (rules && result.decision.verdict === 'allow') return allowResponse(result, writer, rules);
    if (rules) return refusalResponse(params, result, writer, { name: '', rules });
    if (isLocal) return countedResponse(params, result, writer, inspectLocal(applied, key));
    return inspectRemote(applied, key).then((status) =>
      countedResponse(params, result, writer, status),
    );
  }

  /** The same for a result that a remote backend still has to return. */
  async respondAsync(
    params: CheckParams,
    request: RoutedRequest,
    pending: Promise<CheckResult>,
  ): Promise<HttpResponse> {
    const { route, key } = request;
    if (route.remote.length !== 1) return this.respond(params, request, await pending);
    // Sent together with the check, the inspection travels in the same round trip.
    const { writer, applied } = this.#reporters.get(route) ?? this.#addReporter(route);
    const status = inspectRemote(applied, key, pending);
    return countedResponse(params, await pending, writer, await status);
  }

  /** The response to several checks that were decided as one: the headers list the limits of all. */
  async respondToAll(
    refusal: RefusalParams,
    parts: readonly JointPart[],
    result: CheckResult,
  ): Promise<HttpResponse> {
    if (result.staticVerdict) return staticResponse(refusal, result.staticVerdict);
    const routes = parts.map(({ request }) => request.route);
    const shown = routes.flatMap(
      (route) => (this.#reporters.get(route) ?? this.#addReporter(route)).applied,
    );
    const charges = chargesOf(parts).filter(({ applied }) => shown.includes(applied));
    const found = await Promise.all(charges.map(inspectCharge));
    const status = mergeInspections(found.filter((one) => one !== undefined));
    const rules = tightestByName(status.rules);
    return countedResponse(refusal, result, new HeaderWriter('draft'), { ...status, rules });
  }

  #addReporter(route: Route): RouteReporter {
    // Responses do not mention limits in shadow mode.
    const applied = route.applied.filter(({ limit }) => !limit.shadow);
    const isLocal = applied.every(({ limiter }) => limiter instanceof SyncLimiter);
    const reporter = { writer: new HeaderWriter('draft'), applied, isLocal };
    this.#reporters.set(route, reporter);
    return reporter;
  }
}

const inspectLocal = (applied: readonly AppliedLimit[], key: string): RouteStatus =>
  mergeInspections(
    applied.map((each) => (each.limiter as SyncLimiter).inspect(limiterKeyOf(each, key))),
  );

/**
 * Limits whose backend is unavailable are left out. Local limits are inspected after the decision,
 * because a refusal by a remote limit returns what they granted.
 */
async function inspectRemote(
  applied: readonly AppliedLimit[],
  key: string,
  decided?: Promise<unknown>,
): Promise<RouteStatus> {
  const inspect = (each: AppliedLimit) => each.limiter.inspect(limiterKeyOf(each, key));
  const isLocal = ({ limiter }: AppliedLimit): boolean => limiter instanceof SyncLimiter;
  try {
    const pending = applied.map((each) => (isLocal(each) ? undefined : inspect(each)));
    const [remote] = await Promise.all([Promise.all(pending), decided]);
    const statuses = await Promise.all(
      applied.map((each, n) => (isLocal(each) ? inspect(each) : remote[n])),
    );
    return mergeInspections(statuses.filter((status) => status !== undefined));
  } catch {
    return NO_STATUS; // the decision stands without a status
  }
}

/** The status of one limit of several checks, each rule with its cost; undefined if its backend is unavailable. */
async function inspectCharge({ applied, key, cost }: Charge): Promise<Inspection | undefined> {
  try {
    const found = await applied.limiter.inspect(key);
    const rules = found?.rules.map((rule): ChargedRule => ({ ...rule, cost }));
    return found && rules && { ...found, rules };
  } catch {
    return undefined; // the decision stands without it
  }
}

/** A limit that was checked with several keys is shown once. */
function tightestByName(rules: readonly NamedRuleStatus[]): readonly NamedRuleStatus[] {
  const byName = new Map<string, NamedRuleStatus>();
  for (const rule of rules) {
    const other = byName.get(rule.name);
    if (!other || rule.remaining < other.remaining) byName.set(rule.name, rule);
  }
  return [...byName.values()];
}

function mergeInspections(inspections: readonly Inspection[]): RouteStatus {
  if (inspections.length <= 1) return inspections[0] ?? NO_STATUS;
  const by = inspections.find((each) => each.by === 'cooldown')?.by;
  const rules = inspections.flatMap((each) => each.rules);
  return { name: inspections[0].name, rules, ...(by !== undefined && { by }) };
}

const countedResponse = (
  params: RefusalParams,
  result: CheckResult,
  writer: HeaderWriter,
  status: RouteStatus,
): HttpResponse =>
  result.decision.verdict === 'deny'
    ? refusalResponse(params, result, writer, status)
    : allowResponse(result, writer, status.rules);

function allowResponse(
  { permit }: CheckResult,
  writer: HeaderWriter,
  rules: readonly NamedRuleStatus[],
): HttpResponse {
  const { RateLimit: state, 'RateLimit-Policy': policy } = writer.write(rules);
  const headers =
    state === undefined
      ? JSON_TYPE
      : [JSON_TYPE[0], JSON_TYPE[1], 'RateLimit-Policy', policy, 'RateLimit', state];
  const remaining = lowestRemaining(rules);
  const remainingField = remaining === undefined ? '' : `,"remaining":${remaining}`;
  const permitField = permit === undefined ? '' : `,"permit":${JSON.stringify(permit)}`;
  return { status: 200, headers, body: `{"verdict":"allow"${remainingField}${permitField}}` };
}

/** The remaining tokens of the tightest rule, if there is a rule. */
function lowestRemaining(rules: readonly NamedRuleStatus[]): number | undefined {
  if (rules.length === 0) return undefined;
  let least = Number.MAX_SAFE_INTEGER;
  for (const { remaining } of rules) least = Math.min(least, remaining);
  return Math.max(0, Math.floor(least));
}

const NO_DENIAL: { readonly retryAfterMs: number; readonly rule?: string } = { retryAfterMs: 0 };

function refusalResponse(
  params: RefusalParams,
  { decision, limit, reason }: CheckResult,
  writer: HeaderWriter,
  routeStatus: RouteStatus,
): HttpResponse {
  const { retryAfterMs, rule } = decision.verdict === 'deny' ? decision : NO_DENIAL;
  const named = limit === undefined ? routeStatus : { ...routeStatus, name: limit };
  const details = { cost: params.cost, retryAfterMs, ...(reason && { reason }) };
  const refusal = buildProblem(details, named, writer);
  const headers: string[] = [];
  for (const name in refusal.headers) headers.push(name, refusal.headers[name]);
  const { status = refusal.status } = params;
  // Nothing fits during a cool-down, whatever is left of the limit.
  const remaining = routeStatus.by === COOLDOWN ? 0 : lowestRemaining(routeStatus.rules);
  const denial = { verdict: 'deny', remaining, retryAfterMs, limit, rule, reason };
  return { status, headers, body: JSON.stringify({ ...refusal.problem, status, ...denial }) };
}

/** The configuration decides without counting: an allow or deny list, or no limit matches the key. */
function staticResponse(
  { status = 403 }: RefusalParams,
  { isAllowed, reason, limit, pattern }: StaticVerdict,
): HttpResponse {
  if (isAllowed) return { status: 200, headers: JSON_TYPE, body: '{"verdict":"allow"}' };
  const owner = limit === undefined ? '' : ` of limit "${limit}"`;
  const detail =
    reason === 'unmatched'
      ? 'No limit matches the key, and unmatched keys are denied.'
      : `The key is on the deny list${owner}${pattern ? ` (${pattern.text})` : ''}.`;
  const denial = { verdict: 'deny', retryAfterMs: NEVER, reason, limit };
  const body = JSON.stringify({ ...problemOf(status, detail), ...denial });
  return { status, headers: PROBLEM_TYPE, body };
}

/** `left`: what a refusal leaves. */
export function batchEntryOf(result: CheckResult, left: number): object {
  const { decision, limit, reason, staticVerdict, permit } = result;
  const { verdict } = decision;
  const remaining = verdict === 'allow' ? decision.remaining : left;
  return {
    verdict,
    ...(isBounded(remaining) && { remaining: Math.floor(remaining) }),
    ...(verdict === 'deny' && { retryAfterMs: decision.retryAfterMs, rule: decision.rule }),
    ...(limit !== undefined && { limit }),
    ...(reason !== undefined && { reason }),
    ...(staticVerdict && { reason: staticVerdict.reason }),
    ...(permit !== undefined && { permit }),
  };
}

/** False where no rule counts: the remaining number has no meaning. */
const isBounded = (remaining: number): boolean => remaining < Number.MAX_SAFE_INTEGER;
