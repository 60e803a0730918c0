/**
 * The state of one key in a Durable Object: the numbers of the rule, and the leases of calls in flight.
 *
 * Every request carries its rule. If the key was last used by a rule with other numbers, it is converted first, as of
 * the instant at which the sender's limit changed: earlier refills were made at the old rate. So a limit change needs
 * no scan over keys.
 *
 *     records:  [ latest shape ][ an older shape ] …      one per shape of the state
 *
 * Rules of one shape convert into each other at any time. A window with another number or length of steps has another
 * shape: its conversion rounds, so it happens once, with the change. Senders with the old limit count separately.
 *
 * A lease that is not renewed ends: its call counts as failed, and its slot is free again.
 */

import type { Millis } from '../../core/clock.ts';
import type { Decision } from '../../core/decision.ts';
import { converterBetween, type Policy, type State } from '../../policies/policy.ts';
import { layoutOf } from '../../policies/rules.ts';

/** The most calls in flight of one key: all of them are one value in storage. */
export const MAX_LEASES = 1000;

/** The most remembered call ids of one key. Beyond it, a repeat of the oldest call is charged again. */
export const MAX_REMEMBERED_CALLS = 1000;

/** The most shapes of the state that are kept for one key. */
const MAX_RECORDS = 4;

/** How long a key is kept after its last lease ends, and a key whose rule never becomes fresh. */
const KEEP_AFTER_LEASES_MS: Millis = 60_000;
const KEEP_OTHERWISE_MS: Millis = 86_400_000;

/** The rule that a request carries. */
export interface CallerRule {
  readonly policy: Policy;
  /** Its limit as JSON text. */
  readonly text: string;
  readonly since: Millis;
  readonly leaseMs: Millis;
}

export interface Lease {
  cost: number;
  readonly dueAt: Millis;
  endsAt: Millis;
}

/** The numbers of a key in one shape of the state. */
export interface RuleRecord {
  /** The limit of the numbers, as JSON text. */
  readonly text: string;
  readonly shape: string;
  readonly state: State;
  /** Time of the last use. */
  at: Millis;
  readonly leases: Map<string, Lease>;
}

/** A remembered call: it was allowed and has an id. */
export interface RememberedCall {
  readonly decision: Decision;
  readonly decidedAt: Millis;
  readonly until: Millis;
  isSettled: boolean;
}

export interface StoredKey {
  /** Records, latest change first. */
  records: RuleRecord[];
  /** Time of the latest change of the limit. */
  since: Millis;
  /** Remembered calls by id, oldest first. */
  readonly calls: Map<string, RememberedCall>;
  /** The last fencing token. */
  token: number;
  /** From this time on, the key decides like a new one. */
  deletableAt: Millis;
}

export const newKey = (): StoredKey => ({
  records: [],
  since: -Infinity,
  calls: new Map(),
  token: 0,
  deletableAt: -Infinity,
});

const shapeOf = (policy: Policy): string => `${policy.kind} ${layoutOf(policy)}`;

/** Returns the record of the sender's rule: converted if necessary, without expired leases. */
export function recordFor(
  stored: StoredKey,
  rule: CallerRule,
  now: Millis,
  policyOf: (text: string) => Policy,
): RuleRecord {
  const shape = shapeOf(rule.policy);
  const isConvertible = ({ text }: RuleRecord): boolean =>
    text === rule.text || converterBetween(policyOf(text), rule.policy) !== undefined;
  const { records } = stored;
  const [latest] = records;
  const known = records.find((one) => one.shape === shape && isConvertible(one));
  const isChange = rule.since > stored.since;
  if (isChange) stored.since = rule.since;
  const isTakeover = latest && isConvertible(latest) && (isChange || known === undefined);
  const source = isTakeover ? latest : known;
  const record = source
    ? convertedRecord(source, rule, shape, now, policyOf)
    : beginRecord(rule, shape, now);
  if (record !== source) {
    if (source && source === known) records[records.indexOf(source)] = record;
    else stored.records = [record, ...records.filter((one) => one !== known)].slice(0, MAX_RECORDS);
  }
  endLeases(record, rule.policy, now);
  return record;
}

/** Copies a key, so that a rule with other numbers can read it. */
export const copyOf = (stored: StoredKey): StoredKey => ({
  ...stored,
  records: stored.records.map((one) => ({
    ...one,
    state: one.state.slice(),
    leases: copyOfLeases(one.leases),
  })),
});

/** Copies each lease, because leases change when they are renewed or partly settled. */
const copyOfLeases = (leases: ReadonlyMap<string, Lease>): Map<string, Lease> =>
  new Map([...leases].map(([id, lease]) => [id, { ...lease }]));

function beginRecord({ policy, text }: CallerRule, shape: string, now: Millis): RuleRecord {
  const state = new Float64Array(policy.width);
  policy.init(state, 0, now);
  return { text, shape, state, at: now, leases: new Map() };
}

/** Converts a record to the rule; returns the record itself if the limit is equal. */
function convertedRecord(
  from: RuleRecord,
  { policy, text, since }: CallerRule,
  shape: string,
  now: Millis,
  policyOf: (text: string) => Policy,
): RuleRecord {
  if (from.text === text) return from;
  const old = policyOf(from.text);
  endLeases(from, old, now);
  const state = new Float64Array(policy.width);
  const at = Math.min(now, Math.max(since, from.at));
  converterBetween(old, policy)?.(state, 0, from.state, 0, at);
  return { text, shape, state, at, leases: new Map(from.leases) };
}

/** Frees the slots of calls whose lease was not renewed. */
function endLeases({ state, leases }: RuleRecord, policy: Policy, now: Millis): void {
  for (const [id, { cost, dueAt, endsAt }] of leases) {
    if (endsAt > now) continue;
    leases.delete(id);
    policy.settle(state, 0, { outcome: 'failed', cost, dueAt }, now);
  }
}

/** The time from which on the key decides like a new one, or allows no more than a new one. */
export function deletableAtOf({ state, leases }: RuleRecord, policy: Policy, now: Millis): Millis {
  if (leases.size > 0) {
    const ends = [...leases.values()].map(({ endsAt }) => endsAt);
    return Math.max(...ends) + KEEP_AFTER_LEASES_MS;
  }
  const at = [false, true]
    .map((isLenient) => policy.freshAt(state, 0, isLenient))
    .find((one) => one < Infinity);
  return at ?? now + KEEP_OTHERWISE_MS;
}
