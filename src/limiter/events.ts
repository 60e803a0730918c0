/**
 * What a limiter tells those who listen: every decision, every call that was settled, every permit
 * that was lost.
 *
 * Nobody listening costs one look at a number. A listener's own mistake never reaches the call that
 * was being decided.
 */

import type { Millis } from '../core/clock.ts';
import type { Decision, OnUnavailable, Outcome } from '../core/decision.ts';
import { errorMessageOf } from '../core/errors.ts';
import { emitProcessWarning } from '../core/process-warning.ts';

/** What every event says. */
interface EventBase {
  /** The limit's name. */
  readonly limit: string;
  readonly key: string;
  readonly cost: number;
  /** When, on the limiter's clock. */
  readonly at: Millis;
}

/** May it happen? Told once for every call, however often it had to ask while it waited. */
export interface DecisionEvent extends EventBase {
  readonly type: 'decision';
  readonly decision: Decision;
  /** How long it stood in line. */
  readonly waitedMs: Millis;
}

/** Somebody in line gave up: its signal aborted. */
export interface CancelledEvent extends EventBase {
  readonly type: 'cancelled';
  readonly waitedMs: Millis;
}

/** A call is over. */
export interface SettledEvent extends EventBase {
  readonly type: 'settled';
  readonly outcome: Outcome;
  readonly used?: number;
  readonly rttMs?: Millis;
}

/** A permit was held for so long that it counts as lost: its place is given back. */
export interface ExpiredEvent extends EventBase {
  readonly type: 'expired';
  readonly heldMs: Millis;
}

/** Whoever decides is out of reach, or back: until then `onUnavailable` answers. Its key is empty. */
export interface AvailabilityEvent extends EventBase {
  readonly type: 'availability';
  readonly isAvailable: boolean;
  /** Why it is out of reach, and who answers until it is back. */
  readonly reason?: unknown;
  readonly onUnavailable?: OnUnavailable;
}

/** What `on` tells of. */
export type LimitEvent =
  | DecisionEvent
  | CancelledEvent
  | SettledEvent
  | ExpiredEvent
  | AvailabilityEvent;
/** What `on` takes. One that throws breaks nothing. */
export type Listener = (event: LimitEvent) => void;

export class ListenerSet {
  #listeners: readonly Listener[] = [];
  hasListeners = false;

  /** Adds a listener; what comes back removes it. */
  on(listener: Listener): () => void {
    const own: Listener = (event) => listener(event); // the same one twice is two listeners
    this.#replaceListeners([...this.#listeners, own]);
    return () => this.#replaceListeners(this.#listeners.filter((other) => other !== own));
  }

  #replaceListeners(listeners: readonly Listener[]): void {
    this.#listeners = listeners;
    this.hasListeners = listeners.length > 0;
  }

  emit(event: LimitEvent): void {
    for (const listener of this.#listeners) {
      try {
        const done: unknown = listener(event);
        if (done instanceof Promise)
          done.catch((error: unknown) => warnListenerFailed(event, error));
      } catch (error) {
        warnListenerFailed(event, error);
      }
    }
  }
}

const warnListenerFailed = ({ limit }: LimitEvent, error: unknown): void =>
  emitProcessWarning('LISTENER', `a listener of limit "${limit}" failed: ${errorMessageOf(error)}`);
