/**
 * A field is named as in an error (`limits.api.overrides[3].bucket.rate`). A field that was left out has the position
 * of the nearest enclosing field that was written.
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

/** The entry whose name is the longest prefix of the path: names may contain dots. */
function stepIntoMap(items: readonly Pair[], path: string): PathStep | undefined {
  const start = path.replace(/^\./, '');
  let best: PathStep | undefined;
  let length = -1;
  for (const { key, value } of items) {
    if (!isScalar(key)) continue;
    const name = [String(key.value), `[${JSON.stringify(String(key.value))}]`].find(
      (prefix) => start.startsWith(prefix) && /^$|^[.[]/.test(start.slice(prefix.length)),
    );
    if (name === undefined || name.length <= length) continue;
    length = name.length;
    const offset = key.range?.[0] ?? 0;
    best = { node: value as Node | null, offset, rest: start.slice(name.length) };
  }
  return best;
}

function stepIntoList(items: readonly unknown[], path: string): PathStep | undefined {
  const [whole, index] = /^\[(\d+)\]/.exec(path) ?? [];
  const node = items[Number(index)] as Node | undefined;
  if (whole === undefined || !node) return undefined;
  return { node, offset: node.range?.[0] ?? 0, rest: path.slice(whole.length) };
}
