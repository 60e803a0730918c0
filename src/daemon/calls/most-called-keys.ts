/** The most called keys over all limits. A call that meets several limits is counted by each, so a key is listed once. */

import type { SourceName } from '../key-counts/sources.ts';
import type { TopCalled } from './call-recorder.ts';

export interface MostCalledKey {
  readonly key: string;
  /** At the limit that it calls most. */
  readonly calls: number;
  readonly error?: number | undefined;
  /** The limits that its calls meet, or the list that decides them. */
  readonly sources: readonly SourceName[];
}

/** Most called first, as many as the longest list has. Further ones may lack a limit that does not list them. */
export function mostCalledKeys(called: readonly TopCalled[]): MostCalledKey[] {
  const byKey = new Map<string, MostCalledKey>();
  for (const { calls: _, keys, ...source } of called)
    for (const { key, calls, error } of keys) {
      const known = byKey.get(key) ?? { key, calls, error, sources: [] };
      const most = calls > known.calls ? { calls, error } : {};
      byKey.set(key, { ...known, ...most, sources: [...known.sources, source] });
    }
  const max = Math.max(0, ...called.map(({ keys }) => keys.length));
  return [...byKey.values()].sort((a, b) => b.calls - a.calls).slice(0, max);
}
