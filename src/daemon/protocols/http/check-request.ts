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
import { AMOUNT_MAX, isRecord } from '../../../core/options.ts';
import type { Settled } from '../../../limiter/permit.ts';
import { tagOf } from '../../keys/binary-key.ts';
import { Complaint, readParameters, type Values } from './parameters.ts';

/** May this happen? */
export interface Question {
  readonly limit: string | undefined;
  /** Undefined: it is to be found in the request. */
  readonly tag: string | undefined;
  readonly cost: number;
  readonly hold: boolean;
  /** What a refusal is to be answered with; undefined: as it is usual. */
  readonly status: number | undefined;
}

/** How it went. */
export interface Settlement {
  readonly permit: string;
  readonly result: Settled;
}

const ASK_NAMES = ['limit', 'key', 'cost', 'hold', 'status'] as const;
const SETTLE_NAMES = ['permit', 'outcome', 'used', 'rttMs', 'retryAfterMs'] as const;

const FLAGS: Readonly<Record<string, boolean>> = {
  '': true,
  1: true,
  true: true,
  0: false,
  false: false,
};

/** Digits, and a fraction if need be: what `Number` takes besides is nothing to guess at. */
const NUMBER = /^\d{1,16}(?:\.\d{1,16})?$/;

/** From a query or a form, which begins at a place. */
export function questionIn(text: string, from: number): Question | Complaint {
  const values = readParameters(text, from, ASK_NAMES);
  if (values instanceof Complaint) return values;
  const [limit, tag, cost, hold, status] = values;
  if (hold !== undefined && !Object.hasOwn(FLAGS, hold))
    return new Complaint('hold', '1 or 0', hold);
  return question(
    limit,
    tag,
    cost === undefined ? 1 : numberOf(cost),
    hold !== undefined && FLAGS[hold],
    status === undefined ? undefined : numberOf(status),
    cost,
    status,
  );
}

const numberOf = (text: string): number => (NUMBER.test(text) ? Number(text) : Number.NaN);

function question(
  limit: string | undefined,
  tag: string | undefined,
  cost: number,
  hold: boolean,
  status: number | undefined,
  costWritten: unknown,
  statusWritten: unknown,
): Question | Complaint {
  if (!(cost >= 0 && cost <= AMOUNT_MAX)) return new Complaint('cost', AN_AMOUNT, costWritten);
  if (status !== undefined && !isRefusal(status)) {
    return new Complaint('status', 'a whole number from 400 to 599, for refusals', statusWritten);
  }
  return { limit, tag, cost, hold, status };
}

const isRefusal = (status: number): boolean =>
  Number.isInteger(status) && status >= 400 && status <= 599;

export const keyTooLong = (keyMax: number, tag: string): Complaint =>
  new Complaint('key', `at most ${keyMax} bytes`, tag);

const AN_AMOUNT = 'a number of at least 0';

export const MISSING_KEY = new Complaint('key', 'a text', undefined);

/** From JSON: one question, or a list of them. */
export function questionsOf(
  value: unknown,
  batchMax: number,
): Question | readonly Question[] | Complaint {
  if (!Array.isArray(value)) return questionOf(value);
  if (value.length > batchMax) {
    return new Complaint('body', `at most ${batchMax} questions at once`, value.length);
  }
  const questions: Question[] = [];
  for (let n = 0; n < value.length; n++) {
    const own = questionOf(value[n]);
    if (own instanceof Complaint) return own.within(`[${n}]`);
    questions.push(own);
  }
  return questions;
}

function questionOf(value: unknown): Question | Complaint {
  const fields = fieldsOf(value, ASK_NAMES);
  if (fields instanceof Complaint) return fields;
  const [limit, key, cost = 1, hold = false, status] = fields;
  if (!isTextOrNothing(limit)) return new Complaint('limit', 'a text', limit);
  if (!isTextOrNothing(key)) return new Complaint('key', 'a text', key);
  if (typeof cost !== 'number') return new Complaint('cost', AN_AMOUNT, cost);
  if (typeof hold !== 'boolean') return new Complaint('hold', 'true or false', hold);
  if (status !== undefined && typeof status !== 'number') {
    return new Complaint('status', 'a number', status);
  }
  const tag = key === undefined ? undefined : tagOf(key);
  return question(limit, tag, cost, hold, status, cost, status);
}

const isTextOrNothing = (value: unknown): value is string | undefined =>
  value === undefined || typeof value === 'string';

/** The fields of an object by their names, in order; one that is not among them is a mistake. */
function fieldsOf(value: unknown, names: readonly string[]): unknown[] | Complaint {
  if (!isRecord(value)) return new Complaint('', 'an object', value);
  const stray = Object.keys(value).find((name) => !names.includes(name));
  if (stray !== undefined) return new Complaint('', `one of ${names.join(', ')}`, stray);
  return names.map((name) => (Object.hasOwn(value, name) ? value[name] : undefined));
}

/** How a call went, from a query or a form. */
export function settlementIn(text: string, from: number): Settlement | Complaint {
  const values = readParameters(text, from, SETTLE_NAMES);
  if (values instanceof Complaint) return values;
  const [permit, outcome, ...numbers] = values;
  const [used, rttMs, retryAfterMs] = numbers.map((own) => own && numberOf(own));
  return settlement(permit, outcome, { used, rttMs, retryAfterMs });
}

/** The same from JSON. */
export function settlementOf(value: unknown): Settlement | Complaint {
  const fields = fieldsOf(value, SETTLE_NAMES);
  if (fields instanceof Complaint) return fields;
  const [permit, outcome, used, rttMs, retryAfterMs] = fields;
  return settlement(permit, outcome, { used, rttMs, retryAfterMs });
}

function settlement(
  permit: unknown,
  outcome: unknown,
  numbers: Readonly<Record<string, unknown>>,
): Settlement | Complaint {
  if (typeof permit !== 'string' || permit === '') return new Complaint('permit', 'a text', permit);
  if (outcome !== undefined && !OUTCOMES.includes(outcome as Outcome)) {
    return new Complaint('outcome', `one of ${OUTCOMES.join(', ')}`, outcome);
  }
  const given = Object.entries(numbers).filter(([, own]) => own !== undefined);
  const [bad, got] = given.find(([, own]) => !isAmount(own)) ?? [];
  if (bad !== undefined) return new Complaint(bad, AN_AMOUNT, got);
  const said = outcome === undefined ? {} : { outcome: outcome as Outcome };
  return { permit, result: { ...said, ...Object.fromEntries(given) } };
}

const isAmount = (value: unknown): boolean =>
  typeof value === 'number' && value >= 0 && value <= AMOUNT_MAX;

/** Enough of a body to recognise it. */
const START_BYTES = 64;

/** A body as JSON. Keys are bytes, so what is no UTF-8 is refused rather than mended. */
export function jsonIn(body: Buffer): { readonly value: unknown } | Complaint {
  const start = body.toString('latin1', 0, START_BYTES);
  if (!isUtf8(body)) return new Complaint('body', 'UTF-8', start);
  try {
    return { value: JSON.parse(body.toString('utf8')) };
  } catch {
    return new Complaint('body', 'JSON', start);
  }
}

/** The values of a query, for those who only look. */
export function lookIn(text: string, from: number, keyMax: number): Values | Complaint {
  const values = readParameters(text, from, ['key', 'limit']);
  if (values instanceof Complaint) return values;
  const [key] = values;
  if (key === undefined) return MISSING_KEY;
  return key.length > keyMax ? keyTooLong(keyMax, key) : values;
}
