/**
 * Waiters by tenant and flow, to find the one that a full queue refuses: the newest of the longest flow of the longest
 * tenant (longest queue drop). A waiter of a shorter flow takes its place, so no flow keeps others out.
 */

import { DEFAULT_FLOW, type Flow } from './flow.ts';
import { LongestQueue } from './longest-queue.ts';

interface FlowWaiter {
  readonly flow?: Flow | undefined;
}

interface Group<W> {
  readonly waiters: Set<W>;
  readonly flows: Groups<W>;
}

class Groups<W> {
  readonly byName = new Map<string, Group<W>>();
  readonly #longest = new LongestQueue<Group<W>>();

  add(name: string, waiter: W): Groups<W> {
    const group = this.byName.get(name) ?? { waiters: new Set(), flows: new Groups() };
    this.byName.set(name, group);
    group.waiters.add(waiter);
    this.#longest.onGrowth(group);
    return group.flows;
  }

  delete(name: string, waiter: W): Groups<W> | undefined {
    const group = this.byName.get(name);
    group?.waiters.delete(waiter);
    if (group?.waiters.size === 0) this.byName.delete(name);
    return group?.flows;
  }

  /** The longest group, if it has at least two waiters more than `size`. */
  longerThan(size: number): Group<W> | undefined {
    return this.#longest.findLongerThan(size, this.byName.values());
  }
}

export class FlowGroups<W extends FlowWaiter> {
  readonly #tenants = new Groups<W>();

  add(waiter: W): void {
    const { tenant, flow } = waiter.flow ?? DEFAULT_FLOW;
    this.#tenants.add(tenant, waiter).add(flow, waiter);
  }

  delete(waiter: W): void {
    const { tenant, flow } = waiter.flow ?? DEFAULT_FLOW;
    this.#tenants.delete(tenant, waiter)?.delete(flow, waiter);
  }

  /** The waiters of the flow that loses one to a new waiter of `flow`, in order of arrival; undefined: none does. */
  displacedBy({ tenant, flow } = DEFAULT_FLOW): ReadonlySet<W> | undefined {
    const own = this.#tenants.byName.get(tenant);
    const longest = this.#tenants.longerThan(own?.waiters.size ?? 0);
    if (longest) return longest.flows.longerThan(-1)?.waiters;
    return own?.flows.longerThan(own.flows.byName.get(flow)?.waiters.size ?? 0)?.waiters;
  }
}
