/**
 * What callers ask over HTTP, read from a URL, a form or JSON, and checked before anything is taken.
 *
 *     /check?limit=api&key=alice&cost=2&hold=1
 *     {"limit": "api", "key": "alice", "cost": 2, "hold": true}
 *
 * Nothing here throws: what makes no sense comes back as a complaint.
 */

import { isUtf8 } from 'node:buffer';
import { OUTCOMES, type Outcome } from '../../../core/decision.ts';
import { isRecord, MAX_AMOUNT } from '../../../core/options.ts';
import type { PermitResult } from '../../../limiter/permit.ts';
import { toBinaryKey } from '../../keys/binary-key.ts';
import { type ParameterValues, readParameters, ValidationProblem } from './parameters.ts';

/** May this happen? */
export interface CheckParams {
  readonly limit: string | undefined;
  /** Undefined: it is to be found in the request. */
  readonly key: string | undefined;
  readonly cost: number;
  readonly wantsPermit: boolean;
  /** What a refusal is to be answered with; undefined: as it is usual. */
  readonly status: number | undefined;
}

/** How it went. */
export interface Settlement {
  readonly permit: string;
  readonly result: PermitResult;
}

const CHECK_NAMES = ['limit', 'key', 'cost', 'hold', 'status'] as const;
const SETTLE_NAMES = ['permit', 'outcome', 'used', 'rttMs', 'retryAfterMs'] as const;

const BOOLEAN_VALUES: Readonly<Record<string, boolean>> = {
  '': true,
  1: true,
  true: true,
  0: false,
  false: false,
};

/** Digits, and a fraction if need be: what `Number` takes besides is nothing to guess at. */
const DECIMAL = /^\d{1,16}(?:\.\d{1,16})?$/;

/** From a query or a form, which begins at a place. */
export function checkFromForm(text: string, from: number): CheckParams | ValidationProblem {
  const values = readParameters(text, from, CHECK_NAMES);
  if (values instanceof ValidationProblem) return values;
  const [limit, tag, cost, hold, status] = values;
  if (hold !== undefined && !Object.hasOwn(BOOLEAN_VALUES, hold))
    return new ValidationProblem('hold', '1 or 0', hold);
  return validateCheck(
    limit,
    tag,
    cost === undefined ? 1 : numberOf(cost),
    hold !== undefined && BOOLEAN_VALUES[hold],
    status === undefined ? undefined : numberOf(status),
    cost,
    status,
  );
}

const numberOf = (text: string): number => (DECIMAL.test(text) ? Number(text) : Number.NaN);

function validateCheck(
  limit: string | undefined,
  key: string | undefined,
  cost: number,
  hold: boolean,
  status: number | undefined,
  costWritten: unknown,
  statusWritten: unknown,
): CheckParams | ValidationProblem {
  if (!(cost >= 0 && cost <= MAX_AMOUNT))
    return new ValidationProblem('cost', EXPECTED_AMOUNT, costWritten);
  if (status !== undefined && !isRefusalStatus(status)) {
    return new ValidationProblem(
      'status',
      'a whole number from 400 to 599, for refusals',
      statusWritten,
    );
  }
  return { limit, key, cost, wantsPermit: hold, status };
}

const isRefusalStatus = (status: number): boolean =>
  Number.isInteger(status) && status >= 400 && status <= 599;

export const keyTooLong = (maxKey: number, key: string): ValidationProblem =>
  new ValidationProblem('key', `at most ${maxKey} bytes`, key);

const EXPECTED_AMOUNT = 'a number of at least 0';

export const MISSING_KEY = new ValidationProblem('key', 'a text', undefined);

/** From JSON: one question, or a list of them. */
export function checksFromJson(
  value: unknown,
  maxBatch: number,
): CheckParams | readonly CheckParams[] | ValidationProblem {
  if (!Array.isArray(value)) return checkFromJson(value);
  if (value.length > maxBatch) {
    return new ValidationProblem('body', `at most ${maxBatch} questions at once`, value.length);
  }
  const checks: CheckParams[] = [];
  for (let n = 0; n < value.length; n++) {
    const own = checkFromJson(value[n]);
    if (own instanceof ValidationProblem) return own.within(`[${n}]`);
    checks.push(own);
  }
  return checks;
}

function checkFromJson(value: unknown): CheckParams | ValidationProblem {
  const fields = namedFields(value, CHECK_NAMES);
  if (fields instanceof ValidationProblem) return fields;
  const [limit, key, cost = 1, hold = false, status] = fields;
  if (!isOptionalString(limit)) return new ValidationProblem('limit', 'a text', limit);
  if (!isOptionalString(key)) return new ValidationProblem('key', 'a text', key);
  if (typeof cost !== 'number') return new ValidationProblem('cost', EXPECTED_AMOUNT, cost);
  if (typeof hold !== 'boolean') return new ValidationProblem('hold', 'true or false', hold);
  if (status !== undefined && typeof status !== 'number') {
    return new ValidationProblem('status', 'a number', status);
  }
  const tag = key === undefined ? undefined : toBinaryKey(key);
  return validateCheck(limit, tag, cost, hold, status, cost, status);
}

const isOptionalString = (value: unknown): value is string | undefined =>
  value === undefined || typeof value === 'string';

/** The fields of an object by their names, in order; one that is not among them is a mistake. */
function namedFields(value: unknown, names: readonly string[]): unknown[] | ValidationProblem {
  if (!isRecord(value)) return new ValidationProblem('', 'an object', value);
  const stray = Object.keys(value).find((name) => !names.includes(name));
  if (stray !== undefined) return new ValidationProblem('', `one of ${names.join(', ')}`, stray);
  return names.map((name) => (Object.hasOwn(value, name) ? value[name] : undefined));
}

/** How a call went, from a query or a form. */
export function settlementFromForm(text: string, from: number): Settlement | ValidationProblem {
  const values = readParameters(text, from, SETTLE_NAMES);
  if (values instanceof ValidationProblem) return values;
  const [permit, outcome, ...numbers] = values;
  const [used, rttMs, retryAfterMs] = numbers.map((own) => own && numberOf(own));
  return validateSettlement(permit, outcome, { used, rttMs, retryAfterMs });
}

/** The same from JSON. */
export function settlementFromJson(value: unknown): Settlement | ValidationProblem {
  const fields = namedFields(value, SETTLE_NAMES);
  if (fields instanceof ValidationProblem) return fields;
  const [permit, outcome, used, rttMs, retryAfterMs] = fields;
  return validateSettlement(permit, outcome, { used, rttMs, retryAfterMs });
}

function validateSettlement(
  permit: unknown,
  outcome: unknown,
  numbers: Readonly<Record<string, unknown>>,
): Settlement | ValidationProblem {
  if (typeof permit !== 'string' || permit === '')
    return new ValidationProblem('permit', 'a text', permit);
  if (outcome !== undefined && !OUTCOMES.includes(outcome as Outcome)) {
    return new ValidationProblem('outcome', `one of ${OUTCOMES.join(', ')}`, outcome);
  }
  const given = Object.entries(numbers).filter(([, own]) => own !== undefined);
  const [bad, got] = given.find(([, own]) => !isAmount(own)) ?? [];
  if (bad !== undefined) return new ValidationProblem(bad, EXPECTED_AMOUNT, got);
  const said = outcome === undefined ? {} : { outcome: outcome as Outcome };
  return { permit, result: { ...said, ...Object.fromEntries(given) } };
}

const isAmount = (value: unknown): boolean =>
  typeof value === 'number' && value >= 0 && value <= MAX_AMOUNT;

/** Enough of a body to recognise it. */
const PREVIEW_BYTES = 64;

/** A body as JSON. Keys are bytes, so what is no UTF-8 is refused rather than mended. */
export function parseJsonBody(body: Buffer): { readonly value: unknown } | ValidationProblem {
  const start = body.toString('latin1', 0, PREVIEW_BYTES);
  if (!isUtf8(body)) return new ValidationProblem('body', 'UTF-8', start);
  try {
    return { value: JSON.parse(body.toString('utf8')) };
  } catch {
    return new ValidationProblem('body', 'JSON', start);
  }
}

/** The values of a query, for those who only look. */
export function readKeyQuery(
  text: string,
  from: number,
  maxKey: number,
): ParameterValues | ValidationProblem {
  const values = readParameters(text, from, ['key', 'limit']);
  if (values instanceof ValidationProblem) return values;
  const [key] = values;
  if (key === undefined) return MISSING_KEY;
  return key.length > maxKey ? keyTooLong(maxKey, key) : values;
}
