/**
 * Encodes a decision as an HTTP response: 200 or a refusal, with RateLimit headers (draft-ietf-httpapi-
 * ratelimit-headers), Retry-After and a JSON body in the library's words. JSON has no Infinity: a
 * `retryAfterMs` of null means never.
 *
 * A gateway may forward a response to the client. So limits that are not exposed (`per: limit`) take part in status and
 * Retry-After, but their names and counts are left out.
 */

import { HeaderWriter } from '../../../adapters/http/headers.ts';
import { buildProblem, type ChargedRule } from '../../../adapters/http/refusal.ts';
import { NEVER } from '../../../core/decision.ts';
import { COOLDOWN, type Inspection, type NamedRuleStatus } from '../../../limiter/inspection.ts';
import { SyncLimiter } from '../../../limiter/sync-limiter.ts';
import { type Charge, chargesOf, type JointPart } from '../../router/joint-check.ts';
import { isLocked } from '../../router/report.ts';
import type { CheckResult, RoutedRequest } from '../../router/request.ts';
import {
  type AppliedLimit,
  limiterKeyOf,
  type Route,
  type StaticVerdict,
} from '../../router/route.ts';
import type { CheckParams } from './check-request.ts';
import { type EventualResponse, type HttpResponse, problemOf } from './response.ts';

type RefusalParams = Pick<CheckParams, 'cost' | 'status'>;

/** The status of a key with all limits of its route, merged. */
interface RouteStatus extends Pick<Inspection, 'name' | 'rules' | 'by'> {
  /** Names of limits and rules that the response leaves out. */
  readonly hidden: ReadonlySet<string>;
}

const NONE_HIDDEN: ReadonlySet<string> = new Set();

const JSON_TYPE: readonly string[] = ['Content-Type', 'application/json'];
const SHED_OPEN: HttpResponse = {
  status: 200,
  headers: JSON_TYPE,
  body: '{"verdict":"allow","reason":"overload"}',
};
const PROBLEM_TYPE: readonly string[] = ['Content-Type', 'application/problem+json'];

/** The data that all responses on a route share. The header writer caches the policies, which hardly ever change. */
interface RouteReporter {
  readonly writer: HeaderWriter;
  readonly applied: readonly AppliedLimit[];
  readonly isLocal: boolean;
  readonly hiddenLimits: ReadonlySet<string>;
}

export class CheckResponder {
  readonly #reporters = new WeakMap<Route, RouteReporter>();

  /** A promise only if the status of a limit has to be read from a remote backend. */
  respond(
    params: CheckParams,
    { route, key }: RoutedRequest,
    result: CheckResult,
  ): EventualResponse {
    const { staticVerdict, reason } = result;
    if (reason === 'overload') return shedResponse(params, result);
    if (staticVerdict?.reason === 'banned') return bannedResponse(params, result);
    if (staticVerdict) return staticResponse(params, staticVerdict);
    const reporter = this.#reporters.get(route) ?? this.#addReporter(route);
    const { writer, isLocal, hiddenLimits: hidden } = reporter;
    const rules = hidden.size > 0 ? undefined : result.rules;
    if (rules && result.decision.verdict === 'allow') return allowResponse(result, writer, rules);
    if (rules) return refusalResponse(params, result, writer, { name: '', rules, hidden });
    if (isLocal) return countedResponse(params, result, writer, inspectLocal(reporter, key));
    return inspectRemote(reporter, key).then((status) =>
      countedResponse(params, result, writer, status),
    );
  }

  /** Responds to a result that a remote backend still has to return. */
  async respondAsync(
    params: CheckParams,
    request: RoutedRequest,
    pending: Promise<CheckResult>,
  ): Promise<HttpResponse> {
    const { route, key } = request;
    if (route.remote.length !== 1) return this.respond(params, request, await pending);
    // Sent together with the check, the inspection travels in the same round trip.
    const reporter = this.#reporters.get(route) ?? this.#addReporter(route);
    const status = inspectRemote(reporter, key, pending);
    return countedResponse(params, await pending, reporter.writer, await status);
  }

  /** The entry of one check of a batch. `left`: `remaining` after a denial. */
  batchEntry({ route }: RoutedRequest, result: CheckResult, left: number): object {
    const reporter = this.#reporters.get(route) ?? this.#addReporter(route);
    return batchEntryOf(result, left, reporter.hiddenLimits);
  }

  /** The response to several checks that were decided as one: the headers list the limits of all. */
  async respondToAll(
    refusal: RefusalParams,
    parts: readonly JointPart[],
    result: CheckResult,
  ): Promise<HttpResponse> {
    const { staticVerdict, reason } = result;
    if (staticVerdict?.reason === 'banned') return bannedResponse(refusal, result);
    if (staticVerdict) return staticResponse(refusal, staticVerdict);
    if (reason === 'overload') return shedResponse(refusal, result);
    const reporters = parts.map(
      ({ request: { route } }) => this.#reporters.get(route) ?? this.#addReporter(route),
    );
    const active = reporters.flatMap(({ applied }) => applied);
    const hidden = new Set(reporters.flatMap(({ hiddenLimits }) => [...hiddenLimits]));
    const charges = chargesOf(parts).filter(({ applied }) => active.includes(applied));
    const found = await Promise.all(charges.map(inspectCharge));
    const status = mergeInspections(
      found.filter((one) => one !== undefined),
      hidden,
    );
    const rules = tightestByName(status.rules);
    return countedResponse(refusal, result, new HeaderWriter('draft'), { ...status, rules });
  }

  #addReporter(route: Route): RouteReporter {
    // Responses do not mention limits in shadow mode.
    const applied = route.applied.filter(({ limit }) => !limit.shadow);
    const isLocal = applied.every(({ limiter }) => limiter instanceof SyncLimiter);
    const hiddenLimits = hiddenLimitsOf(route);
    const reporter = { writer: new HeaderWriter('draft'), applied, isLocal, hiddenLimits };
    this.#reporters.set(route, reporter);
    return reporter;
  }
}

function hiddenLimitsOf({ applied }: Route): ReadonlySet<string> {
  const hidden = applied.filter(({ limit }) => !limit.expose);
  return hidden.length === 0 ? NONE_HIDDEN : new Set(hidden.map(({ name }) => name));
}

const inspectLocal = ({ applied, hiddenLimits }: RouteReporter, key: string): RouteStatus =>
  mergeInspections(
    applied.map((each) => (each.limiter as SyncLimiter).inspect(limiterKeyOf(each, key))),
    hiddenLimits,
  );

/**
 * Limits whose backend is unavailable are left out. Local limits are inspected after the decision,
 * because a refusal by a remote limit returns what they granted.
 */
async function inspectRemote(
  { applied, hiddenLimits }: RouteReporter,
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
    return mergeInspections(
      statuses.filter((status) => status !== undefined),
      hiddenLimits,
    );
  } catch {
    return mergeInspections([], hiddenLimits); // the decision stands without a status
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

function mergeInspections(
  inspections: readonly Inspection[],
  hiddenLimits: ReadonlySet<string>,
): RouteStatus {
  const { name } = inspections[0] ?? { name: '' };
  const only = inspections.length === 1 ? inspections[0].by : undefined;
  const by = only ?? inspections.find((each) => each.by === COOLDOWN)?.by;
  const rules = inspections.flatMap((each) => each.rules);
  const hiddenRules = inspections.filter((each) => hiddenLimits.has(each.name));
  const names = hiddenRules.flatMap((each) => each.rules.map((rule) => rule.name));
  const hidden = names.length > 0 ? new Set([...hiddenLimits, ...names]) : hiddenLimits;
  return { name, rules, hidden, ...(by !== undefined && { by }) };
}

const shownOf = (
  rules: readonly NamedRuleStatus[],
  hidden: ReadonlySet<string>,
): readonly NamedRuleStatus[] =>
  hidden.size === 0 ? rules : rules.filter(({ name }) => !hidden.has(name));

const countedResponse = (
  params: RefusalParams,
  result: CheckResult,
  writer: HeaderWriter,
  status: RouteStatus,
): HttpResponse =>
  result.decision.verdict === 'deny'
    ? refusalResponse(params, result, writer, status)
    : allowResponse(result, writer, shownOf(status.rules, status.hidden));

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
  const { rules, hidden } = routeStatus;
  const named = limit === undefined ? routeStatus : { ...routeStatus, name: limit };
  const details = {
    cost: params.cost,
    retryAfterMs,
    ...(reason && reason !== 'overload' && { reason }),
  };
  const refusal = buildProblem(details, named, {
    write: (all) => writer.write(shownOf(all, hidden)),
  });
  const policies = refusal.policies.filter((name) => !hidden.has(name));
  const headers: string[] = [];
  for (const name in refusal.headers) headers.push(name, refusal.headers[name]);
  const { status = refusal.status } = params;
  // Nothing fits during a cool-down, whatever is left of the limit.
  const remaining = routeStatus.by === COOLDOWN ? 0 : lowestRemaining(shownOf(rules, hidden));
  const by = limit !== undefined && hidden.has(limit) ? {} : { limit, rule };
  const why = reason ?? (isLocked(decision) ? 'locked' : undefined);
  const denial = { verdict: 'deny', remaining, retryAfterMs, ...by, reason: why };
  const problem = { ...refusal.problem, 'violated-policies': policies, status, ...denial };
  return { status, headers, body: JSON.stringify(problem) };
}

/** The check was too old to be decided. No limit was checked, so none is named. */
function shedResponse({ status = 503 }: RefusalParams, { decision }: CheckResult): HttpResponse {
  if (decision.verdict !== 'deny') return SHED_OPEN;
  const { retryAfterMs } = decision;
  const problem = problemOf(status, 'The rate limiter is overloaded.');
  const body = JSON.stringify({ ...problem, verdict: 'deny', retryAfterMs, reason: 'overload' });
  const seconds = String(Math.ceil(retryAfterMs / 1000));
  return { status, headers: [...PROBLEM_TYPE, 'Retry-After', seconds], body };
}

/** The configuration decides without counting: an allow or deny list, or no limit matches the key. */
function staticResponse(
  { status = 403 }: RefusalParams,
  { isAllowed, reason, limit }: StaticVerdict,
): HttpResponse {
  if (isAllowed) return { status: 200, headers: JSON_TYPE, body: '{"verdict":"allow"}' };
  const owner = limit === undefined ? '' : ` of limit "${limit}"`;
  const detail =
    reason === 'unmatched'
      ? 'No limit matches the key, and unmatched keys are denied.'
      : `The key is on the deny list${owner}.`;
  const denial = { verdict: 'deny', retryAfterMs: NEVER, reason, limit };
  const body = JSON.stringify({ ...problemOf(status, detail), ...denial });
  return { status, headers: PROBLEM_TYPE, body };
}

/** An operator has banned the key: denied until then. */
function bannedResponse({ status = 403 }: RefusalParams, { decision }: CheckResult): HttpResponse {
  const { retryAfterMs } = decision.verdict === 'deny' ? decision : NO_DENIAL;
  const seconds = String(Math.ceil(retryAfterMs / 1000));
  const denial = { verdict: 'deny', retryAfterMs, reason: 'banned' };
  const body = JSON.stringify({ ...problemOf(status, 'The key is banned.'), ...denial });
  return { status, headers: [...PROBLEM_TYPE, 'Retry-After', seconds], body };
}

function batchEntryOf(result: CheckResult, left: number, hidden: ReadonlySet<string>): object {
  const { decision, limit, reason, staticVerdict, permit } = result;
  const { verdict } = decision;
  const remaining = verdict === 'allow' ? decision.remaining : left;
  return {
    verdict,
    ...(hidden.size === 0 && isBounded(remaining) && { remaining: Math.floor(remaining) }),
    ...(verdict === 'deny' && { retryAfterMs: decision.retryAfterMs }),
    ...(verdict === 'deny' && !hidden.has(limit ?? '') && { rule: decision.rule, limit }),
    ...(isLocked(decision) && { reason: 'locked' }),
    ...(reason !== undefined && { reason }),
    ...(staticVerdict && { reason: staticVerdict.reason }),
    ...(permit !== undefined && { permit }),
  };
}

/** False where no rule counts: the remaining number has no meaning. */
const isBounded = (remaining: number): boolean => remaining < Number.MAX_SAFE_INTEGER;
