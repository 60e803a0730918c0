/**
 * Circuit breaker: an outage of a backend costs one deadline, not one per call.
 *
 *     closed ── a call fails or times out ──▶ open: no calls are sent
 *        ▲                                           │ after a delay
 *        └──────────── success ◀──────────────── one probe, in the background
 *
 * Calls are never used as probes: while it is open, the fallback decides at once.
 */

import { type Clock, onImmediate, schedule } from '../core/clock.ts';

/** Delay of the first probe, and of later ones at most: recovery is noticed within a second. */
const FIRST_PROBE_MS = 50;
const MAX_PROBE_MS = 400;

/** Of so many immediate rejections, one is delayed until the event loop has run. */
const REJECTIONS_PER_TICK = 1000;

/**
 * Rejects calls, and yields to the event loop now and then. A caller that retries immediately would
 * otherwise starve it, and the probe would never be sent.
 */
export class RejectionPacer {
  #rejected = 0;

  reject(why: Error): Promise<never> {
    this.#rejected++;
    if (this.#rejected % REJECTIONS_PER_TICK > 0) return Promise.reject(why);
    return new Promise((_, reject) => {
      onImmediate(() => reject(why));
    });
  }
}

export class CircuitBreaker {
  readonly #clock: Clock;
  readonly #probe: () => Promise<unknown>;
  readonly #onChange: (isAvailable: boolean, why: unknown) => void;
  #isOpen = false;
  #probeDelayMs = FIRST_PROBE_MS;
  #cancelProbe: (() => void) | undefined;

  constructor(
    clock: Clock,
    probe: () => Promise<unknown>,
    onChange: (isAvailable: boolean, why: unknown) => void,
  ) {
    this.#clock = clock;
    this.#probe = probe;
    this.#onChange = onChange;
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Opens the breaker after a failed call. */
  trip(why: unknown): void {
    if (this.#isOpen) return;
    this.#isOpen = true;
    this.#probeDelayMs = FIRST_PROBE_MS;
    this.#onChange(false, why);
    this.#scheduleProbe();
  }

  stop(): void {
    this.#cancelProbe?.();
    this.#cancelProbe = undefined;
  }

  #scheduleProbe(): void {
    const at = this.#clock.now() + this.#probeDelayMs;
    this.#probeDelayMs = Math.min(MAX_PROBE_MS, this.#probeDelayMs * 2);
    this.#cancelProbe = schedule(this.#clock, at, () => this.#runProbe(), false);
  }

  async #runProbe(): Promise<void> {
    try {
      await this.#probe();
      if (!this.#cancelProbe) return; // stopped meanwhile
      this.#isOpen = false;
      this.#onChange(true, undefined);
    } catch {
      if (this.#cancelProbe) this.#scheduleProbe();
    }
  }
}
