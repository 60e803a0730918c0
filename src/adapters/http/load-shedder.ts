/**
 * Load shedding by event-loop delay.
 *
 * A handler that computes runs to its end before the next request is read. At most one call is then in flight, and the
 * queue is in the socket buffers of the kernel: no concurrency limit and no round-trip time shows it. A timer does. It
 * fires late by as much as the event loop is behind.
 *
 *     request ──▶ token left? ── yes ──▶ limiter, handler
 *                     ▲        └─ no ──▶ 503
 *                     │
 *     timer ── every TICK_MS, late by the delay ──▶ tokens at a learnt rate
 *
 * A window is late if the delay was above the target and the event loop was hardly idle. An event loop that is late and
 * often idle has no queue: other processes take its CPU, which shedding does not change.
 *
 * Every request is admitted until two windows in a row were late. One long pause therefore sheds nothing: garbage
 * collection, a debugger, a suspended process. Then requests are admitted at the rate of these windows, which is about
 * what the server can take. From window to window:
 *
 *     late, at half of the target    rate × CUT
 *     not late, requests shed        rate × INCREASE, or by as much as the event loop was idle
 *     neither, for CALM_WINDOWS      admits every request again
 *
 * A rate that needs to fall far is learnt anew, because the delay may have other causes than requests. The timer runs only
 * while requests arrive: an idle process is not woken.
 */

import { type Clock, eventLoopIdleMs, type Millis, schedule } from '../../core/clock.ts';

/** Interval of the timer. */
const TICK_MS: Millis = 20;

/** The shortest time between two adjustments. A window ends with a tick, however late that is. */
const WINDOW_MS: Millis = 250;

/**
 * While requests are shed, the delay is held at this part of the target. A longer queue increases no throughput, and with
 * shorter turns of the event loop, fewer new connections timed out before they were accepted.
 */
const HOLD_RATIO = 0.5;

const CUT = 0.8;
const INCREASE = 1.1;
const MAX_INCREASE = 2;

/** The most that the event loop is idle in a late window, as a part of it. */
const MAX_IDLE_RATIO = 0.1;

/** Windows without delay and without a shed request that end shedding. */
const CALM_WINDOWS = 3;

/** Tokens that can be saved: what is computed in this part of the target. */
const BURST_RATIO = 0.25;

/** The rate falls to this part of its first value and to one request per second, no further. */
const LEAST_RATIO = 1 / 8;
const LEAST_RATE = 1 / 1000;

/** Late windows at the least rate, after which the rate is learnt anew. */
const FUTILE_WINDOWS = 3;

/** Windows without a request that stop the timer. */
const IDLE_WINDOWS = 2;

/** Time over which the reported delay is averaged. */
const SMOOTHING_MS: Millis = 200;

export class LoadShedder {
  readonly #clock: Clock;
  readonly #targetMs: Millis;
  readonly #totalIdleMs: () => Millis;
  readonly #tick = (): void => this.#onTick(this.#clock.now());
  #isTicking = false;
  #tickedAt: Millis = 0;
  #smoothedMs: Millis = 0;
  /** Requests that may still be admitted. Infinity: nothing is shed. */
  #tokens = Infinity;
  /** Tokens per millisecond, while requests are shed. */
  #rate = 0;
  #leastRate = 0;
  // This window:
  #startedAt: Millis = 0;
  #admitted = 0;
  #shed = 0;
  #longestMs: Millis = 0;
  #idleAtStart: Millis = 0;
  // The windows before:
  #lastStartedAt: Millis = 0;
  #lastAdmitted = 0;
  #wasLate = false;
  #calmWindows = 0;
  #futileWindows = 0;
  #idleWindows = 0;
  /** After a late window: when the first request since the last tick came. */
  #firstAt: Millis = 0;

  constructor(clock: Clock, targetMs: Millis, totalIdleMs = eventLoopIdleMs) {
    this.#clock = clock;
    this.#targetMs = targetMs;
    this.#totalIdleMs = totalIdleMs;
  }

  /** The delay of the event loop, averaged over a fifth of a second; 0 while no requests arrive. */
  get delayMs(): Millis {
    return this.#isTicking ? this.#smoothedMs : 0;
  }

  /** Whether one more request is admitted; counts it. A level of low priority would have to leave some tokens. */
  admit(): boolean {
    if (!this.#isTicking) this.#start();
    else if (this.#wasLate && this.#tokens === Infinity) this.#shedIfLate(this.#clock.now());
    if (this.#tokens < 1) {
      this.#shed++;
      return false;
    }
    this.#tokens--;
    this.#admitted++;
    return true;
  }

  #start(): void {
    const now = this.#clock.now();
    this.#isTicking = true;
    this.#tokens = Infinity;
    this.#smoothedMs = 0;
    this.#wasLate = false;
    this.#idleWindows = 0;
    this.#startedAt = now;
    this.#openWindow(now);
    this.#scheduleTick(now);
  }

  #scheduleTick(now: Millis): void {
    this.#tickedAt = now;
    schedule(this.#clock, now + TICK_MS, this.#tick, false);
  }

  #openWindow(now: Millis): void {
    this.#lastStartedAt = this.#startedAt;
    this.#lastAdmitted = this.#admitted;
    this.#startedAt = now;
    this.#idleAtStart = this.#totalIdleMs();
    this.#admitted = this.#shed = this.#longestMs = 0;
  }

  #onTick(now: Millis): void {
    const periodMs = Math.max(TICK_MS, now - this.#tickedAt);
    const lateMs = periodMs - TICK_MS;
    this.#smoothedMs += ((lateMs - this.#smoothedMs) * periodMs) / (periodMs + SMOOTHING_MS);
    this.#longestMs = Math.max(this.#longestMs, lateMs);
    if (now - this.#startedAt >= WINDOW_MS) this.#closeWindow(now);
    if (this.#tokens < Infinity) {
      const most = Math.max(1, this.#rate * (this.#targetMs * BURST_RATIO + TICK_MS));
      this.#tokens = Math.min(most, this.#tokens + this.#rate * periodMs);
    }
    if (this.#idleWindows < IDLE_WINDOWS) this.#scheduleTick(now);
    else this.#isTicking = false;
  }

  #closeWindow(now: Millis): void {
    const idleRatio = (this.#totalIdleMs() - this.#idleAtStart) / (now - this.#startedAt);
    const isShedding = this.#tokens < Infinity;
    const mostMs = isShedding ? this.#targetMs * HOLD_RATIO : this.#targetMs;
    const isLate = this.#longestMs > mostMs && idleRatio < MAX_IDLE_RATIO;
    if (isShedding) this.#adjust(isLate, idleRatio);
    else if (isLate && this.#wasLate) this.#beginShedding(now);
    this.#wasLate = isLate;
    this.#idleWindows = this.#admitted + this.#shed > 0 ? 0 : this.#idleWindows + 1;
    this.#openWindow(now);
  }

  /** After a late window, requests that take longer than the target between two ticks make the next one late too. */
  #shedIfLate(now: Millis): void {
    if (this.#firstAt < this.#tickedAt) this.#firstAt = now;
    else if (now - this.#firstAt > this.#targetMs) this.#beginShedding(now);
  }

  #beginShedding(now: Millis): void {
    // The last window may contain a pause that no request caused.
    const ofBoth = (this.#lastAdmitted + this.#admitted) / (now - this.#lastStartedAt);
    this.#rate = Math.max(ofBoth, this.#admitted / (now - this.#startedAt));
    this.#leastRate = Math.max(LEAST_RATE, this.#rate * LEAST_RATIO);
    this.#tokens = this.#calmWindows = this.#futileWindows = 0;
  }

  #adjust(isLate: boolean, idleRatio: number): void {
    const hasShed = this.#shed > 0;
    const increase = Math.min(MAX_INCREASE, Math.max(INCREASE, 1 / (1 - idleRatio)));
    const factor = isLate ? CUT : hasShed ? increase : 1;
    this.#futileWindows = isLate && this.#rate <= this.#leastRate ? this.#futileWindows + 1 : 0;
    this.#calmWindows = isLate || hasShed ? 0 : this.#calmWindows + 1;
    this.#rate = Math.max(this.#leastRate, this.#rate * factor);
    if (this.#calmWindows >= CALM_WINDOWS || this.#futileWindows >= FUTILE_WINDOWS)
      this.#tokens = Infinity;
  }
}
