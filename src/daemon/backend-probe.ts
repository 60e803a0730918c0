/**
 * Finds backends that are unavailable while no check uses them: a daemon that gets no requests reports an outage, too.
 *
 *     every 5 s, and for `GET /readyz` ──▶ reads one key of each remote limit that counts as available
 *                                           └─ no reply: the limit's circuit breaker opens, and probes from then on
 */

import { type Clock, type Millis, schedule } from '../core/clock.ts';
import type { LimiterEntry } from './router/limiter-registry.ts';

/** The names in a response. */
const MAX_NAMED = 20;

/** An outage is found within this time; alerts wait for longer. A server that starts with the daemon has as long. */
const PROBE_EVERY_MS: Millis = 5000;

/** Listeners and health checks that probe within this interval share one probe. */
const MIN_INTERVAL_MS: Millis = 1000;

/** Limits that one probe reads; the next probe reads those that follow. */
const MAX_PROBED = 100;

/** Read, never written. */
const PROBE_KEY = 'sluice-readiness';

export class BackendProbe {
  readonly #clock: Clock;
  readonly #entries: () => readonly LimiterEntry[];
  #last: Promise<unknown> = Promise.resolve();
  #lastAt: Millis = Number.NEGATIVE_INFINITY;
  #first = 0;
  #cancelTimer = (): void => {};

  constructor(clock: Clock, entries: () => readonly LimiterEntry[]) {
    this.#clock = clock;
    this.#entries = entries;
  }

  /** Probes at an interval from now on, if there are remote limits. To be called again when limits have changed. */
  start(): void {
    this.#cancelTimer();
    if (!this.#entries().some(({ limiter }) => limiter.isRemote)) return;
    const probe = (): void => {
      void this.run();
      this.start();
    };
    this.#cancelTimer = schedule(this.#clock, this.#clock.now() + PROBE_EVERY_MS, probe, false);
  }

  stop(): void {
    this.#cancelTimer();
  }

  /** Resolves when all probed servers have replied or missed their deadline. */
  async run(): Promise<void> {
    const now = this.#clock.now();
    if (now >= this.#lastAt + MIN_INTERVAL_MS) {
      this.#lastAt = now;
      const reads = this.#nextProbed().map(({ limiter }) => limiter.inspect(PROBE_KEY));
      this.#last = Promise.allSettled(reads);
    }
    await this.#last;
  }

  #nextProbed(): readonly LimiterEntry[] {
    const remote = this.#entries().filter(({ limiter }) => availabilityOf(limiter) === true);
    if (this.#first >= remote.length) this.#first = 0;
    const probed = remote.slice(this.#first, this.#first + MAX_PROBED);
    this.#first += probed.length;
    return probed;
  }
}

/** Undefined for limits of this process. */
const availabilityOf = (limiter: LimiterEntry['limiter']): boolean | undefined =>
  limiter.isRemote
    ? (limiter.stats() as { readonly isAvailable?: boolean }).isAvailable
    : undefined;

/** Without limits in shadow mode, which decide nothing. */
export const unavailableLimits = (
  entries: readonly LimiterEntry[],
  isShadow: (name: string) => boolean,
): string[] =>
  entries
    .filter(({ name, limiter }) => !isShadow(name) && availabilityOf(limiter) === false)
    .slice(0, MAX_NAMED)
    .map(({ name }) => name);
