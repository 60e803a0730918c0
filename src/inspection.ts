/**
 * How a key stands, and why: which rule says no, how much each has left, and until when.
 */

import type { Millis } from './clock.ts';
import type { Standing, View } from './policy/policy.ts';

/** A rule by its name: the limit's own, with the rule's kind behind it where there are several. */
export interface NamedStanding extends Standing {
  readonly name: string;
}

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

export function inspectionOf(
  name: string,
  view: View,
  standings: readonly Standing[],
  pausedMs: Millis,
): Inspection {
  const rules = named(name, standings);
  return { ...view, name, ...binding(rules, pausedMs), rules };
}

/** What binds most: the rule one would have to wait for longest, or for a call to settle. */
export function binding(
  rules: readonly NamedStanding[],
  pausedMs: Millis,
): Pick<Inspection, 'opensInMs' | 'by'> {
  const closed = rules.filter(({ opensInMs }) => opensInMs !== 0);
  const timed = closed.filter(({ opensInMs }) => opensInMs !== undefined);
  const [last] = timed.sort((a, b) => (b.opensInMs ?? 0) - (a.opensInMs ?? 0));
  const opensInMs = Math.max(pausedMs, last?.opensInMs ?? 0);
  if (opensInMs > 0) return { opensInMs, by: pausedMs === opensInMs ? PAUSE : last.name };
  return closed.length > 0 ? { by: closed[0].name } : { opensInMs: 0 };
}

function named(name: string, standings: readonly Standing[]): NamedStanding[] {
  if (standings.length === 1) return standings.map((standing) => ({ ...standing, name }));
  const seen = new Map<string, number>();
  return standings.map((standing) => {
    const nth = (seen.get(standing.kind) ?? 0) + 1;
    seen.set(standing.kind, nth);
    return { ...standing, name: `${name}.${standing.kind}${nth > 1 ? `-${nth}` : ''}` };
  });
}
