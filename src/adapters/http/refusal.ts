/**
 * How a refusal is answered: a status, until when, and a body a program can read.
 *
 *     429  a quota is used up: this client asked too often             quota-exceeded
 *     503  a limit on calls in flight, or one that learnt that the      temporary-reduced-capacity
 *          service is busy, is full, or too many wait: nobody's fault
 *
 * Problem types as draft-ietf-httpapi-ratelimit-headers defines them, in a body of RFC 9457.
 */

import type { Millis } from '../../clock.ts';
import { NEVER } from '../../decision.ts';
import type { Inspection, NamedStanding } from '../../inspection.ts';
import type { Refusal } from '../../permit.ts';
import { effectiveSeconds, type Headers, type HeaderWriter, wholeSeconds } from './headers.ts';

export type RefusalStatus = 429 | 503;

/** An answer to send instead of what was asked for. */
export interface Refused {
  readonly go: false;
  readonly status: RefusalStatus;
  readonly headers: Headers;
  /** JSON, as `Content-Type` says. */
  readonly body: string;
}

/** What was refused, and why as far as the limiter says. */
export interface Denied {
  readonly cost: number;
  readonly retryAfterMs: Millis;
  readonly reason?: Refusal['reason'];
}

const PROBLEMS = 'https://iana.org/assignments/http-problem-types#';

const PROBLEM: Readonly<Record<RefusalStatus, { type: string; title: string }>> = {
  429: {
    type: `${PROBLEMS}quota-exceeded`,
    title: 'Request cannot be satisfied as assigned quota has been exceeded',
  },
  503: {
    type: `${PROBLEMS}temporary-reduced-capacity`,
    title: 'Request cannot be satisfied due to temporary server capacity constraints',
  },
};

/** Rules that speak of what the service can take, not of what a client may ask. */
const isCapacity = ({ kind }: NamedStanding): boolean => kind === 'adaptive' || kind === 'busy';

/** Writes the answer, with the limit's headers if there is somebody to write them. */
export function refuse(denied: Denied, found: Inspection, writer?: HeaderWriter): Refused {
  const headers = writer?.write(found.rules.map((rule) => untilItFits(rule, denied))) ?? {};
  const violated = found.rules.filter((rule) => saysNo(rule, denied.cost));
  const status = statusOf(denied, violated.length > 0 ? violated : found.rules);
  const seconds = retrySeconds(denied, violated);
  if (seconds !== undefined) headers['Retry-After'] = String(seconds);
  // Nobody says no, and yet it was refused: a pause, a full queue, a partition. Then it is the limit.
  const names = violated.length > 0 ? violated.map(({ name }) => name) : [found.name];
  return problem(status, detailOf(denied, seconds), names, headers);
}

/** The adapter itself is at a loss, and was told to refuse then. */
export const refuseUnavailable = (): Refused =>
  problem(503, 'The limit could not be checked.', [], { 'Retry-After': '1' });

function problem(
  status: RefusalStatus,
  detail: string,
  policies: readonly string[],
  headers: Headers,
): Refused {
  const body = { ...PROBLEM[status], status, detail, 'violated-policies': policies };
  headers['Content-Type'] = 'application/problem+json';
  return { go: false, status, headers, body: JSON.stringify(body) };
}

const saysNo = ({ remaining }: NamedStanding, cost: number): boolean => remaining < cost;

/** Too little is left for what this costs: that lasts until it fits, not until all is as new. */
const untilItFits = (rule: NamedStanding, { cost, retryAfterMs }: Denied): NamedStanding =>
  rule.remaining >= 1 && saysNo(rule, cost) ? { ...rule, freshInMs: retryAfterMs } : rule;

/** A quota that is used up is the client's to know of, whatever else is full. */
function statusOf({ reason }: Denied, rules: readonly NamedStanding[]): RefusalStatus {
  if (reason === 'queue-full') return 503;
  return rules.length > 0 && rules.every(isCapacity) ? 503 : 429;
}

/**
 * Whole seconds, at least one, and never over before the limit says it opens; undefined if it never
 * does. When a call in flight will settle nobody knows: then one.
 */
function retrySeconds(
  { retryAfterMs }: Denied,
  violated: readonly NamedStanding[],
): number | undefined {
  if (retryAfterMs === NEVER) return undefined;
  const opens = violated.filter(({ remaining }) => remaining < 1).map(effectiveSeconds);
  return Math.max(1, wholeSeconds(retryAfterMs), ...opens.map((seconds) => seconds ?? 0));
}

function detailOf({ reason }: Denied, seconds: number | undefined): string {
  if (seconds === undefined) return 'It costs more than the limit ever allows.';
  const why = reason === 'queue-full' ? 'Too many requests wait already.' : 'Over the limit.';
  return `${why} Try again in ${seconds} ${seconds === 1 ? 'second' : 'seconds'}.`;
}
