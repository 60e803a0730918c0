/**
 * The long lists of a configuration, ready for use: patterns that allow or deny, overrides, and the plans of keys. A
 * thread reads and validates them and hands them over as a few arrays, which are moved and not copied.
 *
 *     thread:  file ──▶ Config ──▶ listsOf ──▶ message ──▶  this thread:  readConfig(value without lists, lists)
 */

import { isRecord } from '../../core/options.ts';
import { PatternTable, type PatternTableData } from '../keys/pattern-table.ts';
import { Overrides, type OverridesData } from './overrides.ts';
import { PlansByKey, type PlansByKeyData } from './plans.ts';
import type { Config } from './read.ts';

export interface ListsData {
  readonly global: KeyListsData;
  readonly byLimit: ReadonlyMap<string, KeyListsData & { readonly overrides: OverridesData }>;
  readonly planOf: PlansByKeyData;
}

interface KeyListsData {
  readonly allow: PatternTableData;
  readonly deny: PatternTableData;
}

/** Lists that were read already. */
export class ReadLists {
  readonly #data: ListsData;

  constructor(data: ListsData) {
    this.#data = data;
  }

  /** A global list, or that of a limit. */
  patterns(list: 'allow' | 'deny', limit?: string): PatternTable | undefined {
    const lists = limit === undefined ? this.#data.global : this.#data.byLimit.get(limit);
    return lists && PatternTable.from(lists[list]);
  }

  overrides(limit: string): Overrides | undefined {
    const lists = this.#data.byLimit.get(limit);
    return lists && Overrides.from(lists.overrides);
  }

  get planOf(): PlansByKey {
    return PlansByKey.from(this.#data.planOf);
  }
}

export const listsOf = ({ allow, deny, limits, planOf }: Config): ListsData => ({
  global: { allow: allow.data, deny: deny.data },
  byLimit: new Map(
    limits.map((limit) => {
      const { allow, deny, overrides } = limit;
      return [limit.name, { allow: allow.data, deny: deny.data, overrides: overrides.data }];
    }),
  ),
  planOf: planOf.data,
});

/** The written values of a configuration, without the lists. */
export function withoutLists(value: unknown): unknown {
  if (!isRecord(value)) return value;
  const { allow: _allow, deny: _deny, limits, ...rest } = value;
  if (!isRecord(limits)) return { ...rest, ...(limits !== undefined && { limits }) };
  const entries = Object.entries(limits).map(([name, limit]) => [name, withoutListsOf(limit)]);
  return { ...rest, limits: Object.fromEntries(entries) };
}

function withoutListsOf(limit: unknown): unknown {
  if (!isRecord(limit)) return limit;
  const { allow: _allow, deny: _deny, overrides: _overrides, ...rest } = limit;
  return rest;
}

/** The memory of all lists, for a message that moves it. */
export function buffersOf(data: unknown): ArrayBuffer[] {
  const buffers = new Set<ArrayBuffer>();
  const visit = (value: unknown): void => {
    if (ArrayBuffer.isView(value)) buffers.add(value.buffer as ArrayBuffer);
    else if (value instanceof Map) for (const each of value.values()) visit(each);
    else if (typeof value === 'object' && value !== null) Object.values(value).forEach(visit);
  };
  visit(data);
  return [...buffers];
}
