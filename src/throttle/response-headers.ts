/**
 * Reads back-pressure, Retry-After and rate limit headers from a response.
 *
 * | header                                                      | format                                          |
 * | ----------------------------------------------------------- | ----------------------------------------------- |
 * | `Retry-After: 120` or a date                                | RFC 9110                                        |
 * | `Retry-After-Ms: 1500`                                      | milliseconds: OpenAI, Azure                     |
 * | `RateLimit: "burst";r=5;t=2, "day";r=900;t=3600`            | the current IETF draft                          |
 * | `RateLimit: limit=10, remaining=5, reset=2`                 | an earlier version of the draft                 |
 * | `RateLimit-Remaining: 5` `RateLimit-Reset: 2`               | a still earlier one                             |
 * | `X-RateLimit-Remaining: 5` `X-RateLimit-Reset: …`           | a reset as below                                |
 * | `X-RateLimit-Remaining-Tokens: 5` `X-RateLimit-Reset-Tokens: 6m0s` | by unit: OpenAI, Azure, Groq, Cerebras   |
 * | `anthropic-ratelimit-tokens-remaining: 5` `…-reset: 2026-…Z` | by unit: Anthropic                             |
 *
 * A reset is a number of seconds, a Unix time in seconds, a span such as `1m12.5s` or `20ms`, or an RFC 3339 time. Times are
 * compared with the response's own `Date`, so that a wrong local clock has no effect. Invalid headers are ignored.
 */

import type { Millis } from '../core/clock.ts';

/** The members of a Headers object that are used. */
export interface HeadersLike {
  get(name: string): string | null;
  /** Finds the units of rate limit headers; without it, `COMMON_UNITS`. */
  [Symbol.iterator]?(): Iterator<readonly [string, string]>;
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
  const ms = parseDecimal(headers.get('retry-after-ms'));
  if (ms !== undefined) return ms;
  const value = headers.get('retry-after')?.trim();
  if (!value) return undefined;
  const seconds = parseDecimal(value);
  if (seconds !== undefined) return seconds * 1000;
  const at = /^[A-Za-z]{3,9},? /.test(value) ? Date.parse(value) : Number.NaN;
  return Number.isNaN(at) ? undefined : Math.max(0, at - responseDate(headers, now));
}

/**
 * The remaining quota of the server's tightest limit; undefined if it reports none. Limits that count another unit than
 * `unit` say something only if they are used up: then no request passes until the reset.
 */
export function parseQuota(
  headers: HeadersLike,
  now: Millis,
  unit = 'requests',
): Quota | undefined {
  let tightest = parsePlainQuota(headers, now);
  for (const { remainingName, resetName, counted } of unitHeadersOf(headers)) {
    const remaining = parseInteger(headers.get(remainingName));
    if (remaining === undefined) continue;
    const isCounted = counted === unit || counted.startsWith(`${unit}-`);
    if (!isCounted && remaining > 0) continue;
    const quota = createQuota(remaining, parseReset(headers.get(resetName), headers, now));
    if (!tightest || isTighter(quota, tightest)) tightest = quota;
  }
  return tightest;
}

/** The quota with less remaining is tighter; if both have as much, the one that resets later. */
function isTighter(a: Quota, b: Quota): boolean {
  if (a.remaining !== b.remaining) return a.remaining < b.remaining;
  return (a.resetMs ?? 0) > (b.resetMs ?? 0);
}

/** The quota of headers that name no unit. */
function parsePlainQuota(headers: HeadersLike, now: Millis): Quota | undefined {
  const quota = parseRateLimitField(headers.get('ratelimit') ?? '');
  if (quota) return quota;
  for (const prefix of ['ratelimit', 'x-ratelimit']) {
    const remaining = parseInteger(headers.get(`${prefix}-remaining`));
    if (remaining === undefined) continue;
    return createQuota(remaining, parseReset(headers.get(`${prefix}-reset`), headers, now));
  }
  return undefined;
}

/** The names of the two headers of one limit, and what it counts: `requests`, `tokens`, `tokens-minute`. */
interface UnitHeaders {
  readonly remainingName: string;
  readonly resetName: string;
  readonly counted: string;
}

/** Units that are looked for where headers cannot be listed. */
const COMMON_UNITS = ['requests', 'tokens', 'input-tokens', 'output-tokens'];

/** The most limits that are read of one response. */
const MAX_UNITS = 16;

const UNIT_HEADER =
  /^(?:(x-ratelimit-remaining)-([a-z_-]{1,40})|anthropic-ratelimit-([a-z_-]{1,40})-remaining)$/;

const unitHeaders = (counted: string): UnitHeaders => ({
  remainingName: `x-ratelimit-remaining-${counted}`,
  resetName: `x-ratelimit-reset-${counted}`,
  counted,
});

const anthropicHeaders = (counted: string): UnitHeaders => ({
  remainingName: `anthropic-ratelimit-${counted}-remaining`,
  resetName: `anthropic-ratelimit-${counted}-reset`,
  counted,
});

function unitHeadersOf(headers: HeadersLike): UnitHeaders[] {
  if (typeof headers[Symbol.iterator] !== 'function')
    return COMMON_UNITS.flatMap((counted) => [unitHeaders(counted), anthropicHeaders(counted)]);
  const found: UnitHeaders[] = [];
  for (const [name] of headers as Iterable<readonly [string, string]>) {
    const [match, , unit, anthropicUnit] = UNIT_HEADER.exec(name.toLowerCase()) ?? [];
    if (match === undefined) continue;
    found.push(unit === undefined ? anthropicHeaders(anthropicUnit) : unitHeaders(unit));
    if (found.length === MAX_UNITS) break;
  }
  return found;
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

const SPAN =
  /^(?:(\d{1,5})d)?(?:(\d{1,6})h)?(?:(\d{1,7})m)?(?:(\d{1,9}(?:\.\d{1,9})?)s)?(?:(\d{1,12}(?:\.\d{1,9})?)ms)?$/;
const SPAN_UNITS_MS: readonly Millis[] = [86_400_000, 3_600_000, 60_000, 1000, 1];
const RFC_3339 = /^\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2})$/;

function parseReset(value: string | null, headers: HeadersLike, now: Millis): Millis | undefined {
  const text = value?.trim() ?? '';
  const seconds = parseDecimal(text);
  if (seconds !== undefined && seconds < MAX_DELTA_SECONDS) return seconds * 1000;
  const at = seconds === undefined ? parseTime(text) : seconds * 1000;
  return at === undefined ? parseSpan(text) : Math.max(0, at - responseDate(headers, now));
}

const parseTime = (text: string): Millis | undefined =>
  RFC_3339.test(text) ? validOr(Date.parse(text)) : undefined;

const validOr = (at: Millis): Millis | undefined => (Number.isNaN(at) ? undefined : at);

/** `6m0s`, `1m12.5s`, `20ms`: a span as Go prints it. */
function parseSpan(text: string): Millis | undefined {
  const [match, ...amounts] = SPAN.exec(text) ?? [];
  if (!match) return undefined;
  return amounts.reduce((sum, amount, n) => sum + Number(amount ?? 0) * SPAN_UNITS_MS[n], 0);
}

/** The server's time of the response, or the local time if it has no `Date`. */
function responseDate(headers: HeadersLike, now: Millis): Millis {
  const at = Date.parse(headers.get('date') ?? '');
  return Number.isNaN(at) ? now : at;
}

const secondsToMs = (seconds: number | undefined): Millis | undefined =>
  seconds === undefined ? undefined : seconds * 1000;

/** Parses a number without sign and exponent, so that it is bounded. */
const parseDecimal = (value: string | null): number | undefined =>
  value !== null && /^\s*\d{1,15}(?:\.\d{1,15})?\s*$/.test(value) ? Number(value) : undefined;

const parseInteger = (value: string | null): number | undefined =>
  value !== null && /^\s*\d{1,15}\s*$/.test(value) ? Number(value) : undefined;

const createQuota = (remaining: number, resetMs: Millis | undefined): Quota =>
  resetMs === undefined ? { remaining } : { remaining, resetMs };
