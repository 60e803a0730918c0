import type { Timeline } from '../timeline.ts';
import type { Links } from './links.ts';
import type { ScenarioNode } from './node.ts';
import type { Fault, Scenario } from './scenario.ts';
import type { ServerState } from './server.ts';

export interface FaultTargets {
  readonly timeline: Timeline;
  readonly nodes: readonly ScenarioNode[];
  readonly links: Links;
  readonly serverState: ServerState;
}

export function scheduleFaults({ faults, startMs }: Scenario, targets: FaultTargets): void {
  const { timeline } = targets;
  for (const [id, fault] of faults.entries()) {
    const { begin, end } = effectOf(fault, id, targets);
    timeline.scheduleAt(startMs + fault.atMs, begin);
    if (fault.forMs < Infinity) timeline.scheduleAt(startMs + fault.atMs + fault.forMs, end);
  }
}

function effectOf(
  fault: Fault,
  id: number,
  { timeline, nodes, links, serverState }: FaultTargets,
): { readonly begin: () => void; readonly end: () => void } {
  switch (fault.kind) {
    case 'crash':
      return {
        begin: () => nodes[fault.node].crash(timeline.now),
        end: () => nodes[fault.node].start(),
      };
    case 'restart':
      return {
        begin: () => nodes[fault.node].stop(timeline.now),
        end: () => nodes[fault.node].start(),
      };
    case 'freeze':
      return {
        begin: () => nodes[fault.node].freeze(timeline.now),
        end: () => nodes[fault.node].thaw(),
      };
    case 'partition':
      return { begin: () => links.partition(id, fault.nodes), end: () => links.heal(id) };
    case 'outage':
      return { begin: () => links.changeOutages(1), end: () => links.changeOutages(-1) };
    case 'refuse':
      return {
        begin: () => {
          serverState.refusals++;
        },
        end: () => {
          serverState.refusals--;
        },
      };
    case 'slow':
      return {
        begin: () => {
          serverState.slowness *= fault.factor;
        },
        end: () => {
          serverState.slowness /= fault.factor;
        },
      };
  }
}
