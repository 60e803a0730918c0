/**
 * Runs the operations of a request on the state of their keys. The functions are pure: the time is an argument.
 *
 * A Durable Object handles one event at a time, so the policies of this package decide as they do in one process.
 */

import type { Millis } from '../../core/clock.ts';
import { type Decision, deny, type Outcome, wait } from '../../core/decision.ts';
import { type Policy, type Settlement, takeUpTo } from '../../policies/policy.ts';
import type { BatchReply, CheckReply, Operation, Replies } from './protocol.ts';
import {
  type CallerRule,
  copyOf,
  deletableAtOf,
  MAX_LEASES,
  MAX_REMEMBERED_CALLS,
  newKey,
  type RuleRecord,
  recordFor,
  type StoredKey,
} from './stored-key.ts';

/** The retry time of a call that was refused because its key has too many leases. */
const LEASES_FULL_RETRY_MS: Millis = 1000;

export interface OperationContext {
  readonly rule: CallerRule;
  readonly now: Millis;
  /** Returns the policy of a limit that an earlier request carried. */
  policyOf(text: string): Policy;
}

export interface Applied {
  readonly reply: Replies[keyof Replies];
  /** False if there is nothing to write. */
  readonly isChanged: boolean;
  /** The key's state after the operation; undefined: that of a new key. */
  readonly stored: StoredKey | undefined;
}

/** Runs one operation; changes `stored` in place. */
export function applyOperation(
  operation: Operation,
  stored: StoredKey = newKey(),
  context: OperationContext,
): Applied {
  const { rule, now, policyOf } = context;
  if (operation.op === 'forget') return { reply: null, isChanged: true, stored: undefined };
  const isTakeover = stored.records.length > 0 && rule.since > stored.since;
  if (operation.op === 'read') {
    if (isTakeover) recordFor(stored, rule, now, policyOf);
    const { state } = recordFor(copyOf(stored), rule, now, policyOf);
    return { reply: [...state], isChanged: isTakeover, stored };
  }
  const record = recordFor(stored, rule, now, policyOf);
  const before = record.state.slice();
  const operations = new KeyOperations(stored, record, rule, now);
  const reply = operations.run(operation);
  // A mere conversion need not be written: repeating it has an equal result.
  const isSame = record.state.every((value, n) => Object.is(value, before[n]));
  if (isSame && !operations.hasChanged && !isTakeover) return { reply, isChanged: false, stored };
  record.at = now;
  const ends = stored.records.map((one) => deletableAtOf(one, policyOf(one.text), now));
  for (const { until } of stored.calls.values()) ends.push(until);
  stored.deletableAt = Math.max(...ends);
  return { reply, isChanged: true, stored };
}

type CheckOperation = Extract<Operation, { op: 'check' }>;
type KeyOperation = Exclude<Operation, { op: 'read' | 'forget' }>;

class KeyOperations {
  readonly #stored: StoredKey;
  readonly #record: RuleRecord;
  readonly #policy: Policy;
  readonly #leaseMs: Millis;
  readonly #now: Millis;
  /** Whether leases or remembered calls have changed. */
  hasChanged = false;

  constructor(stored: StoredKey, record: RuleRecord, rule: CallerRule, now: Millis) {
    this.#stored = stored;
    this.#record = record;
    this.#policy = rule.policy;
    this.#leaseMs = rule.leaseMs;
    this.#now = now;
  }

  run(operation: KeyOperation): Applied['reply'] {
    const { state } = this.#record;
    switch (operation.op) {
      case 'check':
        return this.#checkOnce(operation) ?? this.#checkAndRemember(operation);
      case 'batch':
        return this.#checkBatch(operation.costs, operation.leases ?? []);
      case 'take':
        return takeUpTo(this.#policy, state, 0, operation.most, this.#now, operation.leave);
      case 'settle':
        return this.#settle(operation.settlement, operation.left ?? 0);
      case 'renew':
        return this.#renew(operation.lease);
      case 'report': {
        const { report, count } = operation;
        this.#policy.update(state, 0, { report, count }, this.#now);
        return null;
      }
      case 'hits':
        this.#policy.update(state, 0, { hits: operation.count }, this.#now);
        return null;
    }
  }

  /** The decision of an earlier call with the same id. */
  #checkOnce({ once }: CheckOperation): CheckReply | undefined {
    const known = once && this.#stored.calls.get(once.id);
    if (!known || known.until <= this.#now) return undefined;
    const { decision, decidedAt } = known;
    if (decision.verdict !== 'wait') return { decision };
    return { decision: wait(Math.max(0, decidedAt + decision.waitMs - this.#now)) };
  }

  #checkAndRemember({ cost, mayReserve, isWaiting, lease, once }: CheckOperation): CheckReply {
    const reply = isWaiting
      ? this.#checkWaiting(cost, lease)
      : this.#check(cost, mayReserve, lease);
    if (once && reply.decision.verdict !== 'deny') this.#remember(once, reply.decision);
    return reply;
  }

  #remember({ id, forMs }: { id: string; forMs: Millis }, decision: Decision): void {
    const { calls } = this.#stored;
    calls.delete(id);
    for (const [known, { until }] of calls)
      if (until <= this.#now || calls.size >= MAX_REMEMBERED_CALLS) calls.delete(known);
    const [decidedAt, until] = [this.#now, this.#now + forMs];
    calls.set(id, { decision, decidedAt, until, isSettled: false });
    this.hasChanged = true;
  }

  #check(cost: number, mayReserve: boolean, leaseId?: string): CheckReply {
    const decision = this.#decide(cost, mayReserve, leaseId);
    if (leaseId === undefined || decision.verdict === 'deny' || cost === 0) return { decision };
    return { decision, token: this.#grantLease(leaseId, cost, decision) };
  }

  #decide(cost: number, mayReserve: boolean, leaseId?: string): Decision {
    const { state, leases } = this.#record;
    if (leaseId !== undefined && leases.size >= MAX_LEASES) return deny(LEASES_FULL_RETRY_MS);
    const before = mayReserve || !this.#policy.traits.canReserve ? undefined : state.slice();
    const decision = this.#policy.check(state, 0, cost, this.#now);
    if (decision.verdict !== 'wait' || !before) return decision;
    state.set(before); // cancels the reservation
    return deny(Math.ceil(decision.waitMs));
  }

  /** Returns the lease's fencing token, which is higher than all earlier ones, even after the key was deleted. */
  #grantLease(leaseId: string, cost: number, decision: Decision): number {
    const now = this.#now;
    const dueAt = now + (decision.verdict === 'wait' ? decision.waitMs : 0);
    this.#record.leases.set(leaseId, { cost, dueAt, endsAt: now + this.#leaseMs });
    this.hasChanged = true;
    this.#stored.token = Math.max(this.#stored.token + 1, Math.floor(now));
    return this.#stored.token;
  }

  /** Checks a waiting call: it continues to wait if denied, so its denial does not count as a refusal. */
  #checkWaiting(cost: number, leaseId?: string): CheckReply {
    const { state } = this.#record;
    const before = this.#policy.chain?.recordRefusal ? state.slice() : state;
    const reply = this.#check(cost, false, leaseId);
    if (reply.decision.verdict === 'deny') state.set(before);
    return reply;
  }

  #checkBatch(costs: readonly number[], leaseIds: readonly string[]): BatchReply {
    const tokens: (number | undefined)[] = [];
    for (const [n, cost] of costs.entries()) {
      const { decision, token } = this.#checkWaiting(cost, leaseIds[n]);
      if (decision.verdict === 'deny') return { tokens, refusal: decision };
      tokens.push(token);
    }
    return { tokens, refusal: undefined };
  }

  /** Settles a call. The settlement of an expired lease is ignored: its call was already counted as failed. */
  #settle(settlement: Settlement, left: number): null {
    const { leaseId } = settlement;
    const dueAt = settlement.dueAt ?? Number.NaN;
    if (leaseId !== undefined) {
      const lease = this.#record.leases.get(leaseId);
      if (!lease) return null;
      if (left > 0) lease.cost = left;
      else this.#record.leases.delete(leaseId);
      this.hasChanged = true;
    }
    if (settlement.callId !== undefined && !this.#settleCall(settlement.callId, settlement.outcome))
      return null;
    this.#policy.settle(this.#record.state, 0, { ...settlement, dueAt }, this.#now);
    return null;
  }

  /** Marks a remembered call as settled; false if it was before. An ignored call was not charged, so its repeat is. */
  #settleCall(id: string, outcome: Outcome): boolean {
    const call = this.#stored.calls.get(id);
    if (!call || call.isSettled) return false;
    if (outcome === 'ignored') this.#stored.calls.delete(id);
    else call.isSettled = true;
    this.hasChanged = true;
    return true;
  }

  #renew(leaseId: string): boolean {
    const lease = this.#record.leases.get(leaseId);
    if (!lease) return false;
    lease.endsAt = this.#now + this.#leaseMs;
    this.hasChanged = true;
    return true;
  }
}
