/**
 * A limit decided by Durable Objects of Cloudflare Workers: sends operations and reads their replies.
 *
 *     limiter ──▶ ObjectTransport ──▶ one object for each key, or for a shard of keys ──▶ `object.ts` runs the policy
 *
 * The fallback of `onUnavailable` decides operations without a reply in time. A call that the object decides later
 * stays charged, so the limit counts more than was used, never less. A lease expires.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { type AttemptOutcome, deny, NEVER, type OnUnavailable } from '../../core/decision.ts';
import { RejectedError, UnavailableError } from '../../core/errors.ts';
import { createHasher } from '../../core/hash.ts';
import { MAX_AMOUNT } from '../../core/options.ts';
import { limitOf } from '../../policies/limit.ts';
import { converterBetween, type Policy, type Settlement } from '../../policies/policy.ts';
import { type Fallback, LocalFallback } from '../local/local-fallback.ts';
import {
  type BatchDecision,
  type RemoteBackend,
  type RemoteBackendContext,
  type RemoteDecision,
  type RemoteLease,
  toBatchDecision,
} from '../remote-backend.ts';
import { decideUnavailable } from '../remote-limit.ts';
import { RenewedLeases } from './leases.ts';
import type { ObjectNamespace } from './platform.ts';
import { encode, type Operation, type RuleMessage } from './protocol.ts';
import { type ObjectReply, ObjectTransport } from './transport.ts';

export interface DurableObjectSettings {
  readonly namespace: ObjectNamespace;
  readonly locationHint: string | undefined;
  readonly deadlineMs: Millis;
  readonly onUnavailable: OnUnavailable;
  readonly processes: number;
  /** Number of objects that share the keys of the limit; undefined: one object per key. */
  readonly shards: number | undefined;
  readonly leaseMs: Millis;
  readonly writeDelayMs: Millis;
  readonly waitUntil: ((work: Promise<unknown>) => void) | undefined;
}

/** Storage names have at most 2048 bytes; a character takes up to three. */
const MAX_KEY_CHARS = 500;

/** The most units that one `takeUpTo` takes of a concurrency limit: each is a lease. */
const MAX_TAKEN = 100;

/** The most lease settlements that wait for their object to reply again; a dropped one ends with its lease. */
const MAX_UNSENT = 10_000;

/** The least time between two changes of a limiter. */
const MIN_CHANGE_MS: Millis = 0.01;

/** A settlement that could not be sent. */
interface UnsentSettlement {
  readonly operation: Operation;
  /** Time at which its lease ends in the object. */
  readonly until: Millis;
}

type Reply<Op extends Operation> = Promise<ObjectReply<Op['op']>>;

export class DurableObjectBackend implements RemoteBackend {
  readonly #settings: DurableObjectSettings;
  readonly #clock: Clock;
  readonly #transport: ObjectTransport;
  readonly #objectNameOf: (key: string) => string;
  readonly #fallback: Fallback;
  /** Leases of this process, for a rule that counts calls in flight. */
  readonly #leases: RenewedLeases | undefined;
  readonly onUnavailable: OnUnavailable;
  /** Absent for a rule that counts calls in flight: there each process remembers its own calls. */
  declare readonly checkOnce?: NonNullable<RemoteBackend['checkOnce']>;
  readonly #unsent: UnsentSettlement[] = [];
  #policy: Policy;
  #rule: RuleMessage;
  #isClosed = false;

  constructor(policy: Policy, context: RemoteBackendContext, settings: DurableObjectSettings) {
    const { clock, random, name, hasExplicitName } = context;
    this.#settings = settings;
    this.#clock = clock;
    this.#policy = policy;
    this.#rule = ruleOf(policy, -Infinity, settings);
    this.onUnavailable = settings.onUnavailable;
    this.#objectNameOf = nameObjects(hasExplicitName ? name : this.#rule.limit, settings.shards);
    this.#fallback = createFallback(policy, context, settings, (key, left) =>
      this.#send({ op: 'take', key, most: MAX_AMOUNT, leave: left }),
    );
    this.#transport = new ObjectTransport({
      ...settings,
      clock,
      onAvailability: (isAvailable, why) => {
        if (isAvailable) {
          this.#fallback.reconcile(); // before the calls that wait
          this.#sendUnsent();
        }
        context.onAvailability(isAvailable, why);
      },
    });
    if (!policy.traits.needsOutcome)
      this.checkOnce = async (key, cost, { id, forMs, mayReserve }) => {
        const decided = await this.#check(key, cost, mayReserve, { once: { id, forMs } });
        return { ...decided, callId: id };
      };
    else
      this.#leases = new RenewedLeases(clock, random, settings.leaseMs, async (key, lease) => {
        const { reply } = await this.#send({ op: 'renew', key, lease });
        return reply;
      });
  }

  get isAvailable(): boolean {
    return this.#transport.isAvailable;
  }

  check(key: string, cost: number): Promise<RemoteDecision> {
    return this.#check(key, cost, true);
  }

  checkNow(key: string, cost: number, isWaiting = false): Promise<RemoteDecision> {
    return this.#check(key, cost, false, isWaiting ? { isWaiting } : {});
  }

  async #check(
    key: string,
    cost: number,
    mayReserve: boolean,
    call: {
      readonly once?: { readonly id: string; readonly forMs: Millis };
      readonly isWaiting?: boolean;
    } = {},
  ): Promise<RemoteDecision> {
    if (isTooLong(key)) return this.#refuseForGood();
    const leaseId = this.#leases?.newId();
    const sentAt = this.#clock.now();
    const named = leaseId === undefined ? {} : { lease: leaseId };
    const operation = { op: 'check', key, cost, mayReserve, ...named, ...call } as const;
    try {
      const onLate = leaseId === undefined ? undefined : () => this.#release(key, leaseId, cost);
      const { reply, at } = await this.#send(operation, onLate);
      const { decision, token } = reply;
      if (decision.verdict === 'deny' || leaseId === undefined || token === undefined) {
        this.#fallback.observe(key, cost, decision, call.isWaiting);
        return { decision, decidedAt: at };
      }
      if (this.#isClosed) {
        await this.#release(key, leaseId, cost);
        return { decision: deny(0), decidedAt: at };
      }
      this.#leases?.add(leaseId, key, cost, sentAt, token);
      return { decision, decidedAt: at, leaseId };
    } catch (error) {
      return this.#undecided(key, cost, error, call.isWaiting);
    }
  }

  /** Decides by the fallback. @throws {RejectedError} for a configuration mistake: the fallback is for outages only. */
  #undecided(key: string, cost: number, error: unknown, isWaiting = false): RemoteDecision {
    if (error instanceof RejectedError) throw error;
    const decision = this.#isClosed
      ? decideUnavailable('deny')
      : this.#fallback.check(key, cost, isWaiting);
    return { decision, decidedAt: this.#clock.now(), fromFallback: true };
  }

  #refuseForGood(): RemoteDecision {
    return { decision: deny(NEVER), decidedAt: this.#clock.now() };
  }

  async checkBatch(key: string, costs: readonly number[]): Promise<BatchDecision> {
    if (isTooLong(key)) return toBatchDecision(this.#refuseForGood());
    const leases = this.#leases;
    const leaseIds = leases ? costs.map(() => leases.newId()) : undefined;
    const sentAt = this.#clock.now();
    const named = leaseIds ? { leases: leaseIds } : {};
    const releaseAll = (): void => {
      for (const [n, leaseId] of (leaseIds ?? []).entries()) this.#release(key, leaseId, costs[n]);
    };
    try {
      const operation = { op: 'batch', key, costs, ...named } as const;
      const { reply, at } = await this.#send(operation, leaseIds && releaseAll);
      const granted = reply.tokens.length;
      const { refusal } = reply;
      for (const [n, token] of reply.tokens.entries())
        if (leaseIds) leases?.add(leaseIds[n], key, costs[n], sentAt, token);
      if (refusal) this.#fallback.observe(key, costs[granted], refusal, true);
      const ids = leaseIds ? { leaseIds: leaseIds.slice(0, granted) } : {};
      return { granted, refusal, decidedAt: at, ...ids };
    } catch (error) {
      if (error instanceof RejectedError) return toBatchDecision(this.#refuseForGood());
      return toBatchDecision(this.#undecided(key, costs[0], error, true));
    }
  }

  async takeUpTo(key: string, most: number): Promise<number> {
    if (most < 1 || isTooLong(key)) return 0;
    if (this.#leases) {
      const units = Math.min(Math.floor(most), MAX_TAKEN);
      return (await this.checkBatch(key, new Array<number>(units).fill(1))).granted;
    }
    try {
      const { reply } = await this.#send({ op: 'take', key, most, leave: 0 });
      return reply;
    } catch (error) {
      return this.#undecided(key, 1, error).decision.verdict === 'deny' ? 0 : 1;
    }
  }

  /** A lost settlement makes the limit stricter, never looser; the settlement of a lease is sent again later. */
  async settle(key: string, settlement: Settlement): Promise<void> {
    if (!this.#leases) return this.#sendInBackground({ op: 'settle', key, settlement });
    const { leaseId, cost } = settlement;
    if (leaseId !== undefined) {
      for (const { lease } of this.#leases.remove(leaseId))
        await this.#settleLease({ op: 'settle', key, settlement }, lease.endsAt);
      return;
    }
    const settled = this.#leases.removeUnits(key, Math.ceil(cost)).map(({ id, lease, units }) => {
      const ofLease = { ...settlement, cost: units, leaseId: id };
      const operation = { op: 'settle', key, settlement: ofLease, left: lease.cost } as const;
      return this.#settleLease(operation, lease.endsAt);
    });
    await Promise.all(settled);
  }

  #settleLease(operation: Operation, until: Millis): Promise<void> {
    return this.#sendInBackground(operation, () => {
      if (!this.#isClosed && this.#unsent.length < MAX_UNSENT)
        this.#unsent.push({ operation, until });
    });
  }

  #sendUnsent(): void {
    const now = this.#clock.now();
    for (const { operation, until } of this.#unsent.splice(0))
      if (until > now) this.#settleLease(operation, until);
  }

  #release(key: string, leaseId: string, cost: number): Promise<void> {
    const settlement = { outcome: 'ignored', cost, dueAt: Number.NaN, leaseId } as const;
    return this.#sendInBackground({ op: 'settle', key, settlement });
  }

  /** Reports an attempt. If the report is lost, the attempt counts as a failure. */
  async report(key: string, report: AttemptOutcome | 'refusal', count: number): Promise<void> {
    this.#fallback.report?.(key, report, count);
    await this.#sendInBackground({ op: 'report', key, report, count });
  }

  addHits(key: string, count: number): Promise<void> {
    return this.#sendInBackground({ op: 'hits', key, count });
  }

  async forget(key: string): Promise<void> {
    await this.#send({ op: 'forget', key });
    this.#fallback.forget?.(key);
  }

  async readState(key: string): Promise<{ state: Float64Array; at: Millis } | undefined> {
    try {
      const { reply, at } = await this.#send({ op: 'read', key });
      return { state: Float64Array.from(reply), at };
    } catch (error) {
      if (error instanceof RejectedError) throw error;
      return undefined;
    }
  }

  leaseOf(leaseId: string): RemoteLease | undefined {
    return this.#leases?.get(leaseId);
  }

  toServerTime(_key: string, at: Millis): Millis {
    return this.#transport.toObjectTime(at);
  }

  /** Objects convert each key at its next use, as of the time of the change: `stored-key.ts`. */
  prepareChange(policy: Policy): (() => Promise<void>) | undefined {
    const isShared =
      limitOf(policy) !== undefined &&
      policy.traits.needsOutcome === this.#policy.traits.needsOutcome;
    if (!isShared || !converterBetween(this.#policy, policy)) return undefined;
    return async () => {
      if (!this.isAvailable) throw new UnavailableError('a Durable Object');
      this.#rule = ruleOf(policy, this.#changeTime(), this.#settings);
      this.#policy = policy;
      this.#fallback.change?.(policy);
    };
  }

  /** A time later than the last change, although the estimate of the objects' clock varies by a round trip. */
  #changeTime(): Millis {
    const now = this.#clock.now();
    const there = this.#transport.toObjectTime(now);
    return Math.max(Number.isNaN(there) ? now : there, this.#rule.since + MIN_CHANGE_MS);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    const held = this.#leases?.removeAll() ?? [];
    await Promise.all(held.map(({ id, lease, units }) => this.#release(lease.key, id, units)));
    this.#transport.stop();
  }

  #send<Op extends Operation>(
    operation: Op,
    onLate?: (reply: ObjectReply<Op['op']>) => void,
  ): Reply<Op> {
    return this.#transport.send(this.#objectNameOf(operation.key), this.#rule, operation, onLate);
  }

  /** Sends an operation whose loss makes the limit stricter, never looser. On Workers, `waitUntil` keeps it alive. */
  #sendInBackground(operation: Operation, onLost: () => void = () => {}): Promise<void> {
    const sent = this.#send(operation).then(() => {}, onLost);
    this.#settings.waitUntil?.(sent);
    return sent;
  }
}

const isTooLong = (key: string): boolean => key.length > MAX_KEY_CHARS;

const ruleOf = (
  policy: Policy,
  since: Millis,
  { leaseMs, writeDelayMs }: DurableObjectSettings,
): RuleMessage => ({ limit: encode(limitOf(policy)), since, leaseMs, writeDelayMs });

/** Names the object of a key: `["api","alice"]`, or `["api",3]` with shards. */
function nameObjects(limitId: string, shards: number | undefined): (key: string) => string {
  if (shards === undefined) return (key) => JSON.stringify([limitId, key]);
  const hasher = createHasher([]); // equal hashes in every process
  return (key) => {
    hasher.hash(key);
    return JSON.stringify([limitId, (hasher.low >>> 0) % shards]);
  };
}

function createFallback(
  policy: Policy,
  context: RemoteBackendContext,
  { onUnavailable, processes }: DurableObjectSettings,
  lower: (key: string, left: number) => Promise<unknown>,
): Fallback {
  if (onUnavailable === 'local') return new LocalFallback(policy, context, processes, lower);
  const nothing = (): void => {};
  const check = () => decideUnavailable(onUnavailable);
  return { check, observe: nothing, reconcile: nothing, undo: nothing };
}
