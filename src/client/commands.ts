import { createHash } from 'node:crypto';
import type { Millis } from '../core/clock.ts';
import { isNonEmptyString } from '../core/config-helpers.ts';
import { ATTEMPT_OUTCOMES, type AttemptOutcome, OUTCOMES } from '../core/decision.ts';
import { ConfigError } from '../core/errors.ts';
import { FLOW_FIELDS, readFlow } from '../core/flow.ts';
import { OptionReader, requireNumber } from '../core/options.ts';
import type {
  AcquireAllOptions,
  AcquireOptions,
  CallReport,
  CheckItem,
  CheckOptions,
} from './api.ts';
import { toBinaryString } from './resp.ts';

/**
 * The daemon accepts no longer keys. A longer one is sent as its beginning, for the patterns of limits, and a digest of the
 * whole: two long keys that begin alike have separate counts.
 */
const MAX_KEY_BYTES = 4096;

/** The daemon accepts no longer ids. */
const MAX_ID_BYTES = 256;

const isId = (value: unknown): value is string =>
  isNonEmptyString(value) && toBinaryString(value).length <= MAX_ID_BYTES;

/** The daemon accepts no more checks in one command. */
const MAX_CHECKS = 32;

/** The largest number that the daemon parses. */
const MAX_COST = 999_999_999_999_999;

/** In the place of a limit's name: all limits that match the key. */
const ANY_LIMIT = '*';

export const checkCommand = (key: string, cost: number, options?: CheckOptions): string[] =>
  encodeRequest('SLUICE.CHECK', key, encodeAmount('cost', cost), options);

export function takeUpToCommand(key: string, max: number, options?: CheckOptions): string[] {
  if (options?.id !== undefined)
    throw new ConfigError('options.id', 'left out of takeUpTo', options.id);
  return encodeRequest('SLUICE.TAKEUPTO', key, encodeWhole('max', max), options);
}

export function settleCommand(permit: string, result: CallReport): string[] {
  requireNonEmptyString('permit', permit);
  return ['SLUICE.SETTLE', toBinaryString(permit), ...encodeReport(result)];
}

export function giveBackCommand(permit: string, unused: number): string[] {
  requireNonEmptyString('permit', permit);
  return ['SLUICE.GIVEBACK', toBinaryString(permit), encodeWhole('unused', unused)];
}

export function reportCommand(
  key: string,
  attempt: AttemptOutcome,
  options: Pick<CheckOptions, 'limit' | 'plan'>,
): string[] {
  if (!ATTEMPT_OUTCOMES.includes(attempt))
    throw new ConfigError('attempt', `one of ${ATTEMPT_OUTCOMES.join(', ')}`, attempt);
  const { limit = ANY_LIMIT, plan } = readCheckOptions(options);
  return ['SLUICE.REPORT', encodeLimit(limit, plan), encodeKey(key), attempt];
}

export function inspectCommand(key: string, limit = ANY_LIMIT): string[] {
  requireNonEmptyString('limit', limit);
  return ['SLUICE.INSPECT', encodeKey(key), toBinaryString(limit)];
}

/** A command with a limit, a key, an amount and perhaps HOLD. */
function encodeRequest(
  name: string,
  key: string,
  amount: string,
  options: CheckOptions = {},
): string[] {
  const { limit = ANY_LIMIT, plan, withPermit, id } = readCheckOptions(options);
  const args = [name, encodeLimit(limit, plan), encodeKey(key), amount];
  if (withPermit) args.push('HOLD');
  return id === undefined ? args : [...args, 'ID', toBinaryString(id)];
}

/** A limit and the plan of the key, as one name. */
const encodeLimit = (limit: string, plan: string | undefined): string =>
  toBinaryString(plan === undefined ? limit : `${limit}[${plan}]`);

export function checkAllCommand(
  checks: readonly CheckItem[],
  options: Pick<CheckOptions, 'withPermit'>,
): string[] {
  const reader = new OptionReader('options', options);
  const hold = encodeHold(reader);
  reader.finish();
  return ['SLUICE.CHECKALL', ...encodeChecks(checks), ...hold];
}

const encodeHold = (reader: OptionReader): string[] =>
  reader.boolean('withPermit', false) ? ['HOLD'] : [];

/** A limit, a key and a cost of each. */
function encodeChecks(checks: readonly CheckItem[]): string[] {
  if (!Array.isArray(checks) || checks.length === 0 || checks.length > MAX_CHECKS)
    throw new ConfigError('checks', `a list of 1 to ${MAX_CHECKS} checks`, checks);
  return checks.flatMap((check, n) => {
    const fields = new OptionReader(`checks[${n}]`, check);
    const limit = fields.optional('limit', isNonEmptyString, 'a non-empty string') ?? ANY_LIMIT;
    const plan = fields.optional('plan', isNonEmptyString, 'a non-empty string');
    const key = encodeKey(fields.get('key'), fields.pathOf('key'));
    const cost = encodeAmount(fields.pathOf('cost'), fields.get('cost') ?? 1);
    fields.finish();
    return [encodeLimit(limit, plan), key, cost];
  });
}

function readCheckOptions(options: CheckOptions): CheckOptions {
  const reader = new OptionReader('options', options);
  const limit = reader.optional('limit', isNonEmptyString, 'a non-empty string');
  const plan = reader.optional('plan', isNonEmptyString, 'a non-empty string');
  const withPermit = reader.boolean('withPermit', false);
  const id = reader.optional('id', isId, `a string of 1 to ${MAX_ID_BYTES} bytes`);
  reader.finish();
  const named = { ...(limit !== undefined && { limit }), ...(plan !== undefined && { plan }) };
  return { withPermit, ...named, ...(id !== undefined && { id }) };
}

/** The default `wait` of `acquire`. */
const DEFAULT_WAIT_MS: Millis = 10_000;

/** A command that waits, without its wait, which is known when it is sent. */
export interface WaitingRequest {
  readonly request: readonly string[];
  readonly waitMs: Millis;
  readonly signal: AbortSignal | undefined;
}

function readWait(reader: OptionReader): Omit<WaitingRequest, 'request'> {
  const waitMs = reader.duration('wait', DEFAULT_WAIT_MS);
  const isSignal = (value: unknown): value is AbortSignal => value instanceof AbortSignal;
  return { waitMs, signal: reader.optional('signal', isSignal, 'an AbortSignal') };
}

export function readAcquireAll(
  checks: readonly CheckItem[],
  options: AcquireAllOptions,
): WaitingRequest {
  const reader = new OptionReader('options', options);
  const wait = readWait(reader);
  const args = [...encodeHold(reader), ...encodeFlow(reader)];
  reader.finish();
  return { request: ['SLUICE.ACQUIREALL', ...encodeChecks(checks), ...args], ...wait };
}

export function readAcquire(key: string, options: AcquireOptions): WaitingRequest {
  const reader = new OptionReader('options', options);
  const wait = readWait(reader);
  const amount = encodeAmount(reader.pathOf('cost'), reader.get('cost') ?? 1);
  const names = ['limit', 'plan', 'withPermit', 'id'];
  const [limit, plan, withPermit, id] = names.map((name) => reader.get(name));
  const flow = encodeFlow(reader);
  reader.finish();
  const check = { limit, plan, withPermit, id } as CheckOptions;
  const request = [...encodeRequest('SLUICE.ACQUIRE', key, amount, check), ...flow];
  return { request, ...wait };
}

/** Each field of a flow is a keyword of SLUICE.ACQUIRE, in capitals. */
function encodeFlow(reader: OptionReader): string[] {
  const given = FLOW_FIELDS.filter((name) => reader.has(name));
  const options = Object.fromEntries(given.map((name) => [name, reader.get(name)]));
  for (const name of FLOW_FIELDS) reader.get(name);
  readFlow(options);
  return given.flatMap((name) => {
    const value = options[name];
    const text =
      typeof value === 'number' ? encodeAmount(name, value) : toBinaryString(value as string);
    return [name.toUpperCase(), text];
  });
}

/** The fields of a CallReport, and their names in SLUICE.SETTLE. */
const REPORT_FIELDS = { used: 'USED', rttMs: 'RTT', retryAfterMs: 'RETRYAFTER' };

function encodeReport(report: CallReport): string[] {
  const reader = new OptionReader('result', report);
  const args: string[] = [reader.oneOf('outcome', OUTCOMES, 'ok')];
  for (const [field, name] of Object.entries(REPORT_FIELDS)) {
    const amount = reader.get(field);
    if (amount !== undefined) args.push(name, encodeAmount(reader.pathOf(field), amount));
  }
  if (reader.has('attempt')) args.push('ATTEMPT', reader.oneOf('attempt', ATTEMPT_OUTCOMES));
  reader.finish();
  return args;
}

function requireNonEmptyString(field: string, value: unknown): void {
  if (!isNonEmptyString(value)) throw new ConfigError(field, 'a non-empty string', value);
}

function encodeKey(key: unknown, field = 'key'): string {
  if (typeof key !== 'string') throw new ConfigError(field, 'a string', key);
  const bytes = toBinaryString(key);
  if (bytes.length <= MAX_KEY_BYTES) return bytes;
  const digest = `#${createHash('sha256').update(bytes, 'latin1').digest('base64url')}`;
  return bytes.slice(0, MAX_KEY_BYTES - digest.length) + digest;
}

function encodeWhole(field: string, given: unknown): string {
  requireNumber(field, given, { min: 0, max: MAX_COST, integer: true });
  return String(given);
}

/** A decimal number: the daemon parses no exponents. */
function encodeAmount(field: string, given: unknown): string {
  requireNumber(field, given, { min: 0, max: MAX_COST });
  const amount = given as number;
  return Number.isInteger(amount) ? String(amount) : amount.toFixed(9);
}
