/**
 * A decision as HTTP says it: 200 or a refusal, with the RateLimit headers and the problem bodies of
 * `sluice/http`, and the decision in JSON, in the words of the library. JSON has null in the place of Infinity: that
 * is never.
 */

import { HeaderWriter } from '../../../adapters/http/headers.ts';
import { buildRefusal } from '../../../adapters/http/refusal.ts';
import { NEVER } from '../../../core/decision.ts';
import type { Inspection, NamedRuleStatus } from '../../../limiter/inspection.ts';
import { SyncLimiter } from '../../../limiter/sync-limiter.ts';
import type { CheckResult } from '../../router/router.ts';
import { type AppliedLimit, limiterKeyOf, type Route } from '../../router/routes.ts';
import type { CheckParams } from './check-request.ts';
import { type HttpResponse, problemResponse } from './reply.ts';

/** How a key stands with the limits it meets; several are seen as one. */
type RouteStatus = Pick<Inspection, 'name' | 'remaining' | 'rules' | 'by'>;

const NO_STATUS: RouteStatus = { name: '', remaining: 0, rules: [] };

const JSON_TYPE: readonly string[] = ['Content-Type', 'application/json'];

/** Who tells of the limits of a route. What it says of them hardly ever changes, so it is kept. */
interface RouteReporter {
  readonly writer: HeaderWriter;
  readonly applied: readonly AppliedLimit[];
  readonly isLocal: boolean;
}

export class CheckResponder {
  readonly #reporters = new WeakMap<Route, RouteReporter>();

  /** A promise only if a limit of the route is looked at somewhere else. */
  respond(
    params: CheckParams,
    key: string,
    answer: CheckResult,
    route: Route,
  ): HttpResponse | Promise<HttpResponse> {
    if (answer.staticVerdict) return staticResponse(params, answer);
    const { writer, applied, isLocal } = this.#reporterFor(route);
    if (isLocal) return countedResponse(params, answer, writer, inspectLocal(applied, key));
    return inspectRemote(applied, key).then((seen) =>
      countedResponse(params, answer, writer, seen),
    );
  }

  /** The same for an answer that somebody else has yet to give. */
  async respondAsync(
    params: CheckParams,
    key: string,
    answer: Promise<CheckResult>,
    route: Route,
  ): Promise<HttpResponse> {
    if (route.remote.length !== 1) return this.respond(params, key, await answer, route);
    // Asked in the same breath, how the key stands afterwards comes with the same trip.
    const { writer, applied } = this.#reporterFor(route);
    const seeing = inspectRemote(applied, key, answer);
    return countedResponse(params, await answer, writer, await seeing);
  }

  #reporterFor(route: Route): RouteReporter {
    const known = this.#reporters.get(route);
    if (known) return known;
    // A limit that only counts is nobody's business yet.
    const applied = route.applied.filter(({ limit }) => !limit.shadow);
    const isLocal = applied.every(({ limiter }) => limiter instanceof SyncLimiter);
    const reporter = { writer: new HeaderWriter('draft'), applied, isLocal };
    this.#reporters.set(route, reporter);
    return reporter;
  }
}

function inspectLocal(applied: readonly AppliedLimit[], key: string): RouteStatus {
  if (applied.length === 1)
    return (applied[0].limiter as SyncLimiter).inspect(limiterKeyOf(applied[0], key));
  return mergeInspections(
    applied.map((own) => (own.limiter as SyncLimiter).inspect(limiterKeyOf(own, key))),
  );
}

/**
 * Somebody who decides and is out of reach cannot be looked at: then nothing is said of it. Those here are looked at once it is
 * decided, as whoever refuses undoes what they gave.
 */
async function inspectRemote(
  applied: readonly AppliedLimit[],
  key: string,
  decided?: Promise<unknown>,
): Promise<RouteStatus> {
  const look = (own: AppliedLimit) => own.limiter.inspect(limiterKeyOf(own, key));
  const isLocal = ({ limiter }: AppliedLimit): boolean => limiter instanceof SyncLimiter;
  try {
    const asked = applied.map((own) => (isLocal(own) ? undefined : look(own)));
    const [there] = await Promise.all([Promise.all(asked), decided]);
    const seen = await Promise.all(applied.map((own, n) => (isLocal(own) ? look(own) : there[n])));
    return mergeInspections(seen.filter((own) => own !== undefined));
  } catch {
    return NO_STATUS; // what was decided holds all the same
  }
}

function mergeInspections(seen: readonly Inspection[]): RouteStatus {
  if (seen.length === 0) return NO_STATUS;
  const paused = seen.find(({ by }) => by === 'cooldown');
  const by = paused?.by;
  const remaining = Math.min(...seen.map((own) => own.remaining));
  const rules = seen.flatMap((own) => own.rules);
  return { name: seen[0].name, remaining, rules, ...(by !== undefined && { by }) };
}

function countedResponse(
  params: CheckParams,
  answer: CheckResult,
  writer: HeaderWriter,
  seen: RouteStatus,
): HttpResponse {
  const { decision, permit } = answer;
  if (decision.verdict === 'deny') return refusalResponse(params, answer, writer, seen);
  const { RateLimit: state, 'RateLimit-Policy': policy } = writer.write(seen.rules);
  const headers =
    state === undefined
      ? JSON_TYPE
      : [...JSON_TYPE, 'RateLimit-Policy', policy, 'RateLimit', state];
  const held = permit === undefined ? '' : `,"permit":${JSON.stringify(permit)}`;
  return { status: 200, headers, body: `{"verdict":"allow"${remainingField(seen)}${held}}` };
}

function remainingField(seen: RouteStatus): string {
  const least = lowestRemaining(seen);
  return least === undefined ? '' : `,"remaining":${least}`;
}

/** What is left of the tightest rule, if there is one. */
function lowestRemaining({ rules }: RouteStatus): number | undefined {
  if (rules.length === 0) return undefined;
  let least = Infinity;
  for (const rule of rules) least = Math.min(least, wholeRemaining(rule));
  return least;
}

const wholeRemaining = ({ remaining }: NamedRuleStatus): number =>
  Math.max(0, Math.min(Number.MAX_SAFE_INTEGER, Math.floor(remaining)));

function refusalResponse(
  params: CheckParams,
  answer: CheckResult,
  writer: HeaderWriter,
  seen: RouteStatus,
): HttpResponse {
  const { decision, limit, reason } = answer;
  const retryAfterMs = decision.verdict === 'deny' ? decision.retryAfterMs : 0;
  const found = limit === undefined ? seen : { ...seen, name: limit };
  const denied = { cost: params.cost, retryAfterMs, ...(reason && { reason }) };
  const reply = buildRefusal(denied, found, writer);
  const headers: string[] = [];
  for (const name in reply.headers) headers.push(name, reply.headers[name]);
  const status = params.status ?? reply.status;
  const told = { verdict: 'deny', remaining: lowestRemaining(seen), retryAfterMs, limit, reason };
  const body = JSON.stringify({ ...JSON.parse(reply.body), status, ...told });
  return { status, headers, body };
}

/** A list says so, or no limit is for the key: there is nothing to count. */
function staticResponse(
  { status = 403 }: CheckParams,
  { staticVerdict }: CheckResult,
): HttpResponse {
  if (staticVerdict?.isAllowed !== false) {
    return { status: 200, headers: JSON_TYPE, body: '{"verdict":"allow"}' };
  }
  const { reason, limit, pattern } = staticVerdict;
  const whose = limit === undefined ? '' : ` of limit "${limit}"`;
  const detail =
    reason === 'unmatched'
      ? 'No limit is for this key, and such keys are refused.'
      : `The key is on the deny list${whose}${pattern ? ` (${pattern.text})` : ''}.`;
  const denied = problemResponse(status, detail);
  const told = { verdict: 'deny', retryAfterMs: NEVER, reason, limit };
  return { ...denied, body: JSON.stringify({ ...JSON.parse(denied.body), ...told }) };
}

/** One of many answers, for those who ask in a batch. */
export function batchEntryOf({
  decision,
  limit,
  reason,
  staticVerdict,
  permit,
}: CheckResult): object {
  const { verdict } = decision;
  return {
    verdict,
    ...(verdict === 'allow' &&
      isBounded(decision.remaining) && { remaining: Math.floor(decision.remaining) }),
    ...(verdict === 'deny' && { retryAfterMs: decision.retryAfterMs }),
    ...(limit !== undefined && { limit }),
    ...(reason !== undefined && { reason }),
    ...(staticVerdict && { reason: staticVerdict.reason }),
    ...(permit !== undefined && { permit }),
  };
}

/** Where nobody counts, there is no end to what is left. */
const isBounded = (remaining: number): boolean => remaining < Number.MAX_SAFE_INTEGER;
