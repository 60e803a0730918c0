/**
 * Distributed semaphore: a concurrency limit over the whole fleet, counted by Redis.
 *
 * Every admitted call holds a lease, an entry with an expiry in a sorted set. The process renews it while the call runs
 * and removes it when the call settles. A crashed process stops renewing, and its capacity is free again when the lease
 * expires, on Redis's clock.
 *
 *     sluice:{name:key}:concurrency   id ─▶ expires at   id ─▶ expires at   …   one entry for each call in flight
 *
 * A lost connection costs no capacity: a failed release is sent again, a lease whose grant got no reply is released,
 * and calls that still run are registered again, including those that the fallback allowed.
 *
 * A process without contact for the lifetime of its lease may still run its call while another call has its slot. Only
 * the resource can reject it: each grant of a key has a higher fencing token. `onLost` tells the holder.
 *
 * With a fair queue (`fair-queue.ts`), the command that settles a call notifies the waiter at the head.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { type Decision, deny, NEVER, WHEN_SETTLED } from '../../core/decision.ts';
import { UnavailableError } from '../../core/errors.ts';
import { PendingSet } from '../../core/pending.ts';
import { converterBetween, type Policy, type Settlement } from '../../policies/policy.ts';
import { namesOfRules } from '../../policies/rules.ts';
import { type HeldLease, HeldLeases, loseLease } from '../held-leases.ts';
import {
  type BatchDecision,
  type JointDecision,
  type JointPartRequest,
  type RemoteBackend,
  type RemoteBackendContext,
  type RemoteDecision,
  type RemoteLease,
  toBatchDecision,
} from '../remote-backend.ts';
import { decideUnavailable, randomId } from '../remote-limit.ts';
import type { Scripts } from './batcher.ts';
import {
  createRedisContext,
  fleetOrderOf,
  type RedisConfig,
  type RedisContext,
} from './context.ts';
import type { GrantedLease } from './fair-queue.ts';
import { chargeTogether, type JointCall, type JointPart, singlePart } from './joint.ts';
import type { FleetOrder } from './lua-fair-order.ts';
import { LEASE_TTL_MS, semaphoreScript } from './lua-semaphore.ts';
import { type GrantReply, grantOf, type ReplyValue } from './reply.ts';
import { wasSent } from './unsent-commands.ts';

/** The most keys for which calls of other processes are remembered. Beyond it, the oldest is forgotten. */
const MAX_OBSERVED_KEYS = 10_000;

/** The most units that `takeUpTo` takes at once: each is an entry in Redis. */
const MAX_TAKEN = 1000;

/** Releases a lease, or all but `left` of its units. */
const releaseCommand = (leaseId: string, cost: number, left = 0): string =>
  `s${leaseId} ${cost} ${left}`;

/** The lease of one of this process's calls in flight. */
interface ActiveLease extends HeldLease {
  /** On this process's clock, not later than in Redis; Infinity while only the fallback knows the lease. */
  endsAt: Millis;
  /** False if no command has sent it to Redis. */
  mayBeInRedis: boolean;
}

/** Calls in flight of other processes, from the last reply. */
interface OtherCalls {
  count: number;
  at: Millis;
}

export class SemaphoreBackend implements RemoteBackend {
  readonly #context: RedisContext;
  #policy: Policy;
  readonly #clock: Clock;
  #most: number;
  /** The name of the smallest of several concurrency limits, which all count the same calls. */
  #rule: string | undefined;
  /** The order of its queue in Redis, if it has one. */
  readonly #order: FleetOrder | undefined;
  readonly #processes: number;
  readonly #processId: string;
  readonly #held = new HeldLeases<ActiveLease>();
  readonly #otherCalls = new Map<string, OtherCalls>();
  /** Pending checks and renewals. */
  readonly #pending = new PendingSet();
  readonly waitForPermit: RemoteBackend['waitForPermit'];
  readonly onUnavailable: RemoteBackend['onUnavailable'];
  #lastLeaseNumber = 0;
  #cancelTimer: (() => void) | undefined;
  #isClosed = false;

  constructor(policy: Policy, context: RemoteBackendContext, config: RedisConfig) {
    this.onUnavailable = config.onUnavailable;
    this.#most = mostOf(policy);
    this.#rule = smallestRuleOf(policy);
    this.#order = config.subscriber && fleetOrderOf(context);
    this.#processes = config.processes;
    this.#context = createRedisContext(policy, context, config, {
      ...scriptsOf(policy, this.#order),
      trackLease: (leaseId, lease) => this.#track(leaseId, lease),
      fallback: {
        check: (key, cost) => this.#decideLocally(key, cost),
        observe: () => {},
        reconcile: () => this.renewAll(),
        undo: () => {}, // settling the lease undoes it
      },
    });
    this.#policy = policy;
    this.#clock = context.clock;
    this.#processId = randomId(context.random);
    const { fairQueue } = this.#context;
    this.waitForPermit =
      fairQueue && ((key, cost, limits) => fairQueue.acquire(key, Math.ceil(cost), limits));
  }

  get isAvailable(): boolean {
    return this.#context.batcher.isAvailable;
  }

  get waiterCount(): number {
    return this.#context.fairQueue?.size ?? 0;
  }

  check(key: string, cost: number): Promise<RemoteDecision> {
    return this.checkNow(key, cost);
  }

  checkNow(key: string, cost: number): Promise<RemoteDecision> {
    return this.#pending.add(this.#checkWithLease(key, Math.ceil(cost)));
  }

  #nextLeaseId(): string {
    return `${this.#processId}/${++this.#lastLeaseNumber}`;
  }

  async #checkWithLease(key: string, cost: number): Promise<RemoteDecision> {
    const leaseId = this.#nextLeaseId();
    const sentAt = this.#clock.now();
    try {
      const { value, at } = await this.#context.send(key, `n${leaseId} ${cost}`);
      const { decision, token } = this.#read(value);
      if (decision.verdict === 'allow' && this.#isClosed) {
        await this.#context.send(key, releaseCommand(leaseId, cost)).catch(() => {});
        return { decision: deny(0), decidedAt: at };
      }
      if (decision.verdict === 'allow') this.#track(leaseId, { key, cost, sentAt, token });
      this.#observe(key, cost, decision);
      return { decision, decidedAt: at, ...(decision.verdict === 'allow' && { leaseId }) };
    } catch (error) {
      return this.#undecided(leaseId, { key, cost, sentAt }, error);
    }
  }

  #read(reply: ReplyValue): GrantReply {
    const grant = grantOf(reply);
    const { decision } = grant;
    if (decision.verdict !== 'deny' || this.#rule === undefined) return grant;
    return { ...grant, decision: { ...decision, rule: this.#rule } };
  }

  #undecided(
    leaseId: string,
    { key, cost, sentAt }: { readonly key: string; readonly cost: number; readonly sentAt: Millis },
    error: unknown,
  ): RemoteDecision {
    const { fallback, unsent } = this.#context;
    const decision = fallback.check(key, cost);
    const undecided = { decision, decidedAt: this.#clock.now(), fromFallback: true };
    if (decision.verdict !== 'deny') {
      this.#track(leaseId, { key, cost, wasSent: wasSent(error) });
      return { ...undecided, leaseId };
    }
    if (wasSent(error)) unsent.keep(key, releaseCommand(leaseId, cost), sentAt + LEASE_TTL_MS);
    return undecided;
  }

  /** A lease that is not renewed expires: it needs no confirmation. */
  reserve(key: string, cost: number): Promise<RemoteDecision> {
    return this.checkNow(key, cost);
  }

  chargeTogether(
    parts: readonly JointPartRequest[],
    isWaiting = false,
  ): Promise<JointDecision> | undefined {
    return chargeTogether(parts, isWaiting ? 'q' : 'n');
  }

  jointCall(key: string, cost: number): JointCall {
    return singlePart(this.jointPart(key, cost));
  }

  jointPart(key: string, wholeOrNot: number): JointPart {
    const cost = Math.ceil(wholeOrNot);
    const leaseId = this.#nextLeaseId();
    const call = { key, cost, sentAt: this.#clock.now() };
    return {
      context: this.#context,
      redisKey: this.#context.redisKeyOf(key),
      text: `${cost} ${leaseId} concurrency ${this.#most}`,
      read: (reply, decidedAt) => {
        const { decision, token } = this.#read(reply);
        if (decision.verdict === 'allow') this.#track(leaseId, { ...call, token });
        this.#observe(key, cost, decision);
        return { decision, decidedAt, ...(decision.verdict === 'allow' && { leaseId }) };
      },
      undecided: (error) => this.#undecided(leaseId, call, error),
      undo: () =>
        this.#pending.add(this.settle(key, { outcome: 'ignored', cost, leaseId, dueAt: 0 })),
      track: (joint) => this.#pending.add(joint),
    };
  }

  async checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision> {
    return toBatchDecision(await this.checkNow(key, costs[0]));
  }

  async takeUpTo(key: string, most: number): Promise<number> {
    if (most < 1) return 0;
    const units = Math.min(Math.floor(most), this.#most, MAX_TAKEN);
    return this.#pending.add(this.#take(key, units));
  }

  async #take(key: string, most: number): Promise<number> {
    const leaseId = this.#nextLeaseId();
    const sentAt = this.#clock.now();
    try {
      const { value } = await this.#context.send(key, `t${leaseId} ${most}`);
      const [units, token] = String(value).split(' ').map(Number);
      if (units === 0) return 0;
      this.#track(leaseId, { key, cost: units, sentAt, token });
      if (!this.#isClosed) return units;
      await this.settle(key, { outcome: 'ignored', cost: units, leaseId, dueAt: 0 });
      return 0;
    } catch (error) {
      const call = { key, cost: 1, sentAt };
      if (wasSent(error))
        this.#context.unsent.keep(key, releaseCommand(leaseId, most), sentAt + LEASE_TTL_MS);
      const { decision } = this.#undecided(this.#nextLeaseId(), call, error);
      return decision.verdict === 'allow' ? 1 : 0;
    }
  }

  async settle(key: string, { leaseId, cost }: Settlement): Promise<void> {
    const settled =
      leaseId === undefined
        ? this.#held.removeUnits(key, Math.ceil(cost))
        : this.#held.remove(leaseId);
    const { fairQueue, unsent } = this.#context;
    if (settled.length > 0 && !this.isAvailable) fairQueue?.pollNow(key); // a waiter of this process may use the freed capacity
    const releases = settled.map(({ id, lease, units }) => {
      if (!lease.mayBeInRedis) return undefined;
      const until = Math.min(lease.endsAt, this.#clock.now() + LEASE_TTL_MS);
      return unsent.send(key, releaseCommand(id, lease.cost + units, lease.cost), until);
    });
    await Promise.all(releases);
  }

  async addHits(): Promise<void> {}

  leaseOf(leaseId: string): RemoteLease | undefined {
    return this.#held.get(leaseId);
  }

  async readState(key: string): Promise<{ state: Float64Array; at: Millis } | undefined> {
    const read = await this.readInFlight(key);
    if (!read) return undefined;
    const { count, at } = read;
    const state = new Float64Array(this.#policy.width);
    this.#policy.init(state, 0, at);
    this.#policy.check(state, 0, count, at);
    return { state, at };
  }

  /** Units in flight over all processes, at most the limit; undefined while unavailable. */
  async readInFlight(key: string): Promise<{ count: number; at: Millis } | undefined> {
    try {
      const { value, at } = await this.#context.send(key, 'l');
      this.#observeTotal(key, Number(value));
      return { count: Math.min(Number(value), this.#most), at }; // an outage may have admitted more
    } catch {
      return undefined;
    }
  }

  /** Leases do not depend on the limit. After a decrease, calls in flight stay and later calls wait for them. */
  prepareChange(policy: Policy): (() => Promise<void>) | undefined {
    if (!converterBetween(this.#policy, policy)) return undefined;
    return async () => {
      if (!this.isAvailable) throw new UnavailableError('Redis');
      await this.changeLimit(policy);
    };
  }

  /** Changes the limit; needs no reply of Redis. */
  async changeLimit(policy: Policy): Promise<void> {
    await this.#context.change(policy, scriptsOf(policy, this.#order), undefined);
    this.#policy = policy;
    this.#most = mostOf(policy);
    this.#rule = smallestRuleOf(policy);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#context.fairQueue?.close();
    await this.#pending.drained();
    this.#cancelTimer?.();
    const releases = [...this.#held.entries()].map(([leaseId, lease]) => {
      if (!lease.mayBeInRedis) return undefined;
      return this.#context.send(lease.key, releaseCommand(leaseId, lease.cost)).catch(() => {});
    });
    this.#held.clear();
    await Promise.all(releases);
    await this.#context.close();
  }

  /** Tracks a granted lease. Without `sentAt`, the fallback granted it. */
  #track(leaseId: string, { key, cost, sentAt, token, wasSent = true }: GrantedLease): void {
    if (cost === 0) return; // nothing is in flight, so nothing will settle it
    const endsAt = sentAt === undefined ? Infinity : sentAt + LEASE_TTL_MS;
    const known = { endsAt, mayBeInRedis: wasSent, fencingToken: token };
    this.#held.add(leaseId, { key, cost, ...known, isLost: false, onLost: undefined });
    this.#cancelTimer ??= this.#scheduleTimer();
  }

  /** Renews all leases three times within their lifetime, and reports those that have ended. */
  #scheduleTimer(): () => void {
    const now = this.#clock.now();
    let at = now + LEASE_TTL_MS / 3;
    for (const [, { endsAt, isLost }] of this.#held.entries())
      if (!isLost && endsAt > now) at = Math.min(at, endsAt);
    const onTimer = (): void => {
      this.#cancelTimer = undefined;
      for (const [, lease] of [...this.#held.entries()])
        if (lease.endsAt <= this.#clock.now()) loseLease(lease);
      this.renewAll();
      if (this.#held.size > 0) this.#cancelTimer = this.#scheduleTimer();
    };
    return schedule(this.#clock, at, onTimer, false);
  }

  /** Registers every call in flight, in one batch: Redis may have lost its lease, or may not know it yet. */
  renewAll(): void {
    for (const [leaseId, lease] of this.#held.entries())
      this.#pending.add(this.#renew(leaseId, lease));
  }

  async #renew(leaseId: string, lease: ActiveLease): Promise<void> {
    const { key, cost } = lease;
    const sentAt = this.#clock.now();
    try {
      await this.#context.send(key, `e${leaseId} ${cost}`);
      lease.endsAt = sentAt + LEASE_TTL_MS;
      lease.mayBeInRedis = true;
    } catch (error) {
      lease.mayBeInRedis ||= wasSent(error); // the next renewal may succeed, or the lease expires
    }
    const { cost: left } = lease;
    if (left === cost || !lease.mayBeInRedis) return;
    const release = releaseCommand(leaseId, cost, left); // the renewal may have been the last to arrive
    await this.#context.unsent.send(key, release, sentAt + LEASE_TTL_MS);
  }

  #observe(key: string, cost: number, decision: Decision): void {
    if (decision.verdict === 'allow') this.#observeTotal(key, this.#most - decision.remaining);
    else if (cost <= this.#most) this.#observeTotal(key, this.#most - cost + 1); // a lower bound
  }

  /** Records that `total` units of the key are in flight over all processes. */
  #observeTotal(key: string, total: number): void {
    if (this.onUnavailable !== 'local') return;
    const count = total - this.#held.unitsOf(key);
    const known = this.#otherCalls.get(key);
    if (count <= 0) {
      if (known) this.#otherCalls.delete(key);
    } else if (known) {
      known.count = count;
      known.at = this.#clock.now();
    } else {
      if (this.#otherCalls.size >= MAX_OBSERVED_KEYS) {
        const [oldest] = this.#otherCalls.keys();
        this.#otherCalls.delete(oldest);
      }
      this.#otherCalls.set(key, { count, at: this.#clock.now() });
    }
  }

  /**
   * The fallback: this process's part of the limit, minus its calls in flight. Calls of other processes count as last
   * known, until their leases would have ended. If a part is less than one call, it is the whole limit.
   */
  #decideLocally(key: string, cost: number): Decision {
    if (this.onUnavailable !== 'local') return decideUnavailable(this.onUnavailable);
    const most = this.#most;
    if (cost > most) return deny(NEVER);
    const part = cost * this.#processes > most ? most : Math.floor(most / this.#processes);
    const mine = this.#held.unitsOf(key) + cost;
    const known = this.#otherCalls.get(key);
    const isKnown = known !== undefined && this.#clock.now() - known.at < LEASE_TTL_MS;
    const total = mine + (isKnown ? known.count : 0);
    if (mine > part || total > most) return deny(WHEN_SETTLED);
    return { verdict: 'allow', remaining: Math.min(part - mine, most - total) };
  }
}

const mostOf = ({ traits }: Policy): number => traits.concurrencyLimit ?? Infinity;

const smallestRuleOf = (policy: Policy): string | undefined =>
  namesOfRules(policy)[policy.rules.findIndex((rule) => mostOf(rule.policy) === mostOf(policy))];

function scriptsOf(policy: Policy, order: FleetOrder | undefined): Scripts {
  const script = semaphoreScript(mostOf(policy), order);
  return { full: script, checkOnly: script };
}
