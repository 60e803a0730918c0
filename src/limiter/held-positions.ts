/**
 * Held positions of one call that waits for several limiters. The call is in the queue of one of them at a time.
 *
 *     a  ● ● ●          at its turn in queue a, limiter b refuses the call: it moves to b, and others take from a
 *     b  ○ ● ●          at its turn in queue b, limiter a refuses: it moves back, and could alternate for ever
 *
 * A call that loses its turn at a limiter twice therefore holds its position: it stays first in that queue until it is
 * served. It does so only if the wait at the refusing limiter is at most its longest wait at this one: a fast limit does
 * not wait for a slow one. This holds for at least one of two limiters, so the call is served at its next turn.
 *
 * A held position takes nothing and delays only calls that arrived later, so two calls never wait for each other. Only
 * `fifo` queues hold positions.
 */

import type { Millis } from '../core/clock.ts';
import { WHEN_SETTLED } from '../core/decision.ts';
import type { ComponentCall } from './composite-reservation.ts';

export class HeldPositions {
  readonly #arrival: number;
  /** The longest wait of the call at each limiter. */
  readonly #longestMs = new Map<ComponentCall, Millis>();
  /** Limiters at which the call had its turn while another limiter refused it. */
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

  /** The call is served, refused, or behind calls that arrived earlier: other calls get the held positions. */
  end(): void {
    for (const [{ limiter, key }, stop] of this.#held) {
      stop();
      limiter.scheduler.wake(key);
    }
    this.#held.clear();
  }
}
