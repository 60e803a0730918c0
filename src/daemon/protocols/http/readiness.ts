/** Whether the daemon should get requests: the response of `GET /readyz`. */

import type { Clock, Millis } from '../../../core/clock.ts';
import type { LimiterEntry } from '../../router/limiter-registry.ts';
import { type HttpResponse, jsonResponse } from './response.ts';

export interface Readiness {
  readonly isStopping: boolean;
  /** Checks were shed a moment ago. */
  readonly isOverloaded: boolean;
  /** Backends are unavailable, and the configuration makes readiness depend on them. */
  readonly isBlocked: boolean;
  /** Limits whose backend is unavailable: `onUnavailable` decides. */
  readonly unavailable: readonly string[];
}

export const ALWAYS_READY: Readiness = {
  isStopping: false,
  isOverloaded: false,
  isBlocked: false,
  unavailable: [],
};

/** Why the daemon should get no requests, as operators see it. */
export function describeReadiness({ isStopping, isOverloaded, isBlocked, unavailable }: Readiness) {
  const reasons = [
    ...(isStopping ? ['stopping'] : []),
    ...(isOverloaded ? ['overload'] : []),
    ...(isBlocked ? ['backends'] : []),
  ];
  return { ready: reasons.length === 0, reasons, unavailable };
}

export function readinessResponse(state: Readiness): HttpResponse {
  const described = describeReadiness(state);
  const response = jsonResponse(described.ready ? 200 : 503, described);
  return described.ready
    ? response
    : { ...response, headers: [...response.headers, 'Retry-After', '5'] };
}

/** The names in a response. */
const MAX_NAMED = 20;

/** An answer is at most so old; probes of many listeners and health checks cost no more than this. */
const PROBE_INTERVAL_MS: Millis = 1000;

/** Limits that one probe reads. */
const MAX_PROBED = 100;

/** Read, never written. */
const PROBE_KEY = 'sluice-readiness';

/**
 * Reads one key of each remote limit that counts as available. A backend is otherwise found unavailable only by a
 * check, and a daemon that is not ready, or has just started, gets none.
 */
export class BackendProbe {
  readonly #clock: Clock;
  readonly #entries: () => readonly LimiterEntry[];
  #last: Promise<unknown> = Promise.resolve();
  #lastAt: Millis = Number.NEGATIVE_INFINITY;

  constructor(clock: Clock, entries: () => readonly LimiterEntry[]) {
    this.#clock = clock;
    this.#entries = entries;
  }

  /** Resolves when all have replied or passed their deadline. */
  async run(): Promise<void> {
    const now = this.#clock.now();
    if (now >= this.#lastAt + PROBE_INTERVAL_MS) {
      this.#lastAt = now;
      const remote = this.#entries().filter(({ limiter }) => availabilityOf(limiter) === true);
      const reads = remote.slice(0, MAX_PROBED).map(({ limiter }) => limiter.inspect(PROBE_KEY));
      this.#last = Promise.allSettled(reads);
    }
    await this.#last;
  }
}

/** Undefined for limits of this process. */
const availabilityOf = (limiter: LimiterEntry['limiter']): boolean | undefined =>
  (limiter.stats() as { readonly isAvailable?: boolean }).isAvailable;

/** Without limits in shadow mode, which decide nothing. */
export const unavailableLimits = (
  entries: readonly LimiterEntry[],
  isShadow: (name: string) => boolean,
): string[] =>
  entries
    .filter(({ name, limiter }) => !isShadow(name) && availabilityOf(limiter) === false)
    .slice(0, MAX_NAMED)
    .map(({ name }) => name);
