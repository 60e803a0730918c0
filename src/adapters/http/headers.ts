/**
 * What a response says about the limit, in the words of draft-ietf-httpapi-ratelimit-headers:
 *
 *     RateLimit-Policy: "api";q=100;w=60                        so many in so many seconds
 *     RateLimit: "api";r=50;t=30                                so many left, for so long
 *     RateLimit-Policy: "db";q=10;qu="concurrent-requests"      so many at once
 *
 * and in the words from before there was a draft: `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
 */

import type { Millis } from '../../core/clock.ts';
import type { NamedRuleStatus } from '../../limiter/inspection.ts';

export const HEADER_KINDS = ['draft', 'legacy', 'both'] as const;

/** In which words responses tell of the limit. */
export type HeaderKind = (typeof HEADER_KINDS)[number];

/** Headers by name. */
export type HeaderValues = Record<string, string>;

const POLICY_HEADER = 'RateLimit-Policy';
const STATE_HEADER = 'RateLimit';
const LIMIT_HEADER = 'X-RateLimit-Limit';
const REMAINING_HEADER = 'X-RateLimit-Remaining';
const RESET_HEADER = 'X-RateLimit-Reset';

/** The names of all of them in small letters, for a framework that keeps them so: lowered once, not for every response. */
export const LOWERCASE_NAMES: ReadonlyMap<string, string> = new Map(
  [POLICY_HEADER, STATE_HEADER, LIMIT_HEADER, REMAINING_HEADER, RESET_HEADER].map((name) => [
    name,
    name.toLowerCase(),
  ]),
);

/** The largest integer a structured field can carry: fifteen digits. */
const MAX_INTEGER = 999_999_999_999_999;

const toFieldInteger = (value: number): number =>
  Math.max(0, Math.min(MAX_INTEGER, Math.floor(value)));

/** Whole seconds that are over no sooner than the time is. */
export const ceilSeconds = (ms: Millis): number =>
  Math.min(MAX_INTEGER, Math.ceil(Math.max(0, ms) / 1000));

/** A text as a structured field writes it. It has no way to say what is not ASCII. */
export const quoteString = (text: string): string =>
  `"${text.replace(/[^\x20-\x7e]/g, '?').replace(/["\\]/g, '\\$&')}"`;

/** `;q=100;w=60`. A window of a fraction of a second is told by the second. */
function policyParameters({ quota, windowMs }: NamedRuleStatus): string {
  if (windowMs === undefined) return `;q=${toFieldInteger(quota)};qu="concurrent-requests"`;
  const window = ceilSeconds(windowMs);
  return `;q=${toFieldInteger((quota * window * 1000) / windowMs)};w=${window}`;
}

/** `;r=50;t=30`. Who refuses opens when it opens; who does not is as new when it is fresh. */
function stateParameters(rule: NamedRuleStatus): string {
  const seconds = resetSecondsOf(rule);
  const left = toFieldInteger(rule.remaining);
  return seconds === undefined ? `;r=${left}` : `;r=${left};t=${seconds}`;
}

/** For how long what is left has to last; undefined where that has no time. */
function resetSecondsOf(rule: NamedRuleStatus): number | undefined {
  const ms = rule.remaining < 1 ? rule.opensInMs : rule.freshInMs;
  return ms === undefined || ms === Infinity ? undefined : ceilSeconds(ms);
}

/** The one rule to tell somebody who can hear of one only: the least left, then the longest. */
export function tightestRule(rules: readonly NamedRuleStatus[]): NamedRuleStatus | undefined {
  const isTighter = (a: NamedRuleStatus, b: NamedRuleStatus): boolean =>
    a.remaining < b.remaining ||
    (a.remaining === b.remaining && (resetSecondsOf(a) ?? 0) > (resetSecondsOf(b) ?? 0));
  return rules.reduce<NamedRuleStatus | undefined>(
    (best, rule) => (best === undefined || isTighter(rule, best) ? rule : best),
    undefined,
  );
}

/**
 * A limit that learns of overload and has heard of none would take a million calls a second. That is
 * not a promise to make to a client.
 */
const MAX_ADVERTISED_QUOTA = 1_000_000;

const hasAdvertisableQuota = ({ isCapacity, quota }: NamedRuleStatus): boolean =>
  !isCapacity || quota < MAX_ADVERTISED_QUOTA;

/** A policy as it was last written. */
interface CachedPolicy {
  readonly name: string;
  readonly quota: number;
  readonly windowMs: Millis | undefined;
  readonly quotedName: string;
  readonly item: string;
}

/** Writes the headers of one limit. Its policies hardly ever change: they are written once. */
export class HeaderWriter {
  readonly #hasDraft: boolean;
  readonly #hasLegacy: boolean;
  readonly #cachedPolicies: CachedPolicy[] = [];

  constructor(kind: HeaderKind) {
    this.#hasDraft = kind !== 'legacy';
    this.#hasLegacy = kind !== 'draft';
  }

  write(all: readonly NamedRuleStatus[]): HeaderValues {
    const headers: HeaderValues = {};
    const rules = all.every(hasAdvertisableQuota) ? all : all.filter(hasAdvertisableQuota);
    if (rules.length === 0) return headers;
    if (this.#hasDraft) this.#addDraftHeaders(headers, rules);
    const tight = this.#hasLegacy ? tightestRule(rules) : undefined;
    if (tight !== undefined) addLegacyHeaders(headers, tight);
    return headers;
  }

  #addDraftHeaders(headers: HeaderValues, rules: readonly NamedRuleStatus[]): void {
    let policies = '';
    let states = '';
    for (let n = 0; n < rules.length; n++) {
      const { item, quotedName } = this.#policyFor(rules[n], n);
      const comma = n === 0 ? '' : ', ';
      policies += comma + item;
      states += comma + quotedName + stateParameters(rules[n]);
    }
    headers[POLICY_HEADER] = policies;
    headers[STATE_HEADER] = states;
  }

  #policyFor(rule: NamedRuleStatus, n: number): CachedPolicy {
    const { name, quota, windowMs } = rule;
    const last = this.#cachedPolicies[n];
    if (last?.name === name && last.quota === quota && last.windowMs === windowMs) return last;
    const quotedName = quoteString(name);
    const policy = { name, quota, windowMs, quotedName, item: quotedName + policyParameters(rule) };
    this.#cachedPolicies[n] = policy;
    return policy;
  }
}

/** Reset is in seconds from now: it needs no clock that two machines agree on. */
function addLegacyHeaders(headers: HeaderValues, rule: NamedRuleStatus): void {
  headers[LIMIT_HEADER] = String(toFieldInteger(rule.quota));
  headers[REMAINING_HEADER] = String(toFieldInteger(rule.remaining));
  const seconds = resetSecondsOf(rule);
  if (seconds !== undefined) headers[RESET_HEADER] = String(seconds);
}

/** How the headers of some framework's response are read and written. */
export interface HeaderAccessor<Response> {
  get(response: Response, name: string): unknown;
  set(response: Response, name: string, value: string): void;
  remove(response: Response, name: string): void;
}

/** Where what is said goes in a list that others have begun. */
export type ListPosition = 'first' | 'last';

/**
 * Writes headers into a response where another limit may have written before: the lists of the draft
 * tell of both, and the old words, which can tell of one only, of the tighter.
 */
export function mergeHeaders<Response>(
  of: HeaderAccessor<Response>,
  response: Response,
  headers: HeaderValues,
  place: ListPosition = 'last',
): void {
  const before = REMAINING_HEADER in headers ? of.get(response, REMAINING_HEADER) : undefined;
  const isTold =
    before !== undefined && isExistingTighter(before, of.get(response, RESET_HEADER), headers);
  // Times belong to the figures they came with.
  if (before !== undefined && !isTold && !(RESET_HEADER in headers))
    of.remove(response, RESET_HEADER);
  for (const name in headers) {
    if (isTold && isLegacyHeader(name)) continue;
    const list = isListHeader(name) ? of.get(response, name) : undefined;
    const value = list ? mergeLists(String(list), headers[name], place) : headers[name];
    if (value !== list) of.set(response, name, value);
  }
}

const isListHeader = (name: string): boolean => name.startsWith('RateLimit');
const isLegacyHeader = (name: string): boolean => name.startsWith('X-RateLimit-');

/** Whether what was said before leaves less, or as little for as long. */
function isExistingTighter(remaining: unknown, reset: unknown, own: HeaderValues): boolean {
  const [before, after] = [Number(remaining), Number(own[REMAINING_HEADER])];
  if (before !== after) return before < after;
  return Number(reset ?? 0) >= Number(own[RESET_HEADER] ?? 0);
}

/** An item of a list: a quoted text may have commas of its own. */
const LIST_ITEM = /(?:"(?:[^"\\]|\\.)*"|[^",])+/g;

const listItemsOf = (list: string): string[] =>
  (list.match(LIST_ITEM) ?? []).map((item) => item.trim());

/** Both lists as one; what stands there already is not said again. */
function mergeLists(before: string, own: string, place: ListPosition): string {
  const known = new Set(listItemsOf(before));
  const fresh = listItemsOf(own).filter((item) => !known.has(item));
  if (fresh.length === 0) return before;
  return (place === 'first' ? [...fresh, before] : [before, ...fresh]).join(', ');
}
