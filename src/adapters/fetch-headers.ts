/**
 * What an answer says about load: in its status, and in its headers.
 *
 * | header                                             | who writes it so                       |
 * | -------------------------------------------------- | -------------------------------------- |
 * | `Retry-After: 120` or a date                       | everybody (RFC 9110)                   |
 * | `RateLimit: "burst";r=5;t=2, "day";r=900;t=3600`   | the IETF draft as it is                |
 * | `RateLimit: limit=10, remaining=5, reset=2`        | the draft as it was                    |
 * | `RateLimit-Remaining: 5` `RateLimit-Reset: 2`      | older still                            |
 * | `X-RateLimit-Remaining: 5` `X-RateLimit-Reset: …`  | seconds, or a date in seconds          |
 *
 * Dates are read against the answer's own `Date`: a client whose clock is wrong waits as long as
 * everybody else. What cannot be read was not said.
 */

import type { Millis } from '../core/clock.ts';

/** The least that is needed of a Headers object. */
export interface HeadersLike {
  get(name: string): string | null;
}

/** What the other side says is left, and for how long that holds. */
export interface Quota {
  readonly remaining: number;
  readonly resetMs?: Millis;
}

/** The other side has had enough, or was too slow: the same request may go well later. */
export const isBackPressure = (status: number): boolean =>
  status === 408 || status === 429 || (status >= 500 && status !== 501);

/** How long the other side wants nothing more; undefined if it does not say. `now` is since 1970. */
export function parseRetryAfter(headers: HeadersLike, now: Millis): Millis | undefined {
  const value = headers.get('retry-after')?.trim();
  if (!value) return undefined;
  const seconds = parseInteger(value);
  if (seconds !== undefined) return seconds * 1000;
  const at = /^[A-Za-z]{3,9},? /.test(value) ? Date.parse(value) : Number.NaN;
  return Number.isNaN(at) ? undefined : Math.max(0, at - responseDate(headers, now));
}

/** What is left on the other side, of whichever of its limits has least; undefined if it is silent. */
export function parseQuota(headers: HeadersLike, now: Millis): Quota | undefined {
  const modern = parseRateLimitField(headers.get('ratelimit') ?? '');
  if (modern) return modern;
  for (const prefix of ['ratelimit', 'x-ratelimit']) {
    const remaining = parseInteger(headers.get(`${prefix}-remaining`));
    if (remaining === undefined) continue;
    return createQuota(remaining, parseReset(headers.get(`${prefix}-reset`), headers, now));
  }
  return undefined;
}

/** Reads both spellings of the RateLimit field. */
function parseRateLimitField(field: string): Quota | undefined {
  const old = integerParameterOf(field, 'remaining', ',');
  if (old !== undefined)
    return createQuota(old, secondsToMs(integerParameterOf(field, 'reset', ',')));
  const items = splitOutsideQuotes(field, ',').flatMap((item) => {
    const remaining = integerParameterOf(item, 'r', ';');
    return remaining === undefined
      ? []
      : [createQuota(remaining, secondsToMs(integerParameterOf(item, 't', ';')))];
  });
  return items.sort((a, b) => a.remaining - b.remaining)[0];
}

/** The whole number behind `name=` among parameters. */
function integerParameterOf(text: string, name: string, separator: string): number | undefined {
  for (const part of splitOutsideQuotes(text, separator)) {
    const [own, value] = part.trim().split('=', 2);
    if (own.trim().toLowerCase() === name) return parseInteger(value ?? null);
  }
  return undefined;
}

/** Splits, but not inside a quoted name. */
const splitOutsideQuotes = (text: string, separator: string): string[] =>
  text.split(separator === ',' ? /,(?=(?:[^"]*"[^"]*")*[^"]*$)/ : /;(?=(?:[^"]*"[^"]*")*[^"]*$)/);

/** Beyond this many seconds it is a date, not a span: nobody resets a quota in thirty years. */
const MAX_DELTA_SECONDS = 1e9;

function parseReset(value: string | null, headers: HeadersLike, now: Millis): Millis | undefined {
  const seconds = parseInteger(value);
  if (seconds === undefined || seconds < MAX_DELTA_SECONDS) return secondsToMs(seconds);
  return Math.max(0, seconds * 1000 - responseDate(headers, now));
}

/** The time on the other side when it answered, or ours if it does not say. */
function responseDate(headers: HeadersLike, now: Millis): Millis {
  const at = Date.parse(headers.get('date') ?? '');
  return Number.isNaN(at) ? now : at;
}

const secondsToMs = (seconds: number | undefined): Millis | undefined =>
  seconds === undefined ? undefined : seconds * 1000;

const parseInteger = (value: string | null): number | undefined =>
  value !== null && /^\s*\d{1,15}\s*$/.test(value) ? Number(value) : undefined;

const createQuota = (remaining: number, resetMs: Millis | undefined): Quota =>
  resetMs === undefined ? { remaining } : { remaining, resetMs };
