/**
 * Distributed semaphore: a concurrency limit over the whole fleet, decided by transactions in etcd (`semaphore-key.ts`).
 *
 * Strict: at any instant, the permits that are neither settled nor lost have at most `concurrency` units, over all
 * processes. A process that dies, or has no contact for the time of a lease, loses its permits. `onLost` tells it; its
 * calls may still run, and only the resource can reject them, by their fencing tokens.
 *
 *     check ──▶ entry of this process written by quorum ──▶ permit ──▶ settled: entry written again, with fewer units
 *                                    └── renewed while calls are in flight
 *
 * A release that etcd does not receive is repeated when etcd is available again. Calls that run through an outage are
 * registered again, including calls that `onUnavailable: 'allow'` admitted.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import { allow, type Decision, deny, NEVER, WHEN_SETTLED } from '../../core/decision.ts';
import { UnavailableError } from '../../core/errors.ts';
import { cryptoRandom } from '../../core/random.ts';
import {
  converterBetween,
  type Policy,
  type Settlement,
  type State,
} from '../../policies/policy.ts';
import { layoutOf } from '../../policies/rules.ts';
import { type HeldLease, HeldLeases } from '../held-leases.ts';
import {
  type BatchDecision,
  type RemoteBackend,
  type RemoteBackendContext,
  type RemoteDecision,
  type RemoteLease,
  toBatchDecision,
} from '../remote-backend.ts';
import { limitIdOf, randomId } from '../remote-limit.ts';
import { RttEstimator } from '../rtt-estimator.ts';
import { InFlightLimit } from './in-flight-limit.ts';
import { LeaseCache } from './leases.ts';
import { type EtcdOnUnavailable, Operations } from './operations.ts';
import {
  MAX_RENEWED_TOGETHER,
  RENEWAL_CHECK_MS,
  renewTogether,
  type SemaphoreContext,
  SemaphoreKey,
  type SemaphoreRequest,
  type SemaphoreResult,
} from './semaphore-key.ts';
import type { EntryStore } from './store.ts';

export interface SemaphoreOptions {
  readonly prefix: string;
  readonly deadlineMs: Millis;
  readonly onUnavailable: EtcdOnUnavailable;
}

/** Granted calls, and the units in flight including them. */
interface Granted {
  readonly leaseIds: readonly string[];
  readonly units: number;
  readonly inFlight: number;
}

/** Lease id of a call without units, which has no lease. */
const NO_LEASE = '';

/** Reads the entries, and writes the own entry if it is due. */
const TAKE_NOTHING: SemaphoreRequest['take'] = () => [];

export class SemaphoreBackend implements RemoteBackend {
  readonly #clock: Clock;
  readonly #store: EntryStore;
  readonly #operations: Operations<SemaphoreRequest, SemaphoreKey>;
  readonly #keyContext: SemaphoreContext;
  readonly #held = new HeldLeases<HeldLease>();
  readonly onUnavailable: EtcdOnUnavailable;
  #policy: Policy;
  #lastLeaseNumber = 0;
  #cancelTimer: (() => void) | undefined;
  #isClosed = false;

  constructor(
    policy: Policy,
    context: RemoteBackendContext,
    store: EntryStore,
    options: SemaphoreOptions,
  ) {
    const { clock, random } = context;
    this.#policy = policy;
    this.#clock = clock;
    this.#store = store;
    this.onUnavailable = options.onUnavailable;
    const limitId = encodeURIComponent(limitIdOf(context, policy));
    const limitPrefix = `${options.prefix}${limitId}/${layoutOf(policy)}/`;
    const rtt = new RttEstimator(options.deadlineMs);
    this.#keyContext = {
      ...{ clock, random, store, rtt, inFlightLimit: new InFlightLimit() },
      leases: new LeaseCache(store, clock, rtt),
      // Never seeded: two processes with one id would write one entry.
      processId: randomId(cryptoRandom),
      onReply: () => this.#operations.onReply(),
      onFailure: (error: unknown) => this.#operations.onFailure(error),
    };
    this.#operations = new Operations({
      ...options,
      clock,
      probe: () => store.readEntries(`${limitPrefix}%/`), // matches no key: a percent sign in a key would be encoded
      onAvailability: (isAvailable, why) => {
        if (isAvailable) this.#writeDue();
        context.onAvailability(isAvailable, why);
      },
      createQueue: (key) =>
        new SemaphoreKey(
          `${limitPrefix}${segmentOf(key)}/`,
          () => this.#held.unitsOf(key),
          this.#keyContext,
        ),
    });
  }

  get isAvailable(): boolean {
    return this.#operations.isAvailable;
  }

  get #most(): number {
    return this.#policy.traits.concurrencyLimit ?? 0;
  }

  check(key: string, cost: number): Promise<RemoteDecision> {
    return this.checkNow(key, cost);
  }

  async checkNow(key: string, wholeOrNot: number): Promise<RemoteDecision> {
    const cost = Math.ceil(wholeOrNot);
    const take = cost > 0 ? this.#takeInOrder([cost]) : TAKE_NOTHING;
    const granted = await this.#request(key, take);
    if (!granted) return this.#undecided(key, cost);
    const [leaseId] = granted.leaseIds;
    const isGranted = leaseId !== undefined || (cost === 0 && !this.#isClosed);
    const decision = isGranted ? this.#allow(granted) : this.#refuse(cost);
    return { decision, decidedAt: this.#clock.now(), leaseId };
  }

  async checkBatch(key: string, wholeOrNot: readonly number[]): Promise<BatchDecision> {
    const costs = wholeOrNot.map(Math.ceil);
    const batch = await this.#request(key, this.#takeInOrder(costs));
    if (!batch) return toBatchDecision(this.#undecided(key, costs[0]));
    const { leaseIds } = batch;
    const granted = leaseIds.length;
    const refusal = granted < costs.length ? this.#refuse(costs[granted]) : undefined;
    return { granted, refusal, leaseIds, decidedAt: this.#clock.now() };
  }

  async takeUpTo(key: string, most: number): Promise<number> {
    if (most < 1) return 0;
    const granted = await this.#request(key, (inFlight) => {
      const units = Math.floor(Math.min(most, this.#most - inFlight));
      return units > 0 ? [units] : [];
    });
    if (granted) return granted.units;
    return this.#undecided(key, 1).decision.verdict === 'allow' ? 1 : 0;
  }

  /** A lease that is not renewed expires: it needs no confirmation. */
  reserve(key: string, cost: number): Promise<RemoteDecision> {
    return this.checkNow(key, cost);
  }

  async settle(key: string, { leaseId, cost }: Settlement): Promise<void> {
    const settled =
      leaseId === undefined
        ? this.#held.removeUnits(key, Math.ceil(cost))
        : this.#held.remove(leaseId);
    if (settled.length > 0) await this.#request(key, TAKE_NOTHING);
  }

  leaseOf(leaseId: string): RemoteLease | undefined {
    return this.#held.get(leaseId);
  }

  async addHits(): Promise<void> {}

  async readState(key: string): Promise<{ state: State; at: Millis } | undefined> {
    const read = await this.#request(key, TAKE_NOTHING);
    if (!read) return undefined;
    const at = this.#clock.now();
    const state = new Float64Array(this.#policy.width);
    this.#policy.init(state, 0, at);
    this.#policy.check(state, 0, Math.min(read.inFlight, this.#most), at); // an outage may have admitted more
    return { state, at };
  }

  /** Entries do not depend on the limit. After a decrease, calls in flight stay and later calls wait for them. */
  prepareChange(policy: Policy): (() => Promise<void>) | undefined {
    if (!converterBetween(this.#policy, policy)) return undefined;
    return async () => {
      if (!this.isAvailable) throw new UnavailableError('etcd');
      this.#policy = policy;
    };
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#cancelTimer?.();
    this.#held.clear();
    const used = [...this.#operations.queues].filter(([, queue]) => !queue.isIdle);
    await Promise.all(used.map(([key]) => this.#request(key, TAKE_NOTHING)));
    this.#operations.close();
    this.#store.close();
  }

  /** Decides first come first served: after a call that does not fit, none is granted. */
  #takeInOrder(costs: readonly number[]): SemaphoreRequest['take'] {
    return (inFlight) => {
      let free = this.#most - inFlight;
      const fits = (cost: number): boolean => {
        free -= cost;
        return free >= 0;
      };
      const refused = costs.findIndex((cost) => !fits(cost));
      return refused < 0 ? costs : costs.slice(0, refused);
    };
  }

  /** Resolves with undefined if there is no decision in time. */
  #request(key: string, take: SemaphoreRequest['take']): Promise<Granted | undefined> {
    if (!this.#isClosed) this.#cancelTimer ??= this.#scheduleTimer();
    const accept = (result: unknown): Granted => this.#accept(key, result as SemaphoreResult);
    return this.#operations.run(key, { take }, accept).catch(() => undefined);
  }

  /** Tracks granted calls; a limiter that was closed meanwhile takes none. */
  #accept(key: string, { costs, inFlight, token }: SemaphoreResult): Granted {
    if (this.#isClosed) return { leaseIds: [], units: 0, inFlight };
    const leaseIds = costs.map((cost, n) => this.#track(key, cost, token + n));
    return { leaseIds, units: costs.reduce((sum, cost) => sum + cost, 0), inFlight };
  }

  #track(key: string, cost: number, fencingToken: number | undefined): string {
    if (cost === 0) return NO_LEASE;
    const leaseId = String(++this.#lastLeaseNumber);
    this.#held.add(leaseId, { key, cost, fencingToken, isLost: false, onLost: undefined });
    return leaseId;
  }

  /** Decides by the fallback. An allowed call is registered when etcd is available again. */
  #undecided(key: string, cost: number): RemoteDecision {
    if (cost > this.#most) return { decision: this.#refuse(cost), decidedAt: this.#clock.now() };
    const undecided = this.#operations.undecided(key);
    const isAllowed = undecided.decision.verdict === 'allow' && !this.#isClosed;
    return isAllowed ? { ...undecided, leaseId: this.#track(key, cost, undefined) } : undecided;
  }

  #allow({ inFlight }: Granted): Decision {
    return allow(Math.max(0, this.#most - inFlight));
  }

  #refuse(cost: number): Decision {
    return deny(cost > this.#most ? NEVER : WHEN_SETTLED);
  }

  /** Renews the entries of this process, and tells the holders of entries that have ended. */
  #scheduleTimer(): () => void {
    let at = this.#clock.now() + RENEWAL_CHECK_MS;
    for (const queue of this.#operations.queues.values()) at = Math.min(at, queue.endsAt);
    const onTimer = (): void => {
      this.#cancelTimer = undefined;
      const now = this.#clock.now();
      for (const [key, queue] of this.#operations.queues)
        if (queue.expire(now)) this.#held.lose(key);
      this.#writeDue();
      const isUsed = [...this.#operations.queues.values()].some((queue) => !queue.isIdle);
      if (isUsed) this.#cancelTimer ??= this.#scheduleTimer();
    };
    return schedule(this.#clock, at, onTimer, false);
  }

  /** Writes entries that are old or differ from the calls in flight. */
  #writeDue(): void {
    const due = [...this.#operations.queues].filter(([, queue]) => queue.isDue);
    const together = new Map(due.length > 1 ? due.filter(([, queue]) => queue.beginRenewal()) : []);
    for (const [key] of due) if (!together.has(key)) void this.#request(key, TAKE_NOTHING);
    for (const page of pagesOf([...together], MAX_RENEWED_TOGETHER)) void this.#renew(page);
  }

  /** Renews a page together; one by one if a key was written meanwhile or the reply was lost. */
  async #renew(page: readonly (readonly [string, SemaphoreKey])[]): Promise<void> {
    const queues = page.map(([, queue]) => queue);
    if (await renewTogether(queues, this.#keyContext)) return;
    for (const [key] of page) void this.#request(key, TAKE_NOTHING);
  }
}

function pagesOf<T>(items: readonly T[], size: number): T[][] {
  const starts = Array.from({ length: Math.ceil(items.length / size) }, (_, n) => n * size);
  return starts.map((start) => items.slice(start, start + size));
}

/** A part of an etcd name without slashes: a key's entries are under this part and a slash. */
const segmentOf = (key: string): string => key.replace(/[%/]/g, encodeURIComponent);
