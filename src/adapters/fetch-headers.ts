/**
 * Reads back-pressure, Retry-After and rate limit headers from a response.
 *
 * | header                                             | format                                 |
 * | -------------------------------------------------- | -------------------------------------- |
 * | `Retry-After: 120` or a date                       | RFC 9110                               |
 * | `RateLimit: "burst";r=5;t=2, "day";r=900;t=3600`   | the current IETF draft                 |
 * | `RateLimit: limit=10, remaining=5, reset=2`        | an earlier version of the draft        |
 * | `RateLimit-Remaining: 5` `RateLimit-Reset: 2`      | a still earlier one                    |
 * | `X-RateLimit-Remaining: 5` `X-RateLimit-Reset: …`  | seconds, or a Unix time in seconds     |
 *
 * Dates are compared with the response's own `Date`, so that a wrong local clock has no effect. Invalid headers are
 * ignored.
 */

import type { Millis } from '../core/clock.ts';

/** The member of a Headers object that is used. */
export interface HeadersLike {
  get(name: string): string | null;
}

/** The remaining quota that a server reports, and when it resets. */
export interface Quota {
  readonly remaining: number;
  readonly resetMs?: Millis;
}

/** The server is overloaded or too slow: the same request may succeed later. */
export const isBackPressure = (status: number): boolean =>
  status === 408 || status === 429 || (status >= 500 && status !== 501);

/** The cool-down that a server requests; undefined if it requests none. `now` is since 1970. */
export function parseRetryAfter(headers: HeadersLike, now: Millis): Millis | undefined {
  const value = headers.get('retry-after')?.trim();
  if (!value) return undefined;
  const seconds = parseInteger(value);
  if (seconds !== undefined) return seconds * 1000;
  const at = /^[A-Za-z]{3,9},? /.test(value) ? Date.parse(value) : Number.NaN;
  return Number.isNaN(at) ? undefined : Math.max(0, at - responseDate(headers, now));
}

/** The remaining quota of the server's tightest limit; undefined if it reports none. */
export function parseQuota(headers: HeadersLike, now: Millis): Quota | undefined {
  const quota = parseRateLimitField(headers.get('ratelimit') ?? '');
  if (quota) return quota;
  for (const prefix of ['ratelimit', 'x-ratelimit']) {
    const remaining = parseInteger(headers.get(`${prefix}-remaining`));
    if (remaining === undefined) continue;
    return createQuota(remaining, parseReset(headers.get(`${prefix}-reset`), headers, now));
  }
  return undefined;
}

/** Parses the current and the earlier format of the RateLimit field. */
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

/** The integer value of a parameter. */
function integerParameterOf(text: string, name: string, separator: string): number | undefined {
  for (const part of splitOutsideQuotes(text, separator)) {
    const [parameter, value] = part.trim().split('=', 2);
    if (parameter.trim().toLowerCase() === name) return parseInteger(value ?? null);
  }
  return undefined;
}

/** Splits at separators outside quoted strings, in one pass: the server chooses the length and the number of quotes. */
function splitOutsideQuotes(text: string, separator: string): string[] {
  const parts: string[] = [];
  let from = 0;
  let isQuoted = false;
  for (let n = 0; n < text.length; n++) {
    const character = text[n];
    if (character === '"') isQuoted = !isQuoted;
    else if (character === '\\' && isQuoted) n++;
    else if (character === separator && !isQuoted) {
      parts.push(text.slice(from, n));
      from = n + 1;
    }
  }
  parts.push(text.slice(from));
  return parts;
}

/** A larger reset value is a Unix time and not a span: 10⁹ seconds are 31 years. */
const MAX_DELTA_SECONDS = 1e9;

function parseReset(value: string | null, headers: HeadersLike, now: Millis): Millis | undefined {
  const seconds = parseInteger(value);
  if (seconds === undefined || seconds < MAX_DELTA_SECONDS) return secondsToMs(seconds);
  return Math.max(0, seconds * 1000 - responseDate(headers, now));
}

/** The server's time of the response, or the local time if it has no `Date`. */
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
