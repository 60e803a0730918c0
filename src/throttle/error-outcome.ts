/**
 * Reads what a thrown error says about load: its outcome and its Retry-After.
 *
 * | client                   | status                       | headers                     |
 * | ------------------------ | ---------------------------- | --------------------------- |
 * | fetch wrappers, ky       | `status`, `response.status`  | `response.headers`          |
 * | axios, Octokit           | `status`, `response.status`  | `response.headers`          |
 * | openai, Anthropic        | `status`                     | `headers`                   |
 * | got                      | `response.statusCode`        | `response.headers`          |
 * | Stripe, superagent       | `statusCode`, `status`       | `headers`                   |
 * | AWS SDK v3               | `$metadata.httpStatusCode`   | `$response.headers`         |
 *
 * A wrapper's `cause` is searched too. 408, 429 and 5xx but 501 are back-pressure; so are network errors and timeouts. An
 * abort by the caller says nothing about load; a timeout does, also one that the caller set.
 */

import type { Millis } from '../core/clock.ts';
import type { Outcome } from '../core/decision.ts';
import { type HeadersLike, isBackPressure, parseRetryAfter } from './response-headers.ts';

/** The server or the network did not reply in time. ECONNABORTED: a timeout of axios. */
const TIMEOUT_CODES = [
  'ETIMEDOUT',
  'ESOCKETTIMEDOUT',
  'ECONNABORTED',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
];

/** The server accepts no connection, or closed it. */
const BUSY_CODES = ['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET'];

/** AWS replies to a throttled request with 400 as well. */
const AWS_THROTTLING =
  /^(?:Throttl|TooManyRequests|RequestThrottled|RequestLimitExceeded|ProvisionedThroughputExceeded|BandwidthLimitExceeded|LimitExceeded|PriorRequestNotComplete|SlowDown|EC2ThrottledException)/;

/** How many levels of `cause` are searched, and how many errors of one level. */
const MAX_CAUSE_DEPTH = 4;
const MAX_ERRORS = 8;

type Fields = Readonly<Record<string, unknown>>;

/** The outcome of a call that threw. */
export function outcomeOfError(error: unknown): Outcome {
  try {
    return readOutcome(errorsIn(error));
  } catch {
    return 'failed'; // a property that throws
  }
}

/** The Retry-After of an error that reports back-pressure; undefined if it has none. */
export function retryAfterOfError(error: unknown, now: Millis): Millis | undefined {
  try {
    for (const each of errorsIn(error)) {
      if (!isThrottled(each)) continue;
      const headers = headersOf(each);
      const ms = headers && parseRetryAfter(headers, now);
      if (ms !== undefined) return ms;
      const seconds = Number(each.retryAfterSeconds ?? Number.NaN); // AWS
      if (seconds >= 0 && seconds < Infinity) return seconds * 1000;
    }
  } catch {
    // a property that throws
  }
  return undefined;
}

function readOutcome(errors: readonly Fields[]): Outcome {
  const known = errors.find((each) => statusOf(each) !== undefined);
  if (known) return isThrottled(known) ? 'busy' : 'failed';
  if (errors.some(isTimeout)) return 'timeout';
  return errors.some(({ code }) => BUSY_CODES.includes(code as string)) ? 'busy' : 'failed';
}

/** An error and its causes; a host with two addresses has two causes. */
function errorsIn(error: unknown, depth = 0): Fields[] {
  if (typeof error !== 'object' || error === null || depth > MAX_CAUSE_DEPTH) return [];
  const fields = error as Fields;
  const several = Array.isArray(fields.errors) ? fields.errors.slice(0, MAX_ERRORS) : [];
  return [fields, ...[fields.cause, ...several].flatMap((each) => errorsIn(each, depth + 1))];
}

/** The names of the timeouts of DOM, got and AWS; that of openai and Anthropic is only in the class. */
const isTimeout = ({ name, code, constructor: Class }: Fields): boolean =>
  name === 'TimeoutError' ||
  TIMEOUT_CODES.includes(code as string) ||
  (typeof Class === 'function' && Class.name === 'APIConnectionTimeoutError');

function isThrottled(error: Fields): boolean {
  const status = statusOf(error);
  if (status === undefined) return false;
  return isBackPressure(status) || isAwsThrottling(error);
}

function isAwsThrottling({ $metadata, $retryable, name }: Fields): boolean {
  if (!isFields($metadata)) return false;
  const isMarked = isFields($retryable) && $retryable.throttling === true;
  return isMarked || AWS_THROTTLING.test(String(name));
}

function statusOf({ status, statusCode, response, $metadata }: Fields): number | undefined {
  const inResponse = isFields(response) ? [response.status, response.statusCode] : [];
  const inMetadata = isFields($metadata) ? [$metadata.httpStatusCode] : [];
  const found = [status, statusCode, ...inResponse, ...inMetadata].find(isStatus);
  return found === undefined ? undefined : Number(found);
}

const isStatus = (value: unknown): boolean => /^[1-5]\d\d$/.test(String(value));

function headersOf({ headers, response, $response }: Fields): HeadersLike | undefined {
  const inResponse = [response, $response].map((each) =>
    isFields(each) ? each.headers : undefined,
  );
  const found = [headers, ...inResponse].find(isFields);
  if (found === undefined) return undefined;
  return typeof found.get === 'function' ? (found as unknown as HeadersLike) : toHeaders(found);
}

/** Headers as a plain object, whatever the case of their names. */
const toHeaders = (record: Fields): HeadersLike => ({
  get(name) {
    const key = Object.keys(record).find((each) => each.toLowerCase() === name);
    const value = key === undefined ? undefined : record[key];
    const first = Array.isArray(value) ? value[0] : value;
    return first === undefined || first === null ? null : String(first);
  },
});

const isFields = (value: unknown): value is Fields => typeof value === 'object' && value !== null;
