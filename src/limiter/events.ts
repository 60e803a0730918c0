/** Without listeners an event costs one comparison. An error in a listener never reaches the call being decided. */

import type { Millis } from '../core/clock.ts';
import type { Decision, OnUnavailable, Outcome } from '../core/decision.ts';
import { errorMessageOf } from '../core/errors.ts';
import { emitProcessWarning } from '../core/process-warning.ts';
import type { Limit } from '../policies/limit.ts';
import type { KeyState, LimitCause } from '../policies/policy.ts';

/** Fields of every event. */
interface EventBase {
  /** The limit's name. */
  readonly limit: string;
  readonly key: string;
  readonly cost: number;
  /** Time of the event on the limiter's clock. */
  readonly at: Millis;
}

/** A decision: one event per call, however often it was checked while it waited. */
export interface DecisionEvent extends EventBase {
  readonly type: 'decision';
  readonly decision: Decision;
  /** How long the call was queued. */
  readonly waitedMs: Millis;
}

/** The signal of a waiting call aborted. */
export interface CancelledEvent extends EventBase {
  readonly type: 'cancelled';
  readonly waitedMs: Millis;
}

/** A call was settled. */
export interface SettledEvent extends EventBase {
  readonly type: 'settled';
  readonly outcome: Outcome;
  readonly used?: number;
  readonly rttMs?: Millis;
  /** concurrency, adaptive: the key's limit and its calls in flight as this one ended, itself included. */
  readonly concurrency?: { readonly limit: number; readonly inFlight: number };
  /** busy: the key's limit in calls a second as this call ended. */
  readonly rateLimit?: number;
}

/** The learnt limit that a settled call reports. */
export type LearntLimit = Pick<SettledEvent, 'concurrency' | 'rateLimit'>;

/** The learnt limit of a key changed: adaptive, busy. With `from` and `to` equal, only the pace changed. */
export interface LimitChangedEvent extends EventBase, Pick<KeyState, (typeof LEARNT)[number]> {
  readonly type: 'limit-changed';
  readonly from: number;
  readonly to: number;
  readonly cause: LimitCause;
}

/** Fields that an adjustment reports besides the limit, where known. */
export const LEARNT = ['ratePerSecond', 'baseRttMs', 'knee', 'pacePerSecond'] as const;

/** A permit was not settled within `permitTimeout`: its slot is given back. */
export interface ExpiredEvent extends EventBase {
  readonly type: 'expired';
  readonly heldMs: Millis;
}

/** The backend became unavailable, or available again; meanwhile `onUnavailable` decides. The key is empty. */
export interface AvailabilityEvent extends EventBase {
  readonly type: 'availability';
  readonly isAvailable: boolean;
  /** Why it is unavailable. */
  readonly reason?: unknown;
  readonly onUnavailable?: OnUnavailable;
}

/** `change` gave the limit other numbers. The key is empty. */
export interface ReconfiguredEvent extends EventBase {
  readonly type: 'reconfigured';
  /** The limit as it was given. */
  readonly to: Limit;
}

/** A failed call was not retried: the retry budget is used up. The caller gets the result of its last attempt. */
export interface RetryDeniedEvent extends EventBase {
  readonly type: 'retry-denied';
  /** How the last attempt went. */
  readonly outcome: Outcome;
}

/** Every event that a listener receives. */
export type LimitEvent =
  | DecisionEvent
  | CancelledEvent
  | SettledEvent
  | LimitChangedEvent
  | ExpiredEvent
  | AvailabilityEvent
  | ReconfiguredEvent
  | RetryDeniedEvent;
/** The argument of `on`. An error it throws becomes a process warning. */
export type Listener = (event: LimitEvent) => void;

export class ListenerSet {
  #listeners: readonly Listener[] = [];
  hasListeners = false;

  /** Adds a listener; the returned function removes it. */
  on(listener: Listener): () => void {
    const added: Listener = (event) => listener(event); // the same function twice is two listeners
    this.#replaceListeners([...this.#listeners, added]);
    return () => this.#replaceListeners(this.#listeners.filter((other) => other !== added));
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
