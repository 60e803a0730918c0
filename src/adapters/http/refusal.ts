/**
 * Builds the response to a refused request: status, Retry-After, and a problem details body (RFC 9457).
 *
 *     429  a rate limit or quota is exhausted by this client            quota-exceeded
 *     503  a concurrency limit or a learnt limit is reached, the        temporary-reduced-capacity
 *          queue is full, or the backend is unavailable: not caused
 *          by this client
 *     431  Node has dropped headers of the request                      about:blank
 *
 * The other problem types are those of draft-ietf-httpapi-ratelimit-headers.
 */

import type { Millis } from '../../core/clock.ts';
import { NEVER, WHEN_SETTLED } from '../../core/decision.ts';
import { ConfigError } from '../../core/errors.ts';
import { COOLDOWN, type Inspection, type NamedRuleStatus } from '../../limiter/inspection.ts';
import type { Refusal } from '../../limiter/permit.ts';
import { ceilSeconds, type HeaderValues, type HeaderWriter, tightestRule } from './headers.ts';

export type RefusalStatus = 429 | 431 | 503;

/** The response to a refused request. */
export interface RefusalResponse {
  readonly isAllowed: false;
  readonly status: RefusalStatus;
  readonly headers: HeaderValues;
  /** JSON, as `Content-Type` says. */
  readonly body: string;
  /** The rules that refused, by their names in the headers. */
  readonly policies: readonly string[];
  /** The value of `Retry-After`; undefined if the cost can never fit. */
  readonly retryAfterSeconds: number | undefined;
}

/** A refusal whose body is not encoded yet, for callers that add fields to it. */
export interface RefusalProblem extends Omit<RefusalResponse, 'body'> {
  readonly problem: Readonly<Record<string, unknown>>;
}

/** Changes to a refusal; what is left out stays as it is. */
export interface RefusalOverrides {
  readonly headers?: HeaderValues;
  readonly contentType?: string;
  readonly body?: string;
}

/** The refused cost, and the limiter's refusal. */
export interface DenialDetails {
  readonly cost: number;
  readonly retryAfterMs: Millis;
  readonly reason?: Refusal['reason'];
}

const PROBLEM_TYPE_BASE = 'https://iana.org/assignments/http-problem-types#';

const PROBLEM_BY_STATUS: Readonly<Record<RefusalStatus, { type: string; title: string }>> = {
  429: {
    type: `${PROBLEM_TYPE_BASE}quota-exceeded`,
    title: 'Request cannot be satisfied as assigned quota has been exceeded',
  },
  431: { type: 'about:blank', title: 'Request Header Fields Too Large' },
  503: {
    type: `${PROBLEM_TYPE_BASE}temporary-reduced-capacity`,
    title: 'Request cannot be satisfied due to temporary server capacity constraints',
  },
};

/** Builds the response; with a writer, it carries the limit's headers. */
export const buildRefusal = (
  denied: DenialDetails,
  found: RefusedStatus,
  writer?: HeaderWriter,
): RefusalResponse => encodeProblem(buildProblem(denied, found, writer));

/** A rule with the cost that was checked, where that differs between rules. */
export interface ChargedRule extends NamedRuleStatus {
  readonly cost?: number;
}

/** The fields of an inspection that a refusal uses. */
interface RefusedStatus extends Pick<Inspection, 'name' | 'by'> {
  readonly rules: readonly ChargedRule[];
}

export function buildProblem(
  denied: DenialDetails,
  found: RefusedStatus,
  writer?: Pick<HeaderWriter, 'write'>,
): RefusalProblem {
  const rules = withExhaustedRule(denied, found);
  const headers = writer?.write(rules.map((rule) => withRetryTime(rule, denied))) ?? {};
  const violated = rules.filter((rule) => isViolated(rule, denied.cost));
  const status = statusOf(denied, violated.length > 0 ? violated : rules);
  const seconds = retryAfterSecondsOf(denied);
  // No rule refuses during a cool-down: then the limit itself is named.
  const names = violated.length > 0 ? violated.map(({ name }) => name) : [found.name];
  return problemResponse(status, detailOf(denied, seconds), names, seconds, headers);
}

/** For a limiter that fails with `onUnavailable: 'deny'`, and for clients that have disconnected. */
export const buildUnavailableRefusal = (): RefusalResponse =>
  encodeProblem(problemResponse(503, 'The limit could not be checked.', [], 1, {}));

/** For a request that has more headers than Node keeps: the dropped ones may name the client. */
export const buildHeadersRefusal = (): RefusalResponse =>
  encodeProblem(problemResponse(431, 'The request has too many headers.', [], undefined, {}));

/** For requests that are shed: the limit itself is not reached, so no rate limit headers. */
export const buildOverloadRefusal = (limit: string): RefusalResponse =>
  encodeProblem(problemResponse(503, OVERLOAD_DETAIL, [limit], OVERLOAD_RETRY_MS / 1000, {}));

/** When a client of an overloaded server may try again. */
export const OVERLOAD_RETRY_MS: Millis = 1000;

const OVERLOAD_DETAIL = 'The server is overloaded. Try again in 1 second.';

const encodeProblem = ({ problem, ...refusal }: RefusalProblem): RefusalResponse => ({
  ...refusal,
  body: JSON.stringify(problem),
});

/** Applies the changes of the option `refuse`. @throws {ConfigError} if they cannot be sent. */
export function withOverrides(
  refused: RefusalResponse,
  overrides: RefusalOverrides,
): RefusalResponse {
  const { headers, contentType = refused.headers['Content-Type'], body = refused.body } = overrides;
  const all: HeaderValues = { ...refused.headers, ...headers, 'Content-Type': contentType };
  for (const name in all) requireValidHeader(name, all[name]);
  if (typeof body !== 'string') throw new ConfigError('refuse.body', 'a string', body);
  return { ...refused, headers: all, body };
}

/** RFC 9110: a name is a token, and a value has no line breaks. */
function requireValidHeader(name: string, value: unknown): void {
  if (!/^[\w!#$%&'*+.^`|~-]+$/.test(name)) {
    throw new ConfigError('refuse.headers', 'an object with valid header names', name);
  }
  if (typeof value === 'string' && /^[\t\x20-\x7e\x80-\xff]*$/.test(value)) return;
  throw new ConfigError(`refuse.headers.${name}`, 'a string without line breaks', value);
}

function problemResponse(
  status: RefusalStatus,
  detail: string,
  policies: readonly string[],
  retryAfterSeconds: number | undefined,
  headers: HeaderValues,
): RefusalProblem {
  const problem = { ...PROBLEM_BY_STATUS[status], status, detail, 'violated-policies': policies };
  if (retryAfterSeconds !== undefined) headers['Retry-After'] = String(retryAfterSeconds);
  headers['Content-Type'] = 'application/problem+json';
  return { isAllowed: false, status, headers, problem, policies, retryAfterSeconds };
}

/**
 * Between the decision and the inspection the clock may have moved, and the rule that refused may have capacity again.
 * A refusal that reports remaining capacity would contradict itself, so the tightest rule is shown as exhausted. During a
 * cool-down, and if the limiter is closed or its backend unavailable, the rules stay as they are.
 */
function withExhaustedRule(
  denied: DenialDetails,
  { rules, by }: RefusedStatus,
): readonly NamedRuleStatus[] {
  const { cost, retryAfterMs, reason } = denied;
  if (by === COOLDOWN || reason === 'unavailable' || reason === 'closed') return rules;
  if (rules.some((rule) => isViolated(rule, cost))) return rules;
  const tight = tightestRule(rules);
  return rules.map((rule) => (rule === tight ? exhausted(rule, retryAfterMs) : rule));
}

function exhausted(
  { opensInMs: _, ...rule }: NamedRuleStatus,
  retryAfterMs: Millis,
): NamedRuleStatus {
  const empty = { ...rule, remaining: 0 };
  return retryAfterMs === WHEN_SETTLED ? empty : { ...empty, opensInMs: retryAfterMs };
}

const isViolated = ({ remaining, cost: own }: ChargedRule, cost: number): boolean =>
  remaining < (own ?? cost);

/** Where some capacity remains but less than the cost, the reset time is when the cost fits. */
const withRetryTime = (
  rule: NamedRuleStatus,
  { cost, retryAfterMs }: DenialDetails,
): NamedRuleStatus =>
  rule.remaining >= 1 && isViolated(rule, cost) ? { ...rule, freshInMs: retryAfterMs } : rule;

/** An exhausted quota is reported as 429 even if a capacity rule refuses as well. */
function statusOf({ reason }: DenialDetails, rules: readonly NamedRuleStatus[]): RefusalStatus {
  if (reason !== undefined && reason in REASON_TEXTS) return 503;
  return rules.length > 0 && rules.every(({ isCapacity }) => isCapacity) ? 503 : 429;
}

/**
 * Whole seconds, at least 1; undefined if the cost never fits. When a call in flight settles is unknown: then 1.
 * A closed limiter never opens again, but the server that replaces this one may be up: 1 as well.
 */
function retryAfterSecondsOf({ retryAfterMs, reason }: DenialDetails): number | undefined {
  if (reason === 'closed') return 1;
  return retryAfterMs === NEVER ? undefined : Math.max(1, ceilSeconds(retryAfterMs));
}

const REASON_TEXTS: { readonly [reason in Refusal['reason']]?: string } = {
  'queue-full': 'The queue is full.',
  unavailable: 'The limit could not be checked.',
  closed: 'The server is closing.',
};

function detailOf({ reason }: DenialDetails, seconds: number | undefined): string {
  if (seconds === undefined) return 'The request costs more than the limit ever allows.';
  const text = (reason && REASON_TEXTS[reason]) ?? 'Over the limit.';
  return `${text} Try again in ${seconds} ${seconds === 1 ? 'second' : 'seconds'}.`;
}
