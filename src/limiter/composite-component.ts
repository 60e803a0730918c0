/** One component of a composite: a limiter, and how a call's key and cost map to that limiter's. */

import { ConfigError } from '../core/errors.ts';
import { OptionReader, requireNumber } from '../core/options.ts';
import { isRemote } from './async-limiter.ts';
import { SyncLimiter } from './sync-limiter.ts';

export interface Component {
  readonly limiter: SyncLimiter;
  readonly keyOf: (key: string) => string;
  readonly costOf: (cost: number) => number;
}

/** A mapping that changes nothing; compared by identity. */
export const identity = <T>(value: T): T => value;

/** Reads one element of `all([…])`. The components of a nested composite become components of this one. */
export function readComponents(
  value: unknown,
  path: string,
  componentsOf: (composite: unknown) => readonly Component[] | undefined,
): readonly Component[] {
  const read = (candidate: unknown, at: string): readonly Component[] | undefined => {
    requireLocal(candidate, at);
    return candidate instanceof SyncLimiter
      ? [{ limiter: candidate, keyOf: identity, costOf: identity }]
      : componentsOf(candidate);
  };
  const plain = read(value, path);
  if (plain) return plain;
  const reader = new OptionReader(path, value, 'a limiter, or an object with a limiter');
  const keyOf = readMapping<string>(reader, 'key', 'string');
  const costOf = readMapping<number>(reader, 'cost', 'number');
  const inner = reader.get('limiter');
  reader.finish();
  const nested = read(inner, reader.pathOf('limiter')) ?? reader.throwFor('limiter', 'a limiter');
  return nested.map((component) => ({
    limiter: component.limiter,
    keyOf: compose(component.keyOf, keyOf),
    costOf: compose(component.costOf, costOf),
  }));
}

/** A limiter inside a composite inside a composite is mapped by both. */
function compose<T>(outer: (value: T) => T, inner: (value: T) => T): (value: T) => T {
  if (outer === identity) return inner;
  return inner === identity ? outer : (value) => outer(inner(value));
}

/** A constant, or a function of the call's own value. */
function readMapping<T>(
  reader: OptionReader,
  name: 'key' | 'cost',
  type: 'string' | 'number',
): (value: T) => T {
  const value = reader.get(name);
  if (value === undefined) return identity;
  if (typeof value === 'function') return value as (value: T) => T;
  if (typeof value !== type) reader.throwFor(name, `a ${type}, or a function of the ${name}`);
  if (type === 'number') requireNumber(reader.pathOf(name), value, { min: 0 });
  return () => value as T;
}

/** All or nothing needs decisions at once: between two round trips another process could take what was free. */
function requireLocal(value: unknown, path: string): void {
  if (typeof value !== 'object' || value === null || !isRemote(value)) return;
  const expected =
    'a limiter that decides in this process: write shared limits as one limit, { all: [...] }, if key and cost are the same; ' +
    "else acquire one after the other, and settle earlier permits as 'ignored' when one refuses";
  throw new ConfigError(path, expected, `remote limiter ${value.name}`);
}
