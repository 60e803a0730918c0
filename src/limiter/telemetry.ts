/** Every method of a limiter records its result here, so each call is counted once. */

import type { Clock, Millis } from '../core/clock.ts';
import { DeadlineSet } from '../core/deadline-set.ts';
import type { Decision, OnUnavailable, Outcome } from '../core/decision.ts';
import { emitProcessWarning } from '../core/process-warning.ts';
import type { Limit } from '../policies/limit.ts';
import type { Adjustment } from './adjustments.ts';
import { type LearntLimit, type Listener, ListenerSet } from './events.ts';
import { endPermit, Permit, type PermitInit, type PermitResult, takeHolder } from './permit.ts';
import { type CounterSnapshot, Counters } from './stats.ts';

/** Measures the delay of the event loop. */
export interface EventLoopMonitor {
  readonly delayMs: Millis;
}

export const GRANTED: Decision = { verdict: 'allow', remaining: 0 };

/** A client of a daemon can hold hundreds of thousands of permits that expire together: about 1 ms of work at once. */
const MAX_EXPIRED_AT_ONCE = 500;

export class LimiterTelemetry {
  readonly name: string;
  readonly #clock: Clock;
  readonly #counters = new Counters();
  readonly #events = new ListenerSet();
  readonly #unsettled: DeadlineSet<Permit>;
  /** Set if an adapter sheds load by event-loop delay. */
  eventLoop: EventLoopMonitor | undefined;

  constructor(name: string, clock: Clock, permitTimeoutMs: Millis) {
    this.name = name;
    this.#clock = clock;
    this.#unsettled = new DeadlineSet(
      clock,
      permitTimeoutMs,
      (permit) => this.#expire(permit),
      MAX_EXPIRED_AT_ONCE,
      takeHolder,
    );
  }

  on(listener: Listener): () => void {
    return this.#events.on(listener);
  }

  snapshot(): CounterSnapshot & { readonly held: number; readonly eventLoopDelayMs?: Millis } {
    const delay = this.eventLoop && { eventLoopDelayMs: this.eventLoop.delayMs };
    return { held: this.#unsettled.size, ...delay, ...this.#counters.snapshot() };
  }

  /** Calls denied so far, without a snapshot of all counters. */
  get denied(): number {
    return this.#counters.denied;
  }

  /** Calls allowed so far, at once or after a wait. */
  get allowed(): number {
    return this.#counters.allowed;
  }

  /** False without listeners: `countDecision` is enough then. */
  get hasListeners(): boolean {
    return this.#events.hasListeners;
  }

  countDecision(decision: Decision): void {
    this.#counters.recordDecision(decision, 0);
  }

  recordDecision(key: string, cost: number, decision: Decision, waitedMs: Millis): void {
    this.#counters.recordDecision(decision, waitedMs);
    if (!this.#events.hasListeners) return;
    const at = this.#clock.now();
    this.#events.emit({ type: 'decision', limit: this.name, key, cost, at, decision, waitedMs });
  }

  /** Expires overdue permits where no timer does. */
  expireOverduePermits(): void {
    this.#unsettled.expireOverdue();
  }

  /** Permits issued and not settled. */
  get held(): number {
    return this.#unsettled.size;
  }

  /** Counts a call as allowed and issues its permit. `settle` gets the result, the round-trip time and the time. */
  issuePermit(
    init: PermitInit & { readonly waitedMs: Millis },
    settle: (result: PermitResult, rttMs: Millis, now: Millis) => void,
  ): Permit {
    const { issuedAt } = init;
    this.recordDecision(init.key, init.cost, GRANTED, init.waitedMs);
    const permit: Permit = new Permit(init, (result) => {
      this.#unsettled.remove(permit);
      const now = this.#clock.now();
      const rttMs = result.rttMs ?? Math.max(0, now - issuedAt); // some clocks go backwards
      settle(result, rttMs, now);
    });
    this.#unsettled.add(permit);
    return permit;
  }

  /** The signal of a waiting call aborted. */
  recordCancelled(key: string, cost: number, waitedMs: Millis): void {
    this.#counters.recordCancelled();
    const at = this.#clock.now();
    this.#events.emit({ type: 'cancelled', limit: this.name, key, cost, at, waitedMs });
  }

  recordSettled(
    key: string,
    cost: number,
    outcome: Outcome,
    used: number | undefined,
    rttMs: Millis | undefined,
    learnt?: LearntLimit,
  ): void {
    this.#counters.recordSettled(outcome, rttMs);
    if (!this.#events.hasListeners) return;
    const about = { limit: this.name, key, cost, at: this.#clock.now() };
    const known = { ...(used !== undefined && { used }), ...(rttMs !== undefined && { rttMs }) };
    this.#events.emit({
      type: 'settled',
      ...about,
      outcome,
      ...known,
      ...learnt,
    });
  }

  recordAdjusted(key: string, cost: number, change: Adjustment): void {
    const at = this.#clock.now();
    this.#events.emit({ type: 'limit-changed', limit: this.name, key, cost, at, ...change });
  }

  /** The backend became unavailable, or available again. */
  recordAvailability(isAvailable: boolean, reason: unknown, onUnavailable: OnUnavailable): void {
    const about = { limit: this.name, key: '', cost: 0, at: this.#clock.now() };
    const cause = !isAvailable && { reason, onUnavailable };
    this.#events.emit({ type: 'availability', ...about, isAvailable, ...cause });
  }

  /** A failed call is not retried: the retry budget is used up. */
  recordDeniedRetry(key: string, cost: number, outcome: Outcome): void {
    this.#counters.recordDeniedRetry();
    const at = this.#clock.now();
    this.#events.emit({ type: 'retry-denied', limit: this.name, key, cost, at, outcome });
  }

  recordReconfigured(to: Limit): void {
    const about = { limit: this.name, key: '', cost: 0, at: this.#clock.now() };
    this.#events.emit({ type: 'reconfigured', ...about, to });
  }

  #expire(permit: Permit): void {
    const { key, cost } = permit;
    const at = this.#clock.now();
    const heldMs = at - permit.issuedAt;
    this.#counters.recordExpired();
    this.#events.emit({ type: 'expired', limit: this.name, key, cost, at, heldMs });
    emitProcessWarning('EXPIRED_PERMIT', () => expiredPermitMessage(this.name, key, heldMs));
    endPermit(permit, `it was held longer than the permitTimeout of limit "${this.name}"`);
    permit.settle({ outcome: 'failed' });
  }
}

const expiredPermitMessage = (name: string, key: string, heldMs: Millis): string =>
  `a permit of limit "${name}" for key ${JSON.stringify(key)} was not settled within ` +
  `${Math.round(heldMs / 1000)} s and has expired; settle every permit, or raise permitTimeout`;
