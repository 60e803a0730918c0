/**
 * How a key stands, and why: which rule says no, how much each has left, and until when.
 */

import type { Millis } from '../core/clock.ts';
import type { Seen, Standing, View } from '../policies/policy.ts';

/** A rule by its name: the limit's own, with the rule's kind behind it where there are several. */
export interface NamedStanding extends Standing {
  readonly name: string;
}

/** How a key stands with a limit, and with each rule of it. */
export interface Inspection extends View {
  /** The limit's name. */
  readonly name: string;
  /** How long until one call fits: 0 now, Infinity never; left out if a call in flight must settle. */
  readonly opensInMs?: Millis;
  /** What says no to one call right now: the name of a rule, or `pause`; left out if nothing does. */
  readonly by?: string;
  /** Every rule of the limit, in the order they were written. */
  readonly rules: readonly NamedStanding[];
}

/** What keeps everybody out while the other side wants nothing. */
const PAUSE = 'pause';

/**
 * What was seen is added to, not copied: a server looks with every request it tells about its limit, and
 * copying cost more than all the rest.
 */
export function inspectionOf(
  name: string,
  { view, standings }: Seen,
  pausedMs: Millis,
): Inspection {
  const rules = named(name, standings);
  const { opensInMs, by } = binding(rules, pausedMs);
  const inspection = view as Writable<Inspection>;
  inspection.name = name;
  inspection.rules = rules;
  if (opensInMs !== undefined) inspection.opensInMs = opensInMs;
  if (by !== undefined) inspection.by = by;
  return inspection;
}

type Writable<T> = { -readonly [Name in keyof T]: T[Name] };

const OPEN: Pick<Inspection, 'opensInMs' | 'by'> = { opensInMs: 0 };

/** What binds most: the rule one would have to wait for longest, or for a call to settle. */
export function binding(
  rules: readonly NamedStanding[],
  pausedMs: Millis,
): Pick<Inspection, 'opensInMs' | 'by'> {
  let opensInMs = pausedMs;
  let by = pausedMs > 0 ? PAUSE : undefined;
  let unknown: string | undefined; // opens when a call settles
  for (const rule of rules) {
    if (rule.opensInMs === undefined) unknown ??= rule.name;
    else if (rule.opensInMs > opensInMs) [opensInMs, by] = [rule.opensInMs, rule.name];
  }
  if (by !== undefined) return { opensInMs, by };
  return unknown === undefined ? OPEN : { by: unknown };
}

function named(name: string, standings: readonly Standing[]): NamedStanding[] {
  if (standings.length === 1) return [withName(standings[0], name)];
  const seen = new Map<string, number>();
  return standings.map((standing) => {
    const nth = (seen.get(standing.kind) ?? 0) + 1;
    seen.set(standing.kind, nth);
    return withName(standing, `${name}.${standing.kind}${nth > 1 ? `-${nth}` : ''}`);
  });
}

function withName(standing: Standing, name: string): NamedStanding {
  const named = standing as Writable<NamedStanding>;
  named.name = name;
  return named;
}
