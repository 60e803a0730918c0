/**
 * Knows whether whoever decides can be reached, so that an outage costs one deadline and not one for each call.
 *
 *     closed ── a call fails or takes too long ──▶ open: nobody is sent
 *        ▲                                           │ after a while
 *        └──────────── it answers ◀───────────── one probe, in the background
 *
 * Calls are never used as probes: while it is open they are answered at once by whatever stands in.
 */

import { alarm, atEndOfTurn, type Clock } from '../core/clock.ts';

/** How long after a failure to try again, at first and at most: it is noticed within a second. */
const PROBE_MS_FIRST = 50;
const PROBE_MS_MAX = 400;

/** Of so many calls that are turned away at once, one has to wait until everything else had its turn. */
const AT_ONCE_MAX = 1000;

/**
 * Turns calls away. Whoever asks again the moment it is refused would otherwise keep the process busy with nothing but that, and
 * the probe would never be sent.
 */
export class Refuser {
  #refused = 0;

  refuse(why: Error): Promise<never> {
    this.#refused++;
    if (this.#refused % AT_ONCE_MAX > 0) return Promise.reject(why);
    return new Promise((_, reject) => {
      atEndOfTurn(() => reject(why));
    });
  }
}

export class Breaker {
  readonly #clock: Clock;
  readonly #probe: () => Promise<unknown>;
  readonly #changed: (isReachable: boolean, why: unknown) => void;
  #isOpen = false;
  #delayMs = PROBE_MS_FIRST;
  #cancel: (() => void) | undefined;

  constructor(
    clock: Clock,
    probe: () => Promise<unknown>,
    changed: (isReachable: boolean, why: unknown) => void,
  ) {
    this.#clock = clock;
    this.#probe = probe;
    this.#changed = changed;
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** A call failed. */
  open(why: unknown): void {
    if (this.#isOpen) return;
    this.#isOpen = true;
    this.#delayMs = PROBE_MS_FIRST;
    this.#changed(false, why);
    this.#probeLater();
  }

  stop(): void {
    this.#cancel?.();
    this.#cancel = undefined;
  }

  #probeLater(): void {
    const at = this.#clock.now() + this.#delayMs;
    this.#delayMs = Math.min(PROBE_MS_MAX, this.#delayMs * 2);
    this.#cancel = alarm(this.#clock, at, () => this.#try(), false);
  }

  async #try(): Promise<void> {
    try {
      await this.#probe();
      this.#isOpen = false;
      this.#changed(true, undefined);
    } catch {
      if (this.#cancel) this.#probeLater();
    }
  }
}
