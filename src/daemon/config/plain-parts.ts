/**
 * Plain data in parts of bounded size: a thread that gets one large message does nothing else until it has read it.
 *
 *     { limits: { api: { overrides: [10,000 items] } } }
 *         ──▶  [] { limits: { api: { overrides: [] } } },  [limits, api, overrides] items 0 to 399,  …
 */

import { isRecord } from '../../core/options.ts';

/** Entries of the object or list at a path; that is in an earlier part. */
export interface PlainPart {
  readonly path: readonly (string | number)[];
  readonly entries: readonly Entry[];
}

type Entry = readonly [name: string | number, value: unknown];

/** Values in a part: a fraction of a millisecond. */
const PART_VALUES = 2000;

/** The parts of an object or a list. */
export function splitPlain(root: object): readonly PlainPart[] {
  const parts: PlainPart[] = [];
  const { entries } = splitEntries(root, [], parts);
  return [{ path: [], entries }, ...parts];
}

/** Adds a part to the object that `splitPlain` was called with, which begins empty. */
export function addPart(root: object, { path, entries }: PlainPart): void {
  const target = path.reduce<unknown>((value, name) => (value as never)[name], root);
  for (const [name, value] of entries) {
    // An assignment to `__proto__` would not add a field.
    Object.defineProperty(target, name, {
      value,
      enumerable: true,
      writable: true,
      configurable: true,
    });
  }
}

interface Split {
  readonly entries: readonly Entry[];
  readonly size: number;
}

/** Moves the entries of large objects and lists into `parts`; returns those that stay in the container. */
function splitEntries(container: object, path: PlainPart['path'], parts: PlainPart[]): Split {
  const isList = Array.isArray(container);
  const entries: Entry[] = [];
  let [size, part, partSize] = [0, [] as Entry[], 0];
  const inner: PlainPart[] = [];
  const own: PlainPart[] = [];
  for (const [name, member] of Object.entries(container)) {
    const id = isList ? Number(name) : name;
    const split = splitMember(member, [...path, id], inner);
    entries.push([id, split.value]);
    part.push([id, split.value]);
    size += split.size;
    partSize += split.size;
    if (partSize < PART_VALUES) continue;
    own.push({ path, entries: part });
    [part, partSize] = [[], 0];
  }
  const isLarge = own.length > 0 && path.length > 0;
  if (isLarge) own.push({ path, entries: part });
  for (const each of isLarge ? [...own, ...inner] : inner) parts.push(each);
  return isLarge ? { entries: [], size: 1 } : { entries, size: size + 1 };
}

function splitMember(
  member: unknown,
  path: PlainPart['path'],
  parts: PlainPart[],
): { readonly value: unknown; readonly size: number } {
  if (!Array.isArray(member) && !isRecord(member)) return { value: member, size: 1 };
  const { entries, size } = splitEntries(member, path, parts);
  const value = Array.isArray(member) ? [] : {};
  addPart(value, { path: [], entries });
  return { value, size };
}
