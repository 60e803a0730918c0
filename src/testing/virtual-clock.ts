import type { Clock, Millis } from '../clock.ts';
import { requireNumber } from '../options.ts';

/**
 * A clock that moves only when told to.
 *
 * Public on purpose: whoever limits with this package will want to test without sleeping too.
 *
 *     const clock = new VirtualClock();
 *     const api = limiter({ limit: { spacing: { every: '6s' } }, clock });
 *     api.ask('alice');      // allow
 *     api.ask('alice');      // deny, retry after 6000
 *     clock.advance(6000);
 *     api.ask('alice');      // allow
 */
export class VirtualClock implements Clock {
  #now: Millis;

  constructor(now: Millis = 0) {
    this.#now = now;
  }

  now(): Millis {
    return this.#now;
  }

  /** Moves time on, never back. */
  advance(span: Millis): void {
    requireNumber('span', span, { min: 0 });
    this.#now += span;
  }
}
