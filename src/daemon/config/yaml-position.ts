/**
 * Where in a YAML file a field stands, so that a complaint can point at it.
 *
 * A field is named as in an error (`limits.api.overrides[3].bucket.rate`). What was left out has no
 * place of its own: the nearest thing around it that was written has.
 */

import { isMap, isScalar, isSeq, type Node, type Pair } from 'yaml';

/** The offset of a field, from the start of the text. */
export function yamlOffsetOf(root: Node | null, field: string): number {
  let node: Node | null = root;
  let rest = field;
  let offset = root?.range?.[0] ?? 0;
  while (node && rest !== '') {
    const step = isMap(node)
      ? stepIntoMap(node.items, rest)
      : isSeq(node)
        ? stepIntoList(node.items, rest)
        : undefined;
    if (!step) return offset;
    offset = step.offset;
    node = step.node;
    rest = step.rest;
  }
  return offset;
}

interface PathStep {
  readonly node: Node | null;
  readonly offset: number;
  readonly rest: string;
}

/** The entry whose name the path begins with; the longest one, as names may hold dots. */
function stepIntoMap(items: readonly Pair[], path: string): PathStep | undefined {
  const start = path.replace(/^\./, '');
  let best: PathStep | undefined;
  let length = -1;
  for (const { key, value } of items) {
    if (!isScalar(key)) continue;
    const name = [String(key.value), `[${JSON.stringify(String(key.value))}]`].find(
      (own) => start.startsWith(own) && /^$|^[.[]/.test(start.slice(own.length)),
    );
    if (name === undefined || name.length <= length) continue;
    length = name.length;
    best = {
      node: value as Node | null,
      offset: key.range?.[0] ?? 0,
      rest: start.slice(name.length),
    };
  }
  return best;
}

function stepIntoList(items: readonly unknown[], path: string): PathStep | undefined {
  const [whole, index] = /^\[(\d+)\]/.exec(path) ?? [];
  const node = items[Number(index)] as Node | undefined;
  if (whole === undefined || !node) return undefined;
  return { node, offset: node.range?.[0] ?? 0, rest: path.slice(whole.length) };
}
