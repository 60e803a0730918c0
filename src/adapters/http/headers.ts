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
import type { NamedStanding } from '../../limiter/inspection.ts';

export const HEADER_KINDS = ['draft', 'legacy', 'both'] as const;

/** In which words responses tell of the limit. */
export type HeaderKind = (typeof HEADER_KINDS)[number];

/** Headers by name. */
export type Headers = Record<string, string>;

const POLICY = 'RateLimit-Policy';
const STATE = 'RateLimit';
const LIMIT = 'X-RateLimit-Limit';
const REMAINING = 'X-RateLimit-Remaining';
const RESET = 'X-RateLimit-Reset';

/** The names of all of them in small letters, for a framework that keeps them so: lowered once, not for every response. */
export const IN_SMALL_LETTERS: ReadonlyMap<string, string> = new Map(
  [POLICY, STATE, LIMIT, REMAINING, RESET].map((name) => [name, name.toLowerCase()]),
);

/** The largest integer a structured field can carry: fifteen digits. */
const INTEGER_MAX = 999_999_999_999_999;

const integer = (value: number): number => Math.max(0, Math.min(INTEGER_MAX, Math.floor(value)));

/** Whole seconds that are over no sooner than the time is. */
export const wholeSeconds = (ms: Millis): number =>
  Math.min(INTEGER_MAX, Math.ceil(Math.max(0, ms) / 1000));

/** A text as a structured field writes it. It has no way to say what is not ASCII. */
export const quoted = (text: string): string =>
  `"${text.replace(/[^\x20-\x7e]/g, '?').replace(/["\\]/g, '\\$&')}"`;

/** `;q=100;w=60`. A window of a fraction of a second is told by the second. */
function terms({ quota, windowMs }: NamedStanding): string {
  if (windowMs === undefined) return `;q=${integer(quota)};qu="concurrent-requests"`;
  const window = wholeSeconds(windowMs);
  return `;q=${integer((quota * window * 1000) / windowMs)};w=${window}`;
}

/** `;r=50;t=30`. Who refuses opens when it opens; who does not is as new when it is fresh. */
function state(rule: NamedStanding): string {
  const seconds = effectiveSeconds(rule);
  const left = integer(rule.remaining);
  return seconds === undefined ? `;r=${left}` : `;r=${left};t=${seconds}`;
}

/** For how long what is left has to last; undefined where that has no time. */
function effectiveSeconds(rule: NamedStanding): number | undefined {
  const ms = rule.remaining < 1 ? rule.opensInMs : rule.freshInMs;
  return ms === undefined || ms === Infinity ? undefined : wholeSeconds(ms);
}

/** The one rule to tell somebody who can hear of one only: the least left, then the longest. */
export function tightest(rules: readonly NamedStanding[]): NamedStanding | undefined {
  const isTighter = (a: NamedStanding, b: NamedStanding): boolean =>
    a.remaining < b.remaining ||
    (a.remaining === b.remaining && (effectiveSeconds(a) ?? 0) > (effectiveSeconds(b) ?? 0));
  return rules.reduce<NamedStanding | undefined>(
    (best, rule) => (best === undefined || isTighter(rule, best) ? rule : best),
    undefined,
  );
}

/**
 * A limit that learns of overload and has heard of none would take a million calls a second. That is
 * not a promise to make to a client.
 */
const PROMISE_MAX = 1_000_000;

const hasQuota = ({ kind, quota }: NamedStanding): boolean =>
  kind !== 'busy' || quota < PROMISE_MAX;

/** A policy as it was last written. */
interface Policy {
  readonly name: string;
  readonly quota: number;
  readonly windowMs: Millis | undefined;
  readonly quotedName: string;
  readonly item: string;
}

/** Writes the headers of one limit. Its policies hardly ever change: they are written once. */
export class HeaderWriter {
  readonly #draft: boolean;
  readonly #legacy: boolean;
  readonly #policies: Policy[] = [];

  constructor(kind: HeaderKind) {
    this.#draft = kind !== 'legacy';
    this.#legacy = kind !== 'draft';
  }

  write(all: readonly NamedStanding[]): Headers {
    const headers: Headers = {};
    const rules = all.every(hasQuota) ? all : all.filter(hasQuota);
    if (rules.length === 0) return headers;
    if (this.#draft) this.#addDraft(headers, rules);
    const tight = this.#legacy ? tightest(rules) : undefined;
    if (tight !== undefined) addLegacy(headers, tight);
    return headers;
  }

  #addDraft(headers: Headers, rules: readonly NamedStanding[]): void {
    let policies = '';
    let states = '';
    for (let n = 0; n < rules.length; n++) {
      const { item, quotedName } = this.#policy(rules[n], n);
      const comma = n === 0 ? '' : ', ';
      policies += comma + item;
      states += comma + quotedName + state(rules[n]);
    }
    headers[POLICY] = policies;
    headers[STATE] = states;
  }

  #policy(rule: NamedStanding, n: number): Policy {
    const { name, quota, windowMs } = rule;
    const last = this.#policies[n];
    if (last?.name === name && last.quota === quota && last.windowMs === windowMs) return last;
    const quotedName = quoted(name);
    const policy = { name, quota, windowMs, quotedName, item: quotedName + terms(rule) };
    this.#policies[n] = policy;
    return policy;
  }
}

/** Reset is in seconds from now: it needs no clock that two machines agree on. */
function addLegacy(headers: Headers, rule: NamedStanding): void {
  headers[LIMIT] = String(integer(rule.quota));
  headers[REMAINING] = String(integer(rule.remaining));
  const seconds = effectiveSeconds(rule);
  if (seconds !== undefined) headers[RESET] = String(seconds);
}

/** How the headers of some framework's response are read and written. */
export interface HeadersOf<Response> {
  get(response: Response, name: string): unknown;
  set(response: Response, name: string, value: string): void;
  remove(response: Response, name: string): void;
}

/** Where what is said goes in a list that others have begun. */
export type Place = 'first' | 'last';

/**
 * Writes headers into a response where another limit may have written before: the lists of the draft
 * tell of both, and the old words, which can tell of one only, of the tighter.
 */
export function tell<Response>(
  of: HeadersOf<Response>,
  response: Response,
  headers: Headers,
  place: Place = 'last',
): void {
  const before = REMAINING in headers ? of.get(response, REMAINING) : undefined;
  const isTold = before !== undefined && isTighter(before, of.get(response, RESET), headers);
  // Times belong to the figures they came with.
  if (before !== undefined && !isTold && !(RESET in headers)) of.remove(response, RESET);
  for (const name in headers) {
    if (isTold && isLegacy(name)) continue;
    const list = isList(name) ? of.get(response, name) : undefined;
    const value = list ? merged(String(list), headers[name], place) : headers[name];
    if (value !== list) of.set(response, name, value);
  }
}

const isList = (name: string): boolean => name.startsWith('RateLimit');
const isLegacy = (name: string): boolean => name.startsWith('X-RateLimit-');

/** Whether what was said before leaves less, or as little for as long. */
function isTighter(remaining: unknown, reset: unknown, own: Headers): boolean {
  const [before, after] = [Number(remaining), Number(own[REMAINING])];
  if (before !== after) return before < after;
  return Number(reset ?? 0) >= Number(own[RESET] ?? 0);
}

/** An item of a list: a quoted text may have commas of its own. */
const ITEMS = /(?:"(?:[^"\\]|\\.)*"|[^",])+/g;

const itemsOf = (list: string): string[] => (list.match(ITEMS) ?? []).map((item) => item.trim());

/** Both lists as one; what stands there already is not said again. */
function merged(before: string, own: string, place: Place): string {
  const known = new Set(itemsOf(before));
  const fresh = itemsOf(own).filter((item) => !known.has(item));
  if (fresh.length === 0) return before;
  return (place === 'first' ? [...fresh, before] : [before, ...fresh]).join(', ');
}
