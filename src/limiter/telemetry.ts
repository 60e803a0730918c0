/**
 * What a limiter writes down: who was let through or refused, who gave up, what is held, how it went.
 *
 * Every door of a limiter ends here, so that a call is counted once, told once and, if it holds a
 * permit, found if it never comes back.
 */

import type { Clock, Millis } from '../core/clock.ts';
import { DeadlineSet } from '../core/deadline-set.ts';
import { type Decision, deny, type OnUnavailable, type Outcome } from '../core/decision.ts';
import { emitProcessWarning } from '../core/process-warning.ts';
import { type Listener, ListenerSet } from './events.ts';
import { Permit, type PermitResult, Refusal } from './permit.ts';
import { type CounterSnapshot, Counters } from './stats.ts';
import type { RefusalReason } from './wait-scheduler.ts';

/** What a permit was given for. */
export interface Grant {
  readonly key: string;
  readonly cost: number;
  /** When it was good, on the clock of whoever decided. */
  readonly dueAt: Millis;
  /** When it was handed out, on the limiter's. */
  readonly issuedAt: Millis;
  readonly waitedMs: Millis;
}

const GRANTED: Decision = { verdict: 'allow', remaining: 0 };

export class LimiterTelemetry {
  readonly name: string;
  readonly #clock: Clock;
  readonly #counters = new Counters();
  readonly #events = new ListenerSet();
  readonly #unsettled: DeadlineSet<Permit>;

  constructor(name: string, clock: Clock, permitTimeoutMs: Millis) {
    this.name = name;
    this.#clock = clock;
    this.#unsettled = new DeadlineSet(clock, permitTimeoutMs, (permit) => this.#expire(permit));
  }

  on(listener: Listener): () => void {
    return this.#events.on(listener);
  }

  snapshot(): CounterSnapshot & { readonly held: number } {
    return { held: this.#unsettled.size, ...this.#counters.snapshot() };
  }

  /** Whether anybody listens. If not, a decision may be just counted. */
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

  /** Counts a call as let through and hands out its permit; `settle` hears how it went, how long it took, and when. */
  issuePermit(
    { key, cost, dueAt, issuedAt, waitedMs }: Grant,
    settle: (settled: PermitResult, rttMs: Millis, now: Millis) => void,
  ): Permit {
    this.recordDecision(key, cost, GRANTED, waitedMs);
    const permit: Permit = new Permit({ key, cost, dueAt, issuedAt }, (settled) => {
      this.#unsettled.remove(permit);
      const now = this.#clock.now();
      const rttMs = settled.rttMs ?? Math.max(0, now - issuedAt); // some clocks do go backwards
      settle(settled, rttMs, now);
    });
    this.#unsettled.add(permit);
    return permit;
  }

  refuse(
    key: string,
    cost: number,
    { retryAfterMs, reason }: { readonly retryAfterMs: Millis; readonly reason: RefusalReason },
    waitedMs: Millis,
  ): Refusal {
    this.recordDecision(key, cost, deny(retryAfterMs), waitedMs);
    return new Refusal({ limit: this.name, retryAfterMs, reason });
  }

  /** Somebody gave up waiting. */
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
  ): void {
    this.#counters.recordSettled(outcome, rttMs);
    if (!this.#events.hasListeners) return;
    const about = { limit: this.name, key, cost, at: this.#clock.now() };
    const known = { ...(used !== undefined && { used }), ...(rttMs !== undefined && { rttMs }) };
    this.#events.emit({ type: 'settled', ...about, outcome, ...known });
  }

  /** Whoever decides is out of reach, or back. */
  recordAvailability(isAvailable: boolean, reason: unknown, onUnavailable: OnUnavailable): void {
    const about = { limit: this.name, key: '', cost: 0, at: this.#clock.now() };
    const out = !isAvailable && { reason, onUnavailable };
    this.#events.emit({ type: 'availability', ...about, isAvailable, ...out });
  }

  #expire(permit: Permit): void {
    const { key, cost } = permit;
    const at = this.#clock.now();
    const heldMs = at - permit.issuedAt;
    this.#counters.recordExpired();
    this.#events.emit({ type: 'expired', limit: this.name, key, cost, at, heldMs });
    emitProcessWarning('EXPIRED_PERMIT', expiredPermitMessage(this.name, key, heldMs));
    permit.settle({ outcome: 'failed' });
  }
}

const expiredPermitMessage = (name: string, key: string, heldMs: Millis): string =>
  `a permit of limit "${name}" for key ${JSON.stringify(key)} was not settled within ` +
  `${Math.round(heldMs / 1000)} s and counts as lost; settle every permit, or raise permitTimeout`;
