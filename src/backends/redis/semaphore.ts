/**
 * Distributed semaphore: a concurrency limit over the whole fleet, counted by Redis.
 *
 * Every admitted call holds a lease, an entry with an expiry in a sorted set. The process renews it while the call runs
 * and removes it when the call settles. A process that crashed stops renewing, and its capacity is free again when the
 * lease expires, on Redis's clock.
 *
 *     sluice:{name:key}:concurrency   id ─▶ expires at   id ─▶ expires at   …   one entry for each call in flight
 *
 * A lost connection costs no capacity: a release that failed is sent again, a lease whose grant had no reply is released,
 * and calls that still run are registered again, those that the fallback allowed included.
 *
 * A process that is out of touch for the time of its lease may still run its call while another call has its place. Only
 * the resource can refuse it: each grant of a key has a higher fencing token. The holder hears of it by `onLost`.
 *
 * With a fair queue (`fair-queue.ts`), the command that settles a call notifies the waiter at the head.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { type Decision, deny, NEVER, WHEN_SETTLED } from '../../core/decision.ts';
import { UnavailableError } from '../../core/errors.ts';
import { PendingSet } from '../../core/pending.ts';
import {
  converterBetween,
  namesOfRules,
  type Policy,
  type Settlement,
} from '../../policies/policy.ts';
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

/** Keys whose calls of other processes are remembered; beyond that the oldest is forgotten. */
const MAX_OBSERVED_KEYS = 10_000;

const releaseCommand = (leaseId: string, cost: number): string => `s${leaseId} ${cost}`;

/** The lease of a call in flight of this process. */
interface ActiveLease extends RemoteLease {
  readonly key: string;
  readonly cost: number;
  /** On the clock of this process, not later than in Redis; Infinity while only the fallback knows it. */
  endsAt: Millis;
  /** False if no command has told Redis of it. */
  mayBeInRedis: boolean;
  isLost: boolean;
}

/** Calls in flight of other processes, as of the last reply. */
interface OtherCalls {
  count: number;
  at: Millis;
}

export class SemaphoreBackend implements RemoteBackend {
  readonly #context: RedisContext;
  #policy: Policy;
  readonly #clock: Clock;
  #most: number;
  /** The name of the smallest of several limits, which all count the same calls. */
  #rule: string | undefined;
  /** Of its queue in Redis, if it has one. */
  readonly #order: FleetOrder | undefined;
  readonly #processes: number;
  readonly #processId: string;
  readonly #leases = new Map<string, ActiveLease>();
  /** By key: the cost of all its leases here. */
  readonly #inFlight = new Map<string, number>();
  readonly #otherCalls = new Map<string, OtherCalls>();
  /** Checks and renewals without a reply. */
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
        undo: () => {}, // its lease is settled
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

  async #checkWithLease(key: string, cost: number): Promise<RemoteDecision> {
    const leaseId = `${this.#processId}/${++this.#lastLeaseNumber}`;
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

  /** A lease that is not renewed expires by itself: it needs no confirmation. */
  reserve(key: string, cost: number): Promise<RemoteDecision> {
    return this.checkNow(key, cost);
  }

  chargeTogether(parts: readonly JointPartRequest[]): Promise<JointDecision> | undefined {
    return chargeTogether(parts);
  }

  jointCall(key: string, cost: number): JointCall {
    return singlePart(this.jointPart(key, cost));
  }

  jointPart(key: string, wholeOrNot: number): JointPart {
    const cost = Math.ceil(wholeOrNot);
    const leaseId = `${this.#processId}/${++this.#lastLeaseNumber}`;
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
    const { decision } = await this.checkNow(key, 1);
    return decision.verdict === 'deny' ? 0 : 1;
  }

  async settle(key: string, { leaseId }: Settlement): Promise<void> {
    const id = leaseId ?? this.#oldestLeaseOf(key) ?? '';
    const lease = this.#leases.get(id);
    if (!lease) return;
    this.#untrack(id, lease);
    const { fairQueue, unsent } = this.#context;
    if (!this.isAvailable) fairQueue?.pollNow(key); // a waiter of this process may use the freed capacity
    if (!lease.mayBeInRedis) return;
    const until = Math.min(lease.endsAt, this.#clock.now() + LEASE_TTL_MS);
    await unsent.send(lease.key, releaseCommand(id, lease.cost), until);
  }

  /** A settlement by key alone ends the call that began first. */
  #oldestLeaseOf(key: string): string | undefined {
    for (const [leaseId, lease] of this.#leases) if (lease.key === key) return leaseId;
    return undefined;
  }

  async addHits(): Promise<void> {}

  leaseOf(leaseId: string): RemoteLease | undefined {
    return this.#leases.get(leaseId);
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
      return { count: Math.min(Number(value), this.#most), at }; // more are in flight after an outage
    } catch {
      return undefined;
    }
  }

  /** Leases do not depend on the limit: with a lower one, calls in flight stay, and later ones wait for them. */
  prepareChange(policy: Policy): (() => Promise<void>) | undefined {
    if (!converterBetween(this.#policy, policy)) return undefined;
    return async () => {
      if (!this.isAvailable) throw new UnavailableError('Redis');
      await this.changeLimit(policy);
    };
  }

  /** Needs no reply of Redis. */
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
    const releases = [...this.#leases].map(([leaseId, lease]) => {
      this.#lose(lease);
      if (!lease.mayBeInRedis) return undefined;
      return this.#context.send(lease.key, releaseCommand(leaseId, lease.cost)).catch(() => {});
    });
    this.#leases.clear();
    this.#inFlight.clear();
    await Promise.all(releases);
    await this.#context.close();
  }

  /** Without `sentAt` the fallback granted it. */
  #track(leaseId: string, { key, cost, sentAt, token, wasSent = true }: GrantedLease): void {
    const endsAt = sentAt === undefined ? Infinity : sentAt + LEASE_TTL_MS;
    const known = { endsAt, mayBeInRedis: wasSent, fencingToken: token };
    this.#leases.set(leaseId, { key, cost, ...known, isLost: false, onLost: undefined });
    this.#inFlight.set(key, this.#inFlightOf(key) + cost);
    this.#cancelTimer ??= this.#scheduleTimer();
  }

  #untrack(leaseId: string, { key, cost }: ActiveLease): void {
    this.#leases.delete(leaseId);
    const left = this.#inFlightOf(key) - cost;
    if (left > 0) this.#inFlight.set(key, left);
    else this.#inFlight.delete(key);
  }

  #inFlightOf(key: string): number {
    return this.#inFlight.get(key) ?? 0;
  }

  /** Renews all leases three times within their lifetime, and reports those that ended. */
  #scheduleTimer(): () => void {
    const now = this.#clock.now();
    let at = now + LEASE_TTL_MS / 3;
    for (const { endsAt, isLost } of this.#leases.values())
      if (!isLost && endsAt > now) at = Math.min(at, endsAt);
    const onTimer = (): void => {
      this.#cancelTimer = undefined;
      for (const lease of [...this.#leases.values()])
        if (lease.endsAt <= this.#clock.now()) this.#lose(lease);
      this.renewAll();
      if (this.#leases.size > 0) this.#cancelTimer = this.#scheduleTimer();
    };
    return schedule(this.#clock, at, onTimer, false);
  }

  /** Registers every call in flight, in one batch: Redis may have lost its lease, or not know it yet. */
  renewAll(): void {
    for (const [leaseId, lease] of this.#leases) this.#pending.add(this.#renew(leaseId, lease));
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
    if (this.#leases.has(leaseId) || !lease.mayBeInRedis) return;
    const release = releaseCommand(leaseId, cost); // the renewal may have arrived last
    await this.#context.unsent.send(key, release, sentAt + LEASE_TTL_MS);
  }

  #lose(lease: ActiveLease): void {
    if (lease.isLost) return;
    lease.isLost = true;
    lease.onLost?.();
  }

  #observe(key: string, cost: number, decision: Decision): void {
    if (decision.verdict === 'allow') this.#observeTotal(key, this.#most - decision.remaining);
    else if (cost <= this.#most) this.#observeTotal(key, this.#most - cost + 1); // at least
  }

  /** So many calls of the key are in flight over all processes. */
  #observeTotal(key: string, total: number): void {
    if (this.onUnavailable !== 'local') return;
    const count = total - this.#inFlightOf(key);
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
   * The fallback: this process's part of the limit, less its calls in flight. The calls of other processes count as last
   * known, until their leases would have ended. Where a part is less than one call, it is the whole limit.
   */
  #decideLocally(key: string, cost: number): Decision {
    if (this.onUnavailable !== 'local') return decideUnavailable(this.onUnavailable);
    const most = this.#most;
    if (cost > most) return deny(NEVER);
    const part = cost * this.#processes > most ? most : Math.floor(most / this.#processes);
    const mine = this.#inFlightOf(key) + cost;
    const known = this.#otherCalls.get(key);
    const isKnown = known !== undefined && this.#clock.now() - known.at < LEASE_TTL_MS;
    const total = mine + (isKnown ? known.count : 0);
    if (mine > part || total > most) return deny(WHEN_SETTLED);
    return { verdict: 'allow', remaining: Math.min(part - mine, most - total) };
  }
}

const mostOf = ({ specs = [] }: Policy): number =>
  Math.min(...specs.map(({ params }) => params[0]));

const smallestRuleOf = (policy: Policy): string | undefined =>
  namesOfRules(policy)[
    (policy.specs ?? []).findIndex(({ params }) => params[0] === mostOf(policy))
  ];

function scriptsOf(policy: Policy, order: FleetOrder | undefined): Scripts {
  const script = semaphoreScript(mostOf(policy), order);
  return { full: script, checkOnly: script };
}
