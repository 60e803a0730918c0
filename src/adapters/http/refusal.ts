/**
 * How a refusal is answered: a status, until when, and a body a program can read.
 *
 *     429  a quota is used up: this client asked too often             quota-exceeded
 *     503  a limit on calls in flight, or one that learnt that the      temporary-reduced-capacity
 *          service is busy, is full, or too many wait, or nobody
 *          could decide: not this client's fault
 *
 * Problem types as draft-ietf-httpapi-ratelimit-headers defines them, in a body of RFC 9457.
 */

import type { Millis } from '../../core/clock.ts';
import { NEVER, WHEN_SETTLED } from '../../core/decision.ts';
import { ConfigError } from '../../core/errors.ts';
import type { Inspection, NamedRuleStatus } from '../../limiter/inspection.ts';
import type { Refusal } from '../../limiter/permit.ts';
import { ceilSeconds, type HeaderValues, type HeaderWriter, tightestRule } from './headers.ts';

export type RefusalStatus = 429 | 503;

/** An answer to send instead of what was asked for. */
export interface RefusalResponse {
  readonly isAllowed: false;
  readonly status: RefusalStatus;
  readonly headers: HeaderValues;
  /** JSON, as `Content-Type` says. */
  readonly body: string;
  /** The rules that said no, by their names in the headers. */
  readonly policies: readonly string[];
  /** As `Retry-After` has it; undefined if it can never fit. */
  readonly retryAfterSeconds: number | undefined;
}

/** What to say otherwise: what is left out stays as it is. */
export interface RefusalOverrides {
  readonly headers?: HeaderValues;
  readonly contentType?: string;
  readonly body?: string;
}

/** What was refused, and why as far as the limiter says. */
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
  503: {
    type: `${PROBLEM_TYPE_BASE}temporary-reduced-capacity`,
    title: 'Request cannot be satisfied due to temporary server capacity constraints',
  },
};

/** What an inspection calls it when the other side wants to see nobody for a while. */
const COOLDOWN = 'cooldown';

/** Rules that speak of what the service can take, not of what a client may ask. */
const isCapacityRule = ({ isCapacity }: NamedRuleStatus): boolean => isCapacity === true;

/** Writes the answer, with the limit's headers if there is somebody to write them. */
export function buildRefusal(
  denied: DenialDetails,
  found: Inspection,
  writer?: HeaderWriter,
): RefusalResponse {
  const rules = withExhaustedRule(denied, found);
  const headers = writer?.write(rules.map((rule) => withRetryTime(rule, denied))) ?? {};
  const violated = rules.filter((rule) => isViolated(rule, denied.cost));
  const status = statusOf(denied, violated.length > 0 ? violated : rules);
  const seconds = retryAfterSecondsOf(denied);
  // Nobody says no, and yet it was refused: a pause. Then it is the limit.
  const names = violated.length > 0 ? violated.map(({ name }) => name) : [found.name];
  return problemResponse(status, detailOf(denied, seconds), names, seconds, headers);
}

/** The adapter itself is at a loss, and was told to refuse then; or there is nobody left to read it. */
export const buildUnavailableRefusal = (): RefusalResponse =>
  problemResponse(503, 'The limit could not be checked.', [], 1, {});

/** The same answer in somebody else's words. @throws {ConfigError} if they cannot be sent. */
export function withOverrides(
  refused: RefusalResponse,
  wording: RefusalOverrides,
): RefusalResponse {
  const {
    headers = {},
    contentType = refused.headers['Content-Type'],
    body = refused.body,
  } = wording;
  const all: HeaderValues = { ...refused.headers, ...headers, 'Content-Type': contentType };
  for (const name in all) requireValidHeader(name, all[name]);
  if (typeof body !== 'string') throw new ConfigError('refuse.body', 'a text', body);
  return { ...refused, headers: all, body };
}

/** As HTTP has it: a name is a token, and a value has no line of its own. */
function requireValidHeader(name: string, value: unknown): void {
  if (!/^[\w!#$%&'*+.^`|~-]+$/.test(name)) {
    throw new ConfigError('refuse.headers', 'headers by their names', name);
  }
  if (typeof value === 'string' && /^[\t\x20-\x7e\x80-\xff]*$/.test(value)) return;
  throw new ConfigError(`refuse.headers.${name}`, 'a text of one line', value);
}

function problemResponse(
  status: RefusalStatus,
  detail: string,
  policies: readonly string[],
  retryAfterSeconds: number | undefined,
  headers: HeaderValues,
): RefusalResponse {
  const body = { ...PROBLEM_BY_STATUS[status], status, detail, 'violated-policies': policies };
  if (retryAfterSeconds !== undefined) headers['Retry-After'] = String(retryAfterSeconds);
  headers['Content-Type'] = 'application/problem+json';
  const told = { policies, retryAfterSeconds };
  return { isAllowed: false, status, headers, body: JSON.stringify(body), ...told };
}

/**
 * Between the decision and the look at how things stand the clock may have moved, and whoever refused
 * may be open again. A refusal that says that something is left would be a riddle, so it was the
 * tightest. A pause speaks for itself, and so does one who could not be asked.
 */
function withExhaustedRule(
  denied: DenialDetails,
  { rules, by }: Inspection,
): readonly NamedRuleStatus[] {
  const { cost, retryAfterMs, reason } = denied;
  if (by === COOLDOWN || reason === 'unavailable' || rules.some((rule) => isViolated(rule, cost)))
    return rules;
  const tight = tightestRule(rules);
  return rules.map((rule) => (rule === tight ? exhausted(rule, retryAfterMs) : rule));
}

function exhausted(
  { opensInMs: _, ...rule }: NamedRuleStatus,
  retryAfterMs: Millis,
): NamedRuleStatus {
  const closed = { ...rule, remaining: 0 };
  return retryAfterMs === WHEN_SETTLED ? closed : { ...closed, opensInMs: retryAfterMs };
}

const isViolated = ({ remaining }: NamedRuleStatus, cost: number): boolean => remaining < cost;

/** Too little is left for what this costs: that lasts until it fits, not until all is as new. */
const withRetryTime = (
  rule: NamedRuleStatus,
  { cost, retryAfterMs }: DenialDetails,
): NamedRuleStatus =>
  rule.remaining >= 1 && isViolated(rule, cost) ? { ...rule, freshInMs: retryAfterMs } : rule;

/** A quota that is used up is the client's to know of, whatever else is full. */
function statusOf({ reason }: DenialDetails, rules: readonly NamedRuleStatus[]): RefusalStatus {
  if (reason !== undefined && reason in REASON_TEXTS) return 503;
  return rules.length > 0 && rules.every(isCapacityRule) ? 503 : 429;
}

/**
 * Whole seconds, at least one; undefined if it never opens. When a call in flight will settle nobody
 * knows: then one.
 */
const retryAfterSecondsOf = ({ retryAfterMs }: DenialDetails): number | undefined =>
  retryAfterMs === NEVER ? undefined : Math.max(1, ceilSeconds(retryAfterMs));

const REASON_TEXTS: { readonly [reason in Refusal['reason']]?: string } = {
  'queue-full': 'Too many requests wait already.',
  unavailable: 'The limit could not be checked.',
  closed: 'The server is closing.',
};

function detailOf({ reason }: DenialDetails, seconds: number | undefined): string {
  if (seconds === undefined) return 'It costs more than the limit ever allows.';
  const why = (reason && REASON_TEXTS[reason]) ?? 'Over the limit.';
  return `${why} Try again in ${seconds} ${seconds === 1 ? 'second' : 'seconds'}.`;
}
