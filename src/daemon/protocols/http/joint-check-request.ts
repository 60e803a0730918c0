/**
 * Reads several checks that are decided as one, from a URL, a form or JSON.
 *
 *     /check?check=login-user,user:alice&check=login-ip@2,ip:10.0.0.1       limit, a cost other than 1, key
 *     /check?check-header=login-user,X-User&check=login-ip,ip:10.0.0.1      a header of the request has the key
 *     {"checks": [{"limit": "login-user", "key": "user:alice"}, …], "hold": true, "wait": "2s"}
 *
 * A value is decoded once, and then split at its first comma: encoders of query strings encode the comma too. No limit has a
 * comma in its name, so no key adds a cost or a limit. A header is read only where the URL names it: a client cannot add a
 * check, or replace one.
 */

import { FLOW_FIELDS } from '../../../core/flow.ts';
import { isRecord } from '../../../core/options.ts';
import { MAX_JOINT_CHECKS } from '../../router/joint-check.ts';
import {
  CHECK_NAMES,
  type CheckParams,
  checkFromForm,
  checksFromJson,
  missingKey,
} from './check-request.ts';
import { type RequestHead, soleHeader } from './key.ts';
import { percentDecode, ValidationProblem } from './parameters.ts';

/** One of several checks that are decided as one. */
export interface JointItem extends Pick<CheckParams, 'limit' | 'key' | 'cost' | 'plan'> {
  /** The header that has the key, in lower case. */
  readonly header?: string;
}

export interface JointParams
  extends Pick<CheckParams, 'wantsPermit' | 'status' | 'waitMs' | 'flow'> {
  readonly checks: readonly JointItem[];
}

/** In place of a limit's name: all limits that match the key. */
const ANY_LIMIT = '*';

const EXPECTED_CHECK = 'LIMIT,KEY or LIMIT@COST,KEY, with a comma before the key, percent-encoded';
const EXPECTED_COUNT = `1 to ${MAX_JOINT_CHECKS} checks`;

/** `limit@cost,key`: the limit is * or a name, perhaps with a plan, `limit[plan]`; the cost a decimal number. */
const CHECK = /^((?:\*|[\w.:-]{1,64})(?:\[[\w.:-]{1,64}\])?)(?:@(\d{1,15}(?:\.\d{1,15})?))?,(.*)$/s;

/** Reads a query or a form: one check or several. */
export function formFromText(
  text: string,
  from: number,
): CheckParams | JointParams | ValidationProblem {
  const single = checkFromForm(text, from);
  return single instanceof ValidationProblem ? (jointFromForm(text, from) ?? single) : single;
}

/** Undefined if no parameter is a check. */
export function jointFromForm(
  text: string,
  from: number,
): JointParams | ValidationProblem | undefined {
  const checks: JointItem[] = [];
  const rest: string[] = [];
  for (const parameter of text.slice(from).split('&')) {
    const [name] = parameter.split('=', 1);
    if (name !== 'check' && name !== 'check-header') {
      rest.push(parameter);
      continue;
    }
    const item = checkFromText(name, parameter.slice(name.length + 1));
    if (item instanceof ValidationProblem) return item;
    if (checks.push(item) > MAX_JOINT_CHECKS) return tooMany('check', checks.length);
  }
  if (checks.length === 0) return undefined;
  const names = rest.filter((parameter) => parameter !== '').map((each) => each.split('=', 1)[0]);
  const unknown = names.find((name) => !COMMON_NAMES.includes(name));
  if (unknown !== undefined) return unknownName('check, check-header', unknown);
  const common = checkFromForm(rest.join('&'), 0);
  return common instanceof ValidationProblem ? common : jointOf(checks, common);
}

function checkFromText(name: string, encoded: string): JointItem | ValidationProblem {
  const text = percentDecode(encoded) ?? '';
  const [, limit, cost = '1', key] = CHECK.exec(text) ?? [];
  if (limit === undefined) return new ValidationProblem(name, EXPECTED_CHECK, text || encoded);
  const item = { limit: limit === ANY_LIMIT ? undefined : limit, cost: Number(cost) };
  return name === 'check'
    ? { ...item, key }
    : { ...item, key: undefined, header: key.toLowerCase() };
}

/** Reads a check, a batch, or several checks that are decided as one. */
export function checksOrJointFromJson(
  value: unknown,
  maxBatch: number,
): CheckParams | readonly CheckParams[] | JointParams | ValidationProblem {
  if (!isRecord(value) || !Object.hasOwn(value, 'checks')) return checksFromJson(value, maxBatch);
  const { checks: list, ...rest } = value;
  const unknown = Object.keys(rest).find((name) => !COMMON_NAMES.includes(name));
  if (unknown !== undefined) return unknownName('checks', unknown);
  if (!Array.isArray(list)) return new ValidationProblem('checks', 'a list of checks', list);
  if (list.length === 0 || list.length > MAX_JOINT_CHECKS) return tooMany('checks', list.length);
  for (const [n, item] of list.entries()) {
    const misplaced = misplacedMember(item);
    if (misplaced) return misplaced.within(`checks[${n}]`);
  }
  const common = checksFromJson(rest, maxBatch);
  if (common instanceof ValidationProblem) return common;
  const checks = checksFromJson(list, maxBatch);
  if (checks instanceof ValidationProblem) return checks.within('checks');
  return jointOf(checks as readonly CheckParams[], common as CheckParams);
}

const ITEM_NAMES = ['limit', 'key', 'cost', 'plan'];
/** For all checks together. */
const COMMON_NAMES: readonly string[] = ['hold', 'status', 'wait', ...FLOW_FIELDS];

/** A member that one of several checks cannot have. */
function misplacedMember(item: unknown): ValidationProblem | undefined {
  if (!isRecord(item)) return undefined;
  const name = Object.keys(item).find((member) => !ITEM_NAMES.includes(member));
  if (name === undefined) return undefined;
  if (!(CHECK_NAMES as readonly string[]).includes(name))
    return new ValidationProblem('', `one of ${ITEM_NAMES.join(', ')}`, name);
  const isCommon = COMMON_NAMES.includes(name);
  const expected = isCommon ? 'beside `checks`, for all' : 'left out of several checks';
  return new ValidationProblem(name, expected, item[name]);
}

const jointOf = (
  checks: readonly JointItem[],
  { wantsPermit, status, waitMs, flow }: CheckParams,
): JointParams => ({ checks, wantsPermit, status, waitMs, flow });

const tooMany = (name: string, count: number): ValidationProblem =>
  new ValidationProblem(name, EXPECTED_COUNT, count);

const unknownName = (checks: string, name: string): ValidationProblem =>
  new ValidationProblem('', `one of ${[checks, ...COMMON_NAMES].join(', ')}`, name);

/** The key of a check: given, in the header that it names, or as of a check without a key. */
export function jointKeyOf(
  { key, header }: JointItem,
  request: RequestHead,
  extractKey: ((request: RequestHead) => string | undefined) | undefined,
): string | ValidationProblem {
  if (header === undefined) return key ?? extractKey?.(request) ?? missingKey();
  const value = soleHeader(request, header);
  return value ?? new ValidationProblem('key', `once in the header ${header}`, undefined);
}
