/**
 * Knows whether whoever decides can be reached, so that an outage costs one deadline and not one for each call.
 *
 *     closed ── a call fails or takes too long ──▶ open: nobody is sent
 *        ▲                                           │ after a while
 *        └──────────── it answers ◀───────────── one probe, in the background
 *
 * Calls are never used as probes: while it is open they are answered at once by whatever stands in.
 */

import { type Clock, onImmediate, schedule } from '../core/clock.ts';

/** How long after a failure to try again, at first and at most: it is noticed within a second. */
const FIRST_PROBE_MS = 50;
const MAX_PROBE_MS = 400;

/** Of so many calls that are turned away at once, one has to wait until everything else had its turn. */
const REJECTIONS_PER_TICK = 1000;

/**
 * Turns calls away. Whoever asks again the moment it is refused would otherwise keep the process busy with nothing but that, and
 * the probe would never be sent.
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

  /** A call failed. */
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
      this.#isOpen = false;
      this.#onChange(true, undefined);
    } catch {
      if (this.#cancelProbe) this.#scheduleProbe();
    }
  }
}
