/**
 * What a limiter writes down: who was let through or refused, who gave up, what is held, how it went.
 *
 * Every door of a limiter ends here, so that a call is counted once, told once and, if it holds a
 * permit, found if it never comes back.
 */

import type { Clock, Millis } from '../core/clock.ts';
import { Outstanding } from '../core/deadline-set.ts';
import { type Decision, deny, type OnUnavailable, type Outcome } from '../core/decision.ts';
import { warn } from '../core/process-warning.ts';
import { Events, type Listener } from './events.ts';
import { Permit, Refusal, type Settled } from './permit.ts';
import { type Counted, Counts } from './stats.ts';
import type { Reason } from './wait-scheduler.ts';

/** What a permit was given for. */
export interface Grant {
  readonly key: string;
  readonly cost: number;
  /** When it was good, on the clock of whoever decided. */
  readonly dueAt: Millis;
  /** When it was handed out, on the limiter's. */
  readonly heldAt: Millis;
  readonly waitedMs: Millis;
}

const GRANTED: Decision = { verdict: 'allow', remaining: 0 };

export class Ledger {
  readonly name: string;
  readonly #clock: Clock;
  readonly #counts = new Counts();
  readonly #events = new Events();
  readonly #held: Outstanding<Permit>;

  constructor(name: string, clock: Clock, holdMaxMs: Millis) {
    this.name = name;
    this.#clock = clock;
    this.#held = new Outstanding(clock, holdMaxMs, (permit) => this.#lose(permit));
  }

  on(listener: Listener): () => void {
    return this.#events.on(listener);
  }

  read(): Counted & { readonly held: number } {
    return { held: this.#held.size, ...this.#counts.read() };
  }

  /** Whether anybody listens. If not, a decision may be just counted. */
  get isHeard(): boolean {
    return this.#events.hasListeners;
  }

  count(decision: Decision): void {
    this.#counts.decided(decision, 0);
  }

  decided(key: string, cost: number, decision: Decision, waitedMs: Millis): void {
    this.#counts.decided(decision, waitedMs);
    if (!this.#events.hasListeners) return;
    const at = this.#clock.now();
    this.#events.emit({ type: 'decision', limit: this.name, key, cost, at, decision, waitedMs });
  }

  /** Counts a call as let through and hands out its permit; `settle` hears how it went, how long it took, and when. */
  admit(
    { key, cost, dueAt, heldAt, waitedMs }: Grant,
    settle: (settled: Settled, rttMs: Millis, now: Millis) => void,
  ): Permit {
    this.decided(key, cost, GRANTED, waitedMs);
    const permit: Permit = new Permit({ key, cost, dueAt, heldAt }, (settled) => {
      this.#held.remove(permit);
      const now = this.#clock.now();
      const rttMs = settled.rttMs ?? Math.max(0, now - heldAt); // some clocks do go backwards
      settle(settled, rttMs, now);
    });
    this.#held.add(permit);
    return permit;
  }

  refuse(
    key: string,
    cost: number,
    { retryAfterMs, reason }: { readonly retryAfterMs: Millis; readonly reason: Reason },
    waitedMs: Millis,
  ): Refusal {
    this.decided(key, cost, deny(retryAfterMs), waitedMs);
    return new Refusal({ limit: this.name, retryAfterMs, reason });
  }

  /** Somebody gave up waiting. */
  left(key: string, cost: number, waitedMs: Millis): void {
    this.#counts.left();
    const at = this.#clock.now();
    this.#events.emit({ type: 'left', limit: this.name, key, cost, at, waitedMs });
  }

  settled(
    key: string,
    cost: number,
    outcome: Outcome,
    used: number | undefined,
    rttMs: Millis | undefined,
  ): void {
    this.#counts.settled(outcome, rttMs);
    if (!this.#events.hasListeners) return;
    const about = { limit: this.name, key, cost, at: this.#clock.now() };
    const known = { ...(used !== undefined && { used }), ...(rttMs !== undefined && { rttMs }) };
    this.#events.emit({ type: 'settled', ...about, outcome, ...known });
  }

  /** Whoever decides is out of reach, or back. */
  reached(isReachable: boolean, reason: unknown, onUnavailable: OnUnavailable): void {
    const about = { limit: this.name, key: '', cost: 0, at: this.#clock.now() };
    const out = !isReachable && { reason, onUnavailable };
    this.#events.emit({ type: 'reach', ...about, isReachable, ...out });
  }

  #lose(permit: Permit): void {
    const { key, cost } = permit;
    const at = this.#clock.now();
    const heldMs = at - permit.heldAt;
    this.#counts.lost();
    this.#events.emit({ type: 'lost', limit: this.name, key, cost, at, heldMs });
    warn('LOST_PERMIT', lostPermit(this.name, key, heldMs));
    permit.settle({ outcome: 'failed' });
  }
}

const lostPermit = (name: string, key: string, heldMs: Millis): string =>
  `a permit of limit "${name}" for key ${JSON.stringify(key)} was not settled within ` +
  `${Math.round(heldMs / 1000)} s and counts as lost; settle every permit, or raise holdMax`;
