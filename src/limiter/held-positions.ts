/**
 * The queue positions that one call holds while it waits for several limiters, in the queue of one of them.
 *
 *     a  ● ● ●          the call has its turn at a, but b refuses: it moves to b, and others take from a
 *     b  ○ ● ●          at its turn there, a refuses: it moves back. With queues at both, this never ends
 *
 * So a call that loses its turn at a limiter for the second time holds its position: it stays first in that queue until
 * it is served. It does so only where the wait ahead is not longer than the one it had at that limiter: a fast limit does
 * not stand still for a slow one. Of two limiters this holds for one, so the call is served at its next turn.
 *
 * A held position takes nothing, and holds up only calls that arrived later: no two calls wait for each other. Queues in
 * another order than that of arrival hold no positions.
 */

import type { Millis } from '../core/clock.ts';
import { WHEN_SETTLED } from '../core/decision.ts';
import type { ComponentCall } from './composite-reservation.ts';

export class HeldPositions {
  readonly #arrival: number;
  /** The longest wait of the call at each limiter. */
  readonly #longestMs = new Map<ComponentCall, Millis>();
  /** Limiters at which it had its turn, and another one refused. */
  readonly #lost = new Set<ComponentCall>();
  /** Ends each held position. */
  readonly #held = new Map<ComponentCall, () => void>();

  constructor(arrival: number) {
    this.#arrival = arrival;
  }

  /** The call has its turn at `at`, and `by`, which may be the same, refuses it. */
  onRefusal(at: ComponentCall, by: ComponentCall, retryAfterMs: Millis): void {
    const waitMs = retryAfterMs === WHEN_SETTLED ? Infinity : retryAfterMs;
    this.#longestMs.set(by, Math.max(this.#longestMs.get(by) ?? 0, waitMs));
    if (by === at) return;
    if (this.#lost.has(at) && waitMs <= (this.#longestMs.get(at) ?? 0)) this.#hold(at);
    this.#lost.add(at);
  }

  #hold(call: ComponentCall): void {
    const { limiter, key, partitionIndex, cost } = call;
    const request = { key, cost, partitionIndex, arrival: this.#arrival };
    this.#held.set(call, limiter.scheduler.holdPosition(request, limiter.clock.now()));
  }

  /** The call itself joins the queue. */
  join(call: ComponentCall): void {
    this.#held.get(call)?.();
    this.#held.delete(call);
  }

  /** The call is served, refused, or has to wait for calls that arrived earlier: others have their turn. */
  end(): void {
    for (const [{ limiter, key }, stop] of this.#held) {
      stop();
      limiter.scheduler.wake(key);
    }
    this.#held.clear();
  }
}
