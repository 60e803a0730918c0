/** One timer for each connection: Node sets its own timeout of a socket anew with every read and write. */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';

/** How long a connection is idle before the system probes it; also for worker processes. */
export const KEEP_ALIVE_MS: Millis = 30_000;

export class IdleTimer {
  readonly #clock: Clock;
  readonly #lastUseAt: () => Millis;
  readonly #onIdle: () => void;
  #cancel = (): void => {};
  /** 0 or Infinity: none. */
  timeoutMs: Millis = 0;
  /** False once it has called back, or is stopped. */
  isRunning = false;

  /** `lastUseAt`: now while the connection is in use. */
  constructor(clock: Clock, lastUseAt: () => Millis, onIdle: () => void) {
    this.#clock = clock;
    this.#lastUseAt = lastUseAt;
    this.#onIdle = onIdle;
  }

  start(timeoutMs: Millis): void {
    this.stop();
    this.timeoutMs = timeoutMs;
    this.isRunning = timeoutMs > 0 && timeoutMs < Infinity;
    if (!this.isRunning) return;
    const check = (): void => {
      this.isRunning = false;
      if (this.#clock.now() < this.#lastUseAt() + timeoutMs) this.start(timeoutMs);
      else this.#onIdle();
    };
    this.#cancel = schedule(this.#clock, this.#lastUseAt() + timeoutMs, check, false);
  }

  stop(): void {
    this.isRunning = false;
    this.#cancel();
  }
}
