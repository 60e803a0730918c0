/**
 * What a limiter tells those who listen: every decision, every call that was settled, every permit
 * that was lost.
 *
 * Nobody listening costs one look at a number. A listener's own mistake never reaches the call that
 * was being decided.
 */

import type { Millis } from '../core/clock.ts';
import type { Decision, OnUnavailable, Outcome } from '../core/decision.ts';
import { reasonOf } from '../core/errors.ts';
import { warn } from '../core/process-warning.ts';

/** What every event says. */
interface About {
  /** The limit's name. */
  readonly limit: string;
  readonly key: string;
  readonly cost: number;
  /** When, on the limiter's clock. */
  readonly at: Millis;
}

/** May it happen? Told once for every call, however often it had to ask while it waited. */
export interface DecisionEvent extends About {
  readonly type: 'decision';
  readonly decision: Decision;
  /** How long it stood in line. */
  readonly waitedMs: Millis;
}

/** Somebody in line gave up: its signal aborted. */
export interface LeftEvent extends About {
  readonly type: 'left';
  readonly waitedMs: Millis;
}

/** A call is over. */
export interface SettledEvent extends About {
  readonly type: 'settled';
  readonly outcome: Outcome;
  readonly used?: number;
  readonly rttMs?: Millis;
}

/** A permit was held for so long that it counts as lost: its place is given back. */
export interface LostEvent extends About {
  readonly type: 'lost';
  readonly heldMs: Millis;
}

/** Whoever decides is out of reach, or back: until then `onUnavailable` answers. Its key is empty. */
export interface ReachEvent extends About {
  readonly type: 'reach';
  readonly isReachable: boolean;
  /** Why it is out of reach, and who answers until it is back. */
  readonly reason?: unknown;
  readonly onUnavailable?: OnUnavailable;
}

/** What `on` tells of. */
export type LimitEvent = DecisionEvent | LeftEvent | SettledEvent | LostEvent | ReachEvent;
/** What `on` takes. One that throws breaks nothing. */
export type Listener = (event: LimitEvent) => void;

export class Events {
  #listeners: readonly Listener[] = [];
  hasListeners = false;

  /** Adds a listener; what comes back removes it. */
  on(listener: Listener): () => void {
    const own: Listener = (event) => listener(event); // the same one twice is two listeners
    this.#set([...this.#listeners, own]);
    return () => this.#set(this.#listeners.filter((other) => other !== own));
  }

  #set(listeners: readonly Listener[]): void {
    this.#listeners = listeners;
    this.hasListeners = listeners.length > 0;
  }

  emit(event: LimitEvent): void {
    for (const listener of this.#listeners) {
      try {
        const done: unknown = listener(event);
        if (done instanceof Promise) done.catch((error: unknown) => complain(event, error));
      } catch (error) {
        complain(event, error);
      }
    }
  }
}

const complain = ({ limit }: LimitEvent, error: unknown): void =>
  warn('LISTENER', `a listener of limit "${limit}" failed: ${reasonOf(error)}`);
