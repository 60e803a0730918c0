/**
 * What callers ask over HTTP, read from a URL, a form or JSON, and checked before anything is taken.
 *
 *     /check?limit=api&key=alice&cost=2&hold=1
 *     {"limit": "api", "key": "alice", "cost": 2, "hold": true}
 *
 * Nothing here throws: what makes no sense comes back as a complaint.
 */

import { isUtf8 } from 'node:buffer';
import { OUTCOMES, type Outcome } from '../../decision.ts';
import { AMOUNT_MAX, isRecord } from '../../options.ts';
import type { Settled } from '../../permit.ts';
import { tagOf } from '../tag.ts';
import { Complaint, readParameters, shown, type Values } from './parameters.ts';

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
  if (hold !== undefined && !Object.hasOwn(FLAGS, hold)) return new Complaint('hold is not 1 or 0');
  return question(
    limit,
    tag,
    cost === undefined ? 1 : numberOf(cost),
    hold !== undefined && FLAGS[hold],
    status === undefined ? undefined : numberOf(status),
  );
}

const numberOf = (text: string): number => (NUMBER.test(text) ? Number(text) : Number.NaN);

function question(
  limit: string | undefined,
  tag: string | undefined,
  cost: number,
  hold: boolean,
  status: number | undefined,
): Question | Complaint {
  if (!(cost >= 0 && cost <= AMOUNT_MAX))
    return new Complaint('cost is not a number of at least 0');
  if (status !== undefined && !isRefusal(status)) {
    return new Complaint('status is not one for refusals: a whole number from 400 to 599');
  }
  return { limit, tag, cost, hold, status };
}

const isRefusal = (status: number): boolean =>
  Number.isInteger(status) && status >= 400 && status <= 599;

export const keyTooLong = (keyMax: number): Complaint =>
  new Complaint(`key has more than ${keyMax} bytes`);

/** From JSON: one question, or a list of them. */
export function questionsOf(
  value: unknown,
  batchMax: number,
): Question | readonly Question[] | Complaint {
  if (!Array.isArray(value)) return questionOf(value, '');
  if (value.length > batchMax) return new Complaint(`more than ${batchMax} questions at once`);
  const questions: Question[] = [];
  for (let n = 0; n < value.length; n++) {
    const own = questionOf(value[n], `[${n}].`);
    if (own instanceof Complaint) return own;
    questions.push(own);
  }
  return questions;
}

function questionOf(value: unknown, path: string): Question | Complaint {
  const fields = fieldsOf(value, path, ASK_NAMES);
  if (fields instanceof Complaint) return fields;
  const [limit, key, cost = 1, hold = false, status] = fields;
  if (!isTextOrNothing(limit)) return new Complaint(`${path}limit is not a text`);
  if (!isTextOrNothing(key)) return new Complaint(`${path}key is not a text`);
  if (typeof cost !== 'number') return new Complaint(`${path}cost is not a number`);
  if (typeof hold !== 'boolean') return new Complaint(`${path}hold is not true or false`);
  if (status !== undefined && typeof status !== 'number') {
    return new Complaint(`${path}status is not a number`);
  }
  const tag = key === undefined ? undefined : tagOf(key);
  const read = question(limit, tag, cost, hold, status);
  return read instanceof Complaint ? new Complaint(path + read.detail) : read;
}

const isTextOrNothing = (value: unknown): value is string | undefined =>
  value === undefined || typeof value === 'string';

/** The fields of an object by their names, in order; one that is not among them is a mistake. */
function fieldsOf(value: unknown, path: string, names: readonly string[]): unknown[] | Complaint {
  if (!isRecord(value)) return new Complaint(`${path || 'the body '}is not an object`);
  const stray = Object.keys(value).find((name) => !names.includes(name));
  if (stray !== undefined) {
    return new Complaint(`${path}${shown(stray)} is unknown: one of ${names.join(', ')}`);
  }
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
  const fields = fieldsOf(value, '', SETTLE_NAMES);
  if (fields instanceof Complaint) return fields;
  const [permit, outcome, used, rttMs, retryAfterMs] = fields;
  return settlement(permit, outcome, { used, rttMs, retryAfterMs });
}

function settlement(
  permit: unknown,
  outcome: unknown,
  numbers: Readonly<Record<string, unknown>>,
): Settlement | Complaint {
  if (typeof permit !== 'string' || permit === '') return new Complaint('permit is missing');
  if (outcome !== undefined && !OUTCOMES.includes(outcome as Outcome)) {
    return new Complaint(`outcome is not one of ${OUTCOMES.join(', ')}`);
  }
  const given = Object.entries(numbers).filter(([, own]) => own !== undefined);
  const [bad] = given.find(([, own]) => !isAmount(own)) ?? [];
  if (bad !== undefined) return new Complaint(`${bad} is not a number of at least 0`);
  const said = outcome === undefined ? {} : { outcome: outcome as Outcome };
  return { permit, result: { ...said, ...Object.fromEntries(given) } };
}

const isAmount = (value: unknown): boolean =>
  typeof value === 'number' && value >= 0 && value <= AMOUNT_MAX;

/** A body as JSON. Keys are bytes, so what is no UTF-8 is refused rather than mended. */
export function jsonIn(body: Buffer): { readonly value: unknown } | Complaint {
  if (!isUtf8(body)) return new Complaint('the body is not UTF-8');
  try {
    return { value: JSON.parse(body.toString('utf8')) };
  } catch {
    return new Complaint('the body is not JSON');
  }
}

/** The values of a query, for those who only look. */
export function lookIn(text: string, from: number, keyMax: number): Values | Complaint {
  const values = readParameters(text, from, ['key', 'limit']);
  if (values instanceof Complaint) return values;
  const [key] = values;
  if (key === undefined) return new Complaint('key is missing');
  return key.length > keyMax ? keyTooLong(keyMax) : values;
}
