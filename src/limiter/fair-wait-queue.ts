/**
 * Start-time fair queuing (SFQ) of the waiters of one key, by tenant and by flow.
 *
 *     tenants                 start tag             flows of a tenant       waiters, first come first served
 *       acme  weight 1        7.0   ◀── lowest        batch      3.5          ● ● ● ● ●
 *       bob   weight 2        7.5                     web        3.0  ◀──     ● ●
 *
 * The member with the lowest start tag goes first; ties are broken by name. A served call adds cost / weight to the
 * tags of its tenant and its flow, so tags of members that always have waiters stay together and each gets its share.
 *
 * A member that begins to wait starts at the virtual time of its level, or at its own tag if that is later. It gets no
 * credit for idle time, and leaving the queue clears no debt. The virtual time is at least the tag of the served
 * member. It grows with every call by the tag increment divided by the number of waiting members, so it follows the
 * mean of the tags. A steady arrival of new members therefore does not starve older ones.
 *
 * A member without waiters is kept until it is first in its level; from then on it has no debt.
 * `backends/redis/lua-fair-order.ts` implements the rule in Lua.
 */

import { DEFAULT_FLOW, type Flow } from '../core/flow.ts';
import { Heap } from '../core/heap.ts';
import { LongestQueue } from '../core/longest-queue.ts';
import { MAX_TOMBSTONES } from '../core/waiter-set.ts';
import { type QueueOrder, type QueuePosition, type WaiterQueue, WaitQueue } from './wait-queue.ts';

/** The most members of a level. Beyond it, a member is dropped with its debt when its last waiter leaves. */
export const MAX_FLOWS = 1024;

interface FairPosition extends QueuePosition {
  readonly cost: number;
}

interface Member {
  readonly name: string;
  readonly waiters: { readonly size: number };
  start: number;
}

interface FlowMember<T extends FairPosition> extends Member {
  readonly waiters: WaitQueue<T>;
}

interface TenantMember<T extends FairPosition> extends Member {
  readonly waiters: Set<T>;
  /** Replaced when the last waiter leaves. */
  flows: FairLevel<FlowMember<T>>;
}

/** The state of a tenant while `front` looks ahead. */
interface TenantPlan<T extends FairPosition>
  extends Pick<TenantMember<T>, 'start' | 'name' | 'flows'> {
  plan?: Heap<FlowPlan<T>>;
}

interface FlowPlan<T> extends Pick<Member, 'start' | 'name'> {
  /** The next waiters of the flow, in reverse order. */
  readonly rest: T[];
}

const isBefore = (a: Pick<Member, 'start' | 'name'>, b: Pick<Member, 'start' | 'name'>): boolean =>
  a.start < b.start || (a.start === b.start && a.name < b.name);

/** The tenants, or the flows of a tenant. */
class FairLevel<M extends Member> {
  readonly #members = new Map<string, M>();
  /** The members by start tag; an entry with another tag than its member is a tombstone. */
  readonly #order = new Heap<{ start: number; name: string; member: M }>(isBefore);
  readonly #longest = new LongestQueue<M>();
  #virtualTime = 0;
  /** Members that have waiters. */
  #waitingCount = 0;

  get(name: string): M | undefined {
    return this.#members.get(name);
  }

  /** The members that have waiters. */
  waiting(): M[] {
    return [...this.#members.values()].filter(({ waiters }) => waiters.size > 0);
  }

  /** The member whose turn is next. */
  get first(): M | undefined {
    for (let top = this.#order.peek(); top; top = this.#order.peek()) {
      const { member, start } = top;
      const isCurrent = this.#isCurrent(top);
      if (isCurrent && member.waiters.size > 0) return member;
      this.#order.pop();
      if (!isCurrent) continue;
      this.#members.delete(member.name);
      this.#virtualTime = Math.max(this.#virtualTime, start);
    }
    return undefined;
  }

  /** The start tag that a member has, or would have if it began to wait. */
  startOf(member: M | undefined): number {
    if (member === undefined) return this.#virtualTime;
    return member.waiters.size > 0 ? member.start : Math.max(member.start, this.#virtualTime);
  }

  /** Returns the member of this name, which is about to get a waiter. */
  join(name: string, create: () => M): M {
    const known = this.#members.get(name);
    const start = this.startOf(known);
    const member = known ?? create();
    this.#members.set(name, member);
    if (member.waiters.size === 0) this.#waitingCount++;
    if (!known || start !== known.start) this.#move(member, start);
    return member;
  }

  /** A call of this member is served. */
  charge(member: M, increment: number): void {
    const grown = this.#virtualTime + increment / this.#waitingCount;
    this.#virtualTime = Math.max(grown, member.start);
    if (increment > 0) this.#move(member, member.start + increment);
  }

  /** A waiter of this member has left. */
  onLeave(member: M): void {
    if (member.waiters.size > 0) return;
    this.#waitingCount--;
    if (this.#members.size > MAX_FLOWS) this.#members.delete(member.name);
  }

  onGrowth(member: M): void {
    this.#longest.onGrowth(member);
  }

  /** The member with the most waiters, if it has at least two more than `size`. */
  longerThan(size: number): M | undefined {
    return this.#longest.findLongerThan(size, this.#members.values());
  }

  #move(member: M, start: number): void {
    member.start = start;
    this.#order.push({ start, name: member.name, member });
    if (this.#order.size > 2 * this.#members.size + MAX_TOMBSTONES)
      this.#order.retain((entry) => this.#isCurrent(entry));
  }

  #isCurrent({ member, start }: { readonly member: M; readonly start: number }): boolean {
    return member.start === start && this.#members.get(member.name) === member;
  }
}

export class FairWaitQueue<T extends FairPosition> implements WaiterQueue<T> {
  readonly #tenants = new FairLevel<TenantMember<T>>();
  #size = 0;

  get size(): number {
    return this.#size;
  }

  get first(): T | undefined {
    return this.#tenants.first?.flows.first?.waiters.first;
  }

  /** The newest waiter of the longest flow of the longest tenant. */
  get last(): T | undefined {
    return this.#tenants.longerThan(-1)?.flows.longerThan(-1)?.waiters.last;
  }

  /** The next `count` waiters in the order of their turn; Infinity: all, in any order. */
  front(count: number): T[] {
    const waiting = this.#tenants.waiting();
    if (count === Infinity) return waiting.flatMap(({ waiters }) => [...waiters]);
    const picked: T[] = [];
    const tenants = new Heap<TenantPlan<T>>(isBefore);
    for (const { start, name, flows } of waiting) tenants.push({ start, name, flows });
    for (let tenant = tenants.pop(); tenant && picked.length < count; tenant = tenants.pop()) {
      tenant.plan ??= planFlows(tenant.flows, count);
      const flow = tenant.plan.pop();
      const one = flow?.rest.pop();
      if (!flow || !one) continue;
      const { tenantWeight, flowWeight } = flowOf(one);
      picked.push(one);
      flow.start += one.cost / flowWeight;
      tenant.start += one.cost / tenantWeight;
      if (flow.rest.length > 0) tenant.plan.push(flow);
      if (tenant.plan.size > 0) tenants.push(tenant);
    }
    return picked;
  }

  /**
   * Whether the first waiter is served before `position` and arrived before it. By tags alone, a call that needs two
   * limits could be sent from one queue to the other for ever.
   */
  hasEarlier(position: QueuePosition): boolean {
    const { first } = this;
    if (!first || first.arrival >= position.arrival) return false;
    const [mine, other] = [flowOf(position), flowOf(first)];
    const tenant = this.#tenants.get(mine.tenant);
    if (mine.tenant !== other.tenant)
      return this.#tenants.startOf(this.#tenants.first) <= this.#tenants.startOf(tenant);
    const flows = tenant?.flows;
    return !flows || flows.startOf(flows.first) <= flows.startOf(flows.get(mine.flow));
  }

  /** Counts the waiters of its own flow only: the order between flows depends on calls that have not arrived yet. */
  costBefore(position: QueuePosition): number {
    const { tenant, flow } = flowOf(position);
    return this.#tenants.get(tenant)?.flows.get(flow)?.waiters.costBefore(position) ?? 0;
  }

  add(one: T): void {
    this.#join(one, 'add');
  }

  addFirst(one: T): void {
    this.#join(one, 'addFirst');
  }

  #join(one: T, how: 'add' | 'addFirst'): void {
    const { tenant: name, flow: flowName } = flowOf(one);
    const tenant = this.#tenants.join(name, () => {
      return { name, waiters: new Set(), flows: new FairLevel(), start: 0 };
    });
    const flow = tenant.flows.join(flowName, () => {
      return { name: flowName, waiters: new WaitQueue('fifo'), start: 0 };
    });
    tenant.waiters.add(one);
    flow.waiters[how](one);
    this.#size++;
    this.#tenants.onGrowth(tenant);
    tenant.flows.onGrowth(flow);
  }

  onServed(one: T): void {
    const { tenant: name, flow: flowName, tenantWeight, flowWeight } = flowOf(one);
    const tenant = this.#tenants.get(name);
    const flow = tenant?.flows.get(flowName);
    if (!tenant || !flow) return;
    this.#tenants.charge(tenant, one.cost / tenantWeight);
    tenant.flows.charge(flow, one.cost / flowWeight);
  }

  remove(one: T): void {
    const { tenant: name, flow: flowName } = flowOf(one);
    const tenant = this.#tenants.get(name);
    if (!tenant?.waiters.delete(one)) return;
    this.#size--;
    const flow = tenant.flows.get(flowName);
    flow?.waiters.remove(one);
    if (flow) tenant.flows.onLeave(flow);
    if (tenant.waiters.size > 0) return;
    tenant.flows = new FairLevel();
    this.#tenants.onLeave(tenant);
  }

  displacedBy(flow = DEFAULT_FLOW): T | undefined {
    const tenant = this.#tenants.get(flow.tenant);
    const longest = this.#tenants.longerThan(tenant?.waiters.size ?? 0);
    if (longest) return longest.flows.longerThan(-1)?.waiters.last;
    const size = tenant?.flows.get(flow.flow)?.waiters.size ?? 0;
    return tenant?.flows.longerThan(size)?.waiters.last;
  }
}

const flowOf = ({ flow = DEFAULT_FLOW }: Pick<QueuePosition, 'flow'>): Flow => flow;

function planFlows<T extends FairPosition>(
  flows: FairLevel<FlowMember<T>>,
  count: number,
): Heap<FlowPlan<T>> {
  const plan = new Heap<FlowPlan<T>>(isBefore);
  for (const { start, name, waiters } of flows.waiting())
    plan.push({ start, name, rest: waiters.front(count).reverse() });
  return plan;
}

export const createWaitQueue = <T extends FairPosition>(order: QueueOrder): WaiterQueue<T> =>
  order === 'fair' ? new FairWaitQueue<T>() : new WaitQueue<T>(order);
