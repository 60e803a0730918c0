/**
 * Circuit breaker: an outage of a backend costs one deadline, not one per call.
 *
 *     closed ── a call fails or times out ──▶ open: no calls are sent
 *        ▲                                           │ after a delay
 *        └──────────── success ◀──────────────── one probe, in the background
 *
 * Calls are never used as probes: while the breaker is open, the fallback decides at once.
 *
 * On Cloudflare Workers, timers and probes end with their request. There the next call starts the due probe.
 */

import {
  type Clock,
  type Millis,
  onImmediate,
  schedule,
  timersEndWithRequest,
} from '../core/clock.ts';

/** Delay of the first probe, and the longest delay: recovery is noticed within 1 s. */
const FIRST_PROBE_MS = 50;
const MAX_PROBE_MS = 400;

/** A probe that is overdue by this has ended with its request. */
const MAX_LATENESS_MS = 100;

/** One in this many immediate rejections is delayed until the event loop has run. */
const REJECTIONS_PER_TICK = 1000;

/**
 * Rejects calls and periodically yields to the event loop. A caller that retries immediately would otherwise starve it,
 * and the probe would never be sent.
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
  /** Time at which the next probe is due. */
  #probeAt: Millis = Infinity;
  readonly #losesTimers: boolean;

  constructor(
    clock: Clock,
    probe: () => Promise<unknown>,
    onChange: (isAvailable: boolean, why: unknown) => void,
    losesTimers = timersEndWithRequest,
  ) {
    this.#clock = clock;
    this.#probe = probe;
    this.#onChange = onChange;
    this.#losesTimers = losesTimers;
  }

  /** Where timers end with their request, reading it also starts an overdue probe. */
  get isOpen(): boolean {
    if (this.#isOpen && this.#losesTimers) this.#replaceLostProbe();
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
    this.#probeAt = this.#clock.now() + this.#probeDelayMs;
    this.#probeDelayMs = Math.min(MAX_PROBE_MS, this.#probeDelayMs * 2);
    this.#cancelProbe = schedule(this.#clock, this.#probeAt, () => this.#runProbe(), false);
  }

  #replaceLostProbe(): void {
    const now = this.#clock.now();
    if (!this.#cancelProbe || now < this.#probeAt + MAX_LATENESS_MS) return;
    this.#probeAt = now + MAX_PROBE_MS; // a later request probes if this one ends, too
    this.#runProbe();
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
