/**
 * Rate limit headers of responses, as draft-ietf-httpapi-ratelimit-headers defines them:
 *
 *     RateLimit-Policy: "api";q=100;w=60                        a quota per window in seconds
 *     RateLimit: "api";r=50;t=30                                remaining, and seconds until reset
 *     RateLimit-Policy: "db";q=10;qu="concurrent-requests"      a concurrency limit
 *
 * or in the legacy form: `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
 */

import type { Millis } from '../../core/clock.ts';
import type { NamedRuleStatus } from '../../limiter/inspection.ts';

export const HEADER_KINDS = ['draft', 'legacy', 'both'] as const;

/** Which rate limit headers responses carry: the IETF draft's, the legacy ones, or both. */
export type HeaderKind = (typeof HEADER_KINDS)[number];

/** Headers by name. */
export type HeaderValues = Record<string, string>;

const POLICY_HEADER = 'RateLimit-Policy';
const STATE_HEADER = 'RateLimit';
const LIMIT_HEADER = 'X-RateLimit-Limit';
const REMAINING_HEADER = 'X-RateLimit-Remaining';
const RESET_HEADER = 'X-RateLimit-Reset';

/** Lower-case names, for frameworks that store them so: converted once and not per response. */
export const LOWERCASE_NAMES: ReadonlyMap<string, string> = new Map(
  [POLICY_HEADER, STATE_HEADER, LIMIT_HEADER, REMAINING_HEADER, RESET_HEADER].map((name) => [
    name,
    name.toLowerCase(),
  ]),
);

/** The largest integer of a structured field (RFC 8941): fifteen digits. */
const MAX_INTEGER = 999_999_999_999_999;

const toFieldInteger = (value: number): number =>
  Math.max(0, Math.min(MAX_INTEGER, Math.floor(value)));

/** Whole seconds, rounded up: a client that waits this long is not too early. */
export const ceilSeconds = (ms: Millis): number =>
  Math.min(MAX_INTEGER, Math.ceil(Math.max(0, ms) / 1000));

/** A string of a structured field, which has no escapes for non-ASCII characters. */
export const quoteString = (text: string): string =>
  `"${text.replace(/[^\x20-\x7e]/g, '?').replace(/["\\]/g, '\\$&')}"`;

/** `;q=100;w=60`. A window below one second is scaled to one second. A capacity without a window is a concurrency limit. */
function policyParameters({ quota, windowMs, isCapacity }: NamedRuleStatus): string {
  if (windowMs === undefined)
    return `;q=${toFieldInteger(quota)}${isCapacity ? ';qu="concurrent-requests"' : ''}`;
  const window = ceilSeconds(windowMs);
  return `;q=${toFieldInteger((quota * window * 1000) / windowMs)};w=${window}`;
}

/** `;r=50;t=30`. */
function stateParameters(rule: NamedRuleStatus): string {
  const seconds = resetSecondsOf(rule);
  const remaining = toFieldInteger(rule.remaining);
  return seconds === undefined ? `;r=${remaining}` : `;r=${remaining};t=${seconds}`;
}

/** Until a rule that is exhausted admits again, else until it is fully replenished; undefined where that is unknown. */
function resetSecondsOf(rule: NamedRuleStatus): number | undefined {
  const ms = rule.remaining < 1 ? rule.opensInMs : rule.freshInMs;
  return ms === undefined || ms === Infinity ? undefined : ceilSeconds(ms);
}

/** The rule for headers that can show only one: the least remaining, then the longest reset. */
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
 * The quota of a `busy` limit without busy replies must not be promised to a client. A lock-out on refusals has no
 * quota while it is open.
 */
const MAX_ADVERTISED_QUOTA = 1_000_000;

const hasAdvertisableQuota = ({ isCapacity, quota }: NamedRuleStatus): boolean =>
  isCapacity ? quota < MAX_ADVERTISED_QUOTA : quota !== Number.MAX_SAFE_INTEGER;

/** A policy as it was last serialised. */
interface CachedPolicy extends Pick<NamedRuleStatus, 'name' | 'quota'> {
  readonly windowMs: Millis | undefined;
  readonly quotedName: string;
  readonly item: string;
}

/** Writes the headers of one limit. Policies rarely change, so their serialised form is cached. */
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

/** Reset is relative, in seconds, so that client and server need no common clock. */
function addLegacyHeaders(headers: HeaderValues, rule: NamedRuleStatus): void {
  headers[LIMIT_HEADER] = String(toFieldInteger(rule.quota));
  headers[REMAINING_HEADER] = String(toFieldInteger(rule.remaining));
  const seconds = resetSecondsOf(rule);
  if (seconds !== undefined) headers[RESET_HEADER] = String(seconds);
}

/** Reads and writes the headers of a framework's response. */
export interface HeaderAccessor<Response> {
  get(response: Response, name: string): unknown;
  set(response: Response, name: string, value: string): void;
  remove(response: Response, name: string): void;
}

/** Where new items go in a list header that another limit has set. */
export type ListPosition = 'first' | 'last';

/**
 * Sets headers on a response where another limit may have set its own. The lists of the draft show both limits; the
 * legacy headers, which can show only one, show the tighter.
 */
export function mergeHeaders<Response>(
  accessor: HeaderAccessor<Response>,
  response: Response,
  headers: HeaderValues,
  position: ListPosition = 'last',
): void {
  const before = REMAINING_HEADER in headers ? accessor.get(response, REMAINING_HEADER) : undefined;
  const keepsLegacy =
    before !== undefined &&
    isExistingTighter(before, accessor.get(response, RESET_HEADER), headers);
  // A reset belongs to the remaining value it came with.
  if (before !== undefined && !keepsLegacy && !(RESET_HEADER in headers))
    accessor.remove(response, RESET_HEADER);
  for (const name in headers) {
    if (keepsLegacy && isLegacyHeader(name)) continue;
    const list = isListHeader(name) ? accessor.get(response, name) : undefined;
    const value = list ? mergeLists(String(list), headers[name], position) : headers[name];
    if (value !== list) accessor.set(response, name, value);
  }
}

const isListHeader = (name: string): boolean => name.startsWith('RateLimit');
const isLegacyHeader = (name: string): boolean => name.startsWith('X-RateLimit-');

/** Whether the existing values have less remaining, or as little for as long. */
function isExistingTighter(remaining: unknown, reset: unknown, added: HeaderValues): boolean {
  const [before, after] = [Number(remaining), Number(added[REMAINING_HEADER])];
  if (before !== after) return before < after;
  return Number(reset ?? 0) >= Number(added[RESET_HEADER] ?? 0);
}

/** An item of a list: a quoted string may contain commas. */
const LIST_ITEM = /(?:"(?:[^"\\]|\\.)*"|[^",])+/g;

const listItemsOf = (list: string): string[] =>
  (list.match(LIST_ITEM) ?? []).map((item) => item.trim());

/** Both lists as one, without duplicates. */
function mergeLists(before: string, added: string, position: ListPosition): string {
  const existing = new Set(listItemsOf(before));
  const fresh = listItemsOf(added).filter((item) => !existing.has(item));
  if (fresh.length === 0) return before;
  return (position === 'first' ? [...fresh, before] : [before, ...fresh]).join(', ');
}
