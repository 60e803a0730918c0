/**
 * What a response says about the limit, in the words of draft-ietf-httpapi-ratelimit-headers:
 *
 *     RateLimit-Policy: "api";q=100;w=60                        so many in so many seconds
 *     RateLimit: "api";r=50;t=30                                so many left, for so long
 *     RateLimit-Policy: "db";q=10;qu="concurrent-requests"      so many at once
 *
 * and in the words from before there was a draft: `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
 */

import type { Millis } from '../../clock.ts';
import type { NamedStanding } from '../../inspection.ts';

export const HEADER_KINDS = ['draft', 'legacy', 'both'] as const;

export type HeaderKind = (typeof HEADER_KINDS)[number];

/** Headers by name. */
export type Headers = Record<string, string>;

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
  const window = Math.max(1, wholeSeconds(windowMs));
  return `;q=${integer((quota * window * 1000) / windowMs)};w=${window}`;
}

/** `;r=50;t=30`. Who refuses opens when it opens; who does not is as new when it is fresh. */
function state(rule: NamedStanding): string {
  const seconds = effectiveSeconds(rule);
  const left = integer(rule.remaining);
  return seconds === undefined ? `;r=${left}` : `;r=${left};t=${seconds}`;
}

/** For how long what is left has to last; undefined where that has no time. */
export function effectiveSeconds(rule: NamedStanding): number | undefined {
  const ms = rule.remaining < 1 ? rule.opensInMs : rule.freshInMs;
  return ms === undefined || ms === Infinity ? undefined : wholeSeconds(ms);
}

/** The one rule to tell somebody who can hear of one only: the least left, then the longest. */
function tightest(rules: readonly NamedStanding[]): NamedStanding | undefined {
  const isTighter = (a: NamedStanding, b: NamedStanding): boolean =>
    a.remaining < b.remaining ||
    (a.remaining === b.remaining && (effectiveSeconds(a) ?? 0) > (effectiveSeconds(b) ?? 0));
  return rules.reduce<NamedStanding | undefined>(
    (best, rule) => (best === undefined || isTighter(rule, best) ? rule : best),
    undefined,
  );
}

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

  write(rules: readonly NamedStanding[]): Headers {
    const headers: Headers = {};
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
    headers['RateLimit-Policy'] = policies;
    headers.RateLimit = states;
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
  headers['X-RateLimit-Limit'] = String(integer(rule.quota));
  headers['X-RateLimit-Remaining'] = String(integer(rule.remaining));
  const seconds = effectiveSeconds(rule);
  if (seconds !== undefined) headers['X-RateLimit-Reset'] = String(seconds);
}

/** Headers that are lists: a second limit on the same response adds to them. */
export const isList = (name: string): boolean => name.startsWith('RateLimit');
