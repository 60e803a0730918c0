/**
 * Reads checks and settlements from a URL, a form or JSON, and validates them before anything is taken.
 *
 *     /check?limit=api&key=alice&cost=2&hold=1
 *     {"limit": "api", "key": "alice", "cost": 2, "hold": true}
 *
 * Nothing here throws: an invalid request is returned as a `ValidationProblem`.
 */

import { isUtf8 } from 'node:buffer';
import type { Millis } from '../../../core/clock.ts';
import {
  ATTEMPT_OUTCOMES,
  type AttemptOutcome,
  OUTCOMES,
  type Outcome,
} from '../../../core/decision.ts';
import { parseDuration, suggestDuration } from '../../../core/duration.ts';
import { FLOW_FIELDS, type FlowOptions, flowProblem } from '../../../core/flow.ts';
import { repeatedMember } from '../../../core/json.ts';
import { isRecord, MAX_AMOUNT } from '../../../core/options.ts';
import { EXPECTED_ID, isId } from '../../../limiter/idempotent-calls.ts';
import type { PermitResult } from '../../../limiter/permit.ts';
import { toBinaryKey } from '../../keys/binary-key.ts';
import { type ParameterValues, readParameters, ValidationProblem } from './parameters.ts';

export interface CheckParams {
  readonly limit: string | undefined;
  /** Undefined: the request's headers or address say it. */
  readonly key: string | undefined;
  readonly cost: number;
  readonly wantsPermit: boolean;
  /** Status of a refusal; undefined: 429, 503 or 403 by its cause. */
  readonly status: number | undefined;
  /** How long the call may wait; undefined: it is decided at once. */
  readonly waitMs?: Millis | undefined;
  /** Undefined: a header or the plan file say it. */
  readonly plan?: string | undefined;
  /** Repeats with the same id are charged once. */
  readonly id?: string | undefined;
  /** The header that has the id, in lower case. */
  readonly idHeader?: string | undefined;
  /** Whose call waits, for limits with `queue: fair`. */
  readonly flow?: FlowOptions | undefined;
}

export interface TakeParams extends Pick<CheckParams, 'limit' | 'key' | 'wantsPermit'> {
  readonly max: number;
}

export interface GiveBackParams {
  readonly permit: string;
  readonly unused: number;
}

export interface ReportParams extends Pick<CheckParams, 'limit' | 'key' | 'plan'> {
  readonly attempt: AttemptOutcome;
}

export interface Settlement {
  readonly permit: string;
  readonly result: PermitResult;
}

export const CHECK_NAMES = [
  ...(['limit', 'key', 'cost', 'hold', 'status', 'wait', 'plan', 'id'] as const),
  ...FLOW_FIELDS,
] as const;
const CHECK_FORM_NAMES = [...CHECK_NAMES, 'id-header'] as const;
const TAKE_NAMES = ['limit', 'key', 'max', 'hold'] as const;
const GIVE_BACK_NAMES = ['permit', 'unused'] as const;
const SETTLE_NAMES = ['permit', 'outcome', 'used', 'rttMs', 'retryAfterMs', 'attempt'] as const;
const REPORT_NAMES = ['limit', 'key', 'attempt', 'plan'] as const;

const BOOLEAN_VALUES: Readonly<Record<string, boolean>> = {
  '': true,
  1: true,
  true: true,
  0: false,
  false: false,
};

/** Stricter than `Number`, which also takes spaces, signs, exponents and hexadecimal. */
const DECIMAL = /^\d{1,16}(?:\.\d{1,16})?$/;

/** Reads a query or a form that begins at an offset. */
export function checkFromForm(text: string, from: number): CheckParams | ValidationProblem {
  const values = readParameters(text, from, CHECK_FORM_NAMES);
  if (values instanceof ValidationProblem) return values;
  const [limit, key, cost, hold, status, wait, plan, id, ...others] = values;
  const [flow, flowWeight, tenant, tenantWeight, idHeader] = others;
  const namesFlow = (flow ?? flowWeight ?? tenant ?? tenantWeight) !== undefined;
  if ((cost ?? hold ?? status ?? wait ?? id ?? idHeader) === undefined && !namesFlow)
    return { limit, key, cost: 1, wantsPermit: false, status: undefined, plan };
  if (hold !== undefined && !Object.hasOwn(BOOLEAN_VALUES, hold))
    return new ValidationProblem('hold', '1 or 0', hold);
  const check = validateCheck(
    limit,
    key,
    cost === undefined ? 1 : numberOf(cost),
    hold !== undefined && BOOLEAN_VALUES[hold],
    status === undefined ? undefined : numberOf(status),
    plan,
    cost,
    status,
    wait,
  );
  const known = withId(check, id, idHeader);
  if (!namesFlow) return known;
  return withFlow(known, [flow, amountOf(flowWeight), tenant, amountOf(tenantWeight)]);
}

/** Adds the flow of a call that waits. */
function withFlow(
  check: CheckParams | ValidationProblem,
  values: readonly unknown[],
): CheckParams | ValidationProblem {
  if (check instanceof ValidationProblem) return check;
  const [flow, flowWeight, tenant, tenantWeight] = values;
  const weights = {
    ...(flowWeight !== undefined && { flowWeight }),
    ...(tenantWeight !== undefined && { tenantWeight }),
  };
  const names = { ...(flow !== undefined && { flow }), ...(tenant !== undefined && { tenant }) };
  const options = { ...names, ...weights } as FlowOptions;
  const problem = flowProblem(options);
  if (problem) return new ValidationProblem(...problem);
  if (check.waitMs === undefined)
    return new ValidationProblem('wait', 'given with `flow` or `tenant`', undefined);
  return { ...check, flow: options };
}

/** A header is read only where the URL names it: a client of a proxy must not choose the id. */
function withId(
  check: CheckParams | ValidationProblem,
  id: string | undefined,
  idHeader?: string,
): CheckParams | ValidationProblem {
  if (check instanceof ValidationProblem || (id ?? idHeader) === undefined) return check;
  if (id !== undefined && idHeader !== undefined)
    return new ValidationProblem('id-header', 'left out beside `id`', idHeader);
  if (id !== undefined && !isId(id)) return invalidId(id);
  return { ...check, id, idHeader: idHeader?.toLowerCase() };
}

export const invalidId = (id: unknown): ValidationProblem =>
  new ValidationProblem('id', EXPECTED_ID, id);

const numberOf = (text: string): number => (DECIMAL.test(text) ? Number(text) : Number.NaN);

function validateCheck(
  limit: string | undefined,
  key: string | undefined,
  cost: number,
  wantsPermit: boolean,
  status: number | undefined,
  plan: string | undefined,
  rawCost: unknown,
  rawStatus: unknown,
  wait: unknown,
): CheckParams | ValidationProblem {
  if (!(cost >= 0 && cost <= MAX_AMOUNT))
    return new ValidationProblem('cost', EXPECTED_AMOUNT, rawCost);
  if (status !== undefined && !isRefusalStatus(status)) {
    return new ValidationProblem('status', 'an integer from 400 to 599', rawStatus);
  }
  if (wait === undefined) return { limit, key, cost, wantsPermit, status, plan };
  const waitMs = wait === '0' ? 0 : parseDuration(wait); // as text, another number needs a unit
  if (waitMs === undefined || waitMs < 0)
    return new ValidationProblem('wait', EXPECTED_WAIT, wait, suggestDuration(wait));
  return { limit, key, cost, wantsPermit, status, plan, waitMs };
}

const EXPECTED_WAIT = 'a duration such as 500ms or 2s, or 0';

/** A wait that the daemon's bound does not allow. */
export const waitTooLong = (maxWaitMs: Millis, waitMs: Millis): ValidationProblem =>
  new ValidationProblem('wait', `at most ${maxWaitMs} ms (bounds.wait)`, waitMs);

const isRefusalStatus = (status: number): boolean =>
  Number.isInteger(status) && status >= 400 && status <= 599;

/** An empty key is a value that the caller does not have. */
export const hasValidLength = (key: string, maxKey: number): boolean =>
  key !== '' && key.length <= maxKey;

/** The error for a key that is empty or too long. */
export const keyLengthProblem = (key: string, maxKey: number): ValidationProblem =>
  new ValidationProblem(
    'key',
    key === '' ? 'a string that is not empty' : `at most ${maxKey} bytes`,
    key,
  );

const EXPECTED_AMOUNT = 'a number from 0 to 1e15';

/** `header`: the one that may hold the key instead. */
export const missingKey = (header?: string): ValidationProblem => {
  const expected =
    header === undefined ? 'a string' : `a parameter, or once in the header ${header}`;
  return new ValidationProblem('key', expected, undefined);
};

/** Reads one check or a batch of them. */
export function checksFromJson(
  value: unknown,
  maxBatch: number,
): CheckParams | readonly CheckParams[] | ValidationProblem {
  if (!Array.isArray(value)) return checkFromJson(value);
  if (value.length > maxBatch) {
    return new ValidationProblem('body', `at most ${maxBatch} checks`, value.length);
  }
  const checks: CheckParams[] = [];
  for (let n = 0; n < value.length; n++) {
    const check = checkFromJson(value[n]);
    if (check instanceof ValidationProblem) return check.within(`[${n}]`);
    if (check.waitMs !== undefined)
      return new ValidationProblem('wait', 'left out in a batch', check.waitMs).within(`[${n}]`);
    checks.push(check);
  }
  return checks;
}

function checkFromJson(value: unknown): CheckParams | ValidationProblem {
  const fields = namedFields(value, CHECK_NAMES);
  if (fields instanceof ValidationProblem) return fields;
  const [limit, key, cost = 1, hold = false, status, wait, plan, id] = fields;
  if (!isOptionalString(limit)) return new ValidationProblem('limit', 'a string', limit);
  if (!isOptionalString(key)) return new ValidationProblem('key', 'a string', key);
  if (typeof cost !== 'number') return new ValidationProblem('cost', EXPECTED_AMOUNT, cost);
  if (typeof hold !== 'boolean') return new ValidationProblem('hold', 'true or false', hold);
  if (status !== undefined && typeof status !== 'number') {
    return new ValidationProblem('status', 'a number', status);
  }
  if (!isOptionalString(plan)) return new ValidationProblem('plan', 'a string', plan);
  const binaryKey = key === undefined ? undefined : toBinaryKey(key);
  const check = validateCheck(limit, binaryKey, cost, hold, status, plan, cost, status, wait);
  const isIdValid = id === undefined || typeof id === 'string';
  if (!isIdValid) return invalidId(id);
  const known = withId(check, id === undefined ? undefined : toBinaryKey(id));
  const flow = fields.slice(-FLOW_FIELDS.length);
  if (flow.every((field) => field === undefined)) return known;
  const [flowName, flowWeight, tenant, tenantWeight] = flow;
  return withFlow(known, [binaryName(flowName), flowWeight, binaryName(tenant), tenantWeight]);
}

const binaryName = (value: unknown): unknown =>
  typeof value === 'string' ? toBinaryKey(value) : value;

const isOptionalString = (value: unknown): value is string | undefined =>
  value === undefined || typeof value === 'string';

/** The values of an object in the order of the names; an unknown name is an error. */
function namedFields(value: unknown, names: readonly string[]): unknown[] | ValidationProblem {
  if (!isRecord(value)) return new ValidationProblem('', 'an object', value);
  const unknown = Object.keys(value).find((name) => !names.includes(name));
  if (unknown !== undefined)
    return new ValidationProblem('', `one of ${names.join(', ')}`, unknown);
  return names.map((name) => (Object.hasOwn(value, name) ? value[name] : undefined));
}

export function settlementFromForm(text: string, from: number): Settlement | ValidationProblem {
  const values = readParameters(text, from, SETTLE_NAMES);
  if (values instanceof ValidationProblem) return values;
  const [permit, outcome, used, rttMs, retryAfterMs, attempt] = values;
  const [usedAmount, rtt, retryAfter] = [used, rttMs, retryAfterMs].map(amountOf);
  const numbers = { used: usedAmount, rttMs: rtt, retryAfterMs: retryAfter };
  return validateSettlement(permit, outcome, attempt, numbers);
}

export function settlementFromJson(value: unknown): Settlement | ValidationProblem {
  const fields = namedFields(value, SETTLE_NAMES);
  if (fields instanceof ValidationProblem) return fields;
  const [permit, outcome, used, rttMs, retryAfterMs, attempt] = fields;
  return validateSettlement(permit, outcome, attempt, { used, rttMs, retryAfterMs });
}

function validateSettlement(
  permit: unknown,
  outcome: unknown,
  attempt: unknown,
  numbers: Readonly<Record<string, unknown>>,
): Settlement | ValidationProblem {
  if (typeof permit !== 'string' || permit === '')
    return new ValidationProblem('permit', 'a string', permit);
  if (outcome !== undefined && !OUTCOMES.includes(outcome as Outcome)) {
    return new ValidationProblem('outcome', `one of ${OUTCOMES.join(', ')}`, outcome);
  }
  if (attempt !== undefined && !isAttempt(attempt)) return notAnAttempt(attempt);
  const given = Object.entries(numbers).filter(([, value]) => value !== undefined);
  const [invalid, got] = given.find(([, value]) => !isAmount(value)) ?? [];
  if (invalid !== undefined) return new ValidationProblem(invalid, EXPECTED_AMOUNT, got);
  const known = outcome === undefined ? {} : { outcome: outcome as Outcome };
  const ended = attempt === undefined ? {} : { attempt };
  return { permit, result: { ...known, ...ended, ...Object.fromEntries(given) } };
}

const isAttempt = (value: unknown): value is AttemptOutcome =>
  ATTEMPT_OUTCOMES.includes(value as AttemptOutcome);

const notAnAttempt = (value: unknown): ValidationProblem =>
  new ValidationProblem('attempt', `one of ${ATTEMPT_OUTCOMES.join(', ')}`, value);

export function reportFromForm(text: string, from: number): ReportParams | ValidationProblem {
  const values = readParameters(text, from, REPORT_NAMES);
  return values instanceof ValidationProblem ? values : validateReport(values);
}

export function reportFromJson(value: unknown): ReportParams | ValidationProblem {
  const fields = namedFields(value, REPORT_NAMES);
  if (fields instanceof ValidationProblem) return fields;
  const [limit, key, ...rest] = fields;
  return validateReport([limit, typeof key === 'string' ? toBinaryKey(key) : key, ...rest]);
}

function validateReport(fields: readonly unknown[]): ReportParams | ValidationProblem {
  const [limit, key, attempt, plan] = fields;
  if (!isOptionalString(limit)) return new ValidationProblem('limit', 'a string', limit);
  if (!isOptionalString(key)) return new ValidationProblem('key', 'a string', key);
  if (!isAttempt(attempt)) return notAnAttempt(attempt);
  if (!isOptionalString(plan)) return new ValidationProblem('plan', 'a string', plan);
  return { limit, key, attempt, plan };
}

export function takeFromForm(text: string, from: number): TakeParams | ValidationProblem {
  const values = readParameters(text, from, TAKE_NAMES);
  if (values instanceof ValidationProblem) return values;
  const [limit, key, max, hold] = values;
  const isKnown = hold !== undefined && Object.hasOwn(BOOLEAN_VALUES, hold);
  const wantsPermit = isKnown ? BOOLEAN_VALUES[hold] : (hold ?? false);
  return validateTake(limit, key, amountOf(max), wantsPermit, '1 or 0');
}

export function takeFromJson(value: unknown): TakeParams | ValidationProblem {
  const fields = namedFields(value, TAKE_NAMES);
  if (fields instanceof ValidationProblem) return fields;
  const [limit, key, max, hold = false] = fields;
  const binaryKey = typeof key === 'string' ? toBinaryKey(key) : key;
  return validateTake(limit, binaryKey, max, hold, 'true or false');
}

function validateTake(
  limit: unknown,
  key: unknown,
  max: unknown,
  hold: unknown,
  expectedHold: string,
): TakeParams | ValidationProblem {
  if (!isOptionalString(limit)) return new ValidationProblem('limit', 'a string', limit);
  if (!isOptionalString(key)) return new ValidationProblem('key', 'a string', key);
  if (!isWhole(max)) return new ValidationProblem('max', EXPECTED_WHOLE, max);
  if (typeof hold !== 'boolean') return new ValidationProblem('hold', expectedHold, hold);
  return { limit, key, max, wantsPermit: hold };
}

export function giveBackFromForm(text: string, from: number): GiveBackParams | ValidationProblem {
  const values = readParameters(text, from, GIVE_BACK_NAMES);
  if (values instanceof ValidationProblem) return values;
  const [permit, unused] = values;
  return validateGiveBack(permit, amountOf(unused));
}

export function giveBackFromJson(value: unknown): GiveBackParams | ValidationProblem {
  const fields = namedFields(value, GIVE_BACK_NAMES);
  if (fields instanceof ValidationProblem) return fields;
  return validateGiveBack(fields[0], fields[1]);
}

function validateGiveBack(permit: unknown, unused: unknown): GiveBackParams | ValidationProblem {
  if (typeof permit !== 'string' || permit === '')
    return new ValidationProblem('permit', 'a string', permit);
  if (!isWhole(unused)) return new ValidationProblem('unused', EXPECTED_WHOLE, unused);
  return { permit, unused };
}

/** The number that a text spells; a text that spells none stays one, so that the error shows it. */
const amountOf = (text: string | undefined): number | string | undefined =>
  text !== undefined && DECIMAL.test(text) ? Number(text) : text;

const EXPECTED_WHOLE = 'a whole number from 0 to 1e15';

const isWhole = (value: unknown): value is number => isAmount(value) && Number.isInteger(value);

const isAmount = (value: unknown): boolean =>
  typeof value === 'number' && value >= 0 && value <= MAX_AMOUNT;

/** Bytes of an invalid body that the response shows. */
const PREVIEW_BYTES = 64;

/**
 * Parses a body as JSON. Invalid UTF-8 is refused: replacement characters would merge different keys. A repeated member is
 * refused: a proxy that adds a `cost` may read another one than the daemon.
 */
export function parseJsonBody(body: Buffer): { readonly value: unknown } | ValidationProblem {
  const start = body.toString('latin1', 0, PREVIEW_BYTES);
  if (!isUtf8(body)) return new ValidationProblem('body', 'UTF-8', start);
  try {
    const text = body.toString('utf8');
    const value: unknown = JSON.parse(text);
    const repeated = repeatedMember(text);
    return repeated === undefined
      ? { value }
      : new ValidationProblem('body', 'JSON with each member once', `${repeated} twice`);
  } catch {
    return new ValidationProblem('body', 'JSON', start);
  }
}

/** Reads the query of an endpoint that inspects a key. */
export function readKeyQuery(
  text: string,
  from: number,
  maxKey: number,
): ParameterValues | ValidationProblem {
  const values = readParameters(text, from, ['key', 'limit']);
  if (values instanceof ValidationProblem) return values;
  const [key] = values;
  if (key === undefined) return missingKey();
  return hasValidLength(key, maxKey) ? values : keyLengthProblem(key, maxKey);
}
