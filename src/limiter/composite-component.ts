import { ConfigError } from '../core/errors.ts';
import { OptionReader, requireNumber } from '../core/options.ts';
import { AsyncLimiter } from './async-limiter.ts';
import { SyncLimiter } from './sync-limiter.ts';

export interface AnyComponent {
  readonly limiter: SyncLimiter | AsyncLimiter;
  readonly keyOf: (key: string) => string;
  readonly costOf: (cost: number) => number;
}

/** A component that decides in this process. */
export interface Component extends AnyComponent {
  readonly limiter: SyncLimiter;
}

export const isLocal = (component: AnyComponent): component is Component =>
  component.limiter instanceof SyncLimiter;

/** Finds the limiter of this name. @throws {ConfigError} if there is none, or several. */
export function limiterNamed<L extends { readonly name: string }>(
  limiters: readonly L[],
  name: string,
): L {
  const [first, second] = limiters.filter((limiter) => limiter.name === name);
  if (second) throw new ConfigError('limit', 'the name of one part: give parts names', name);
  if (first) return first;
  const names = limiters.map((limiter) => limiter.name);
  throw ConfigError.unknownName('limit', name, names);
}

/** The default mapping; compared by identity. */
export const identity = <T>(value: T): T => value;

/** Reads one element of `all([…])`. The components of a nested composite become components of this one. */
export function readComponents(
  value: unknown,
  path: string,
  componentsOf: (composite: unknown) => readonly AnyComponent[] | undefined,
): readonly AnyComponent[] {
  const read = (candidate: unknown): readonly AnyComponent[] | undefined =>
    candidate instanceof SyncLimiter || candidate instanceof AsyncLimiter
      ? [{ limiter: candidate, keyOf: identity, costOf: identity }]
      : componentsOf(candidate);
  const plain = read(value);
  if (plain) return plain;
  const reader = new OptionReader(path, value, 'a limiter, or an object with a limiter');
  const keyOf = readMapping<string>(reader, 'key', 'string');
  const costOf = readMapping<number>(reader, 'cost', 'number');
  const inner = reader.get('limiter');
  reader.finish();
  const nested = read(inner) ?? reader.throwFor('limiter', 'a limiter');
  return nested.map((component) => ({
    limiter: component.limiter,
    keyOf: compose(component.keyOf, keyOf),
    costOf: compose(component.costOf, costOf),
  }));
}

/** The nested composite's mapping and this one's apply in turn. */
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
