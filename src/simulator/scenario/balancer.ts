import type { Millis } from '../../core/clock.ts';
import type { Random } from '../../core/random.ts';
import type { ScenarioNode } from './node.ts';
import type { Balancer } from './scenario.ts';

/** The node for a call of the nth caller; undefined if the balancer knows of no running node. */
export type PickNode = (caller: number, now: Millis) => ScenarioNode | undefined;

export function createBalancer(
  { order, detectsMs }: Balancer,
  nodes: readonly ScenarioNode[],
  random: Random,
): PickNode {
  if (nodes.length === 1) {
    const [only] = nodes;
    return (_caller, now) => (now - only.failedAt >= detectsMs ? undefined : only);
  }
  let turn = 0;
  const first = {
    'round-robin': () => turn++,
    random: () => Math.floor(random() * nodes.length),
    sticky: (caller: number) => caller,
    least: () => leastOf(nodes, turn++),
  }[order];
  return (caller, now) => {
    const begin = first(caller);
    for (let n = 0; n < nodes.length; n++) {
      const node = nodes[(begin + n) % nodes.length];
      if (now - node.failedAt < detectsMs) return node;
    }
    return undefined;
  };
}

/** The node with the fewest open calls; on a tie, nodes take turns. */
function leastOf(nodes: readonly ScenarioNode[], turn: number): number {
  let best = turn % nodes.length;
  for (let n = 0; n < nodes.length; n++) {
    const at = (turn + n) % nodes.length;
    if (nodes[at].open.size < nodes[best].open.size) best = at;
  }
  return best;
}
