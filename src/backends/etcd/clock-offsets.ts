/**
 * Bounds on the clocks of other processes, derived from the timestamps in the registers they write.
 *
 *     remote clock   sentAt ──┐             a process writes its send time on its own clock,
 *     local clock             └───▶ readAt  and the register cannot be read earlier
 *
 * So at `readAt` the remote clock shows at least `sentAt`. The best of many readings is accurate to one trip; a single
 * reading is as accurate as the register is young. Clocks need not be set right, and no server clock is used. The only
 * assumption is that monotonic clocks run equally fast, within `CLOCK_DRIFT_RATE` (`core/clock-offset.ts`).
 *
 * A suspended machine violates it: its clock stood still, so the bound is too tight. So bounds expire after 1 min.
 */

import type { Millis } from '../../core/clock.ts';
import { ClockOffset } from '../../core/clock-offset.ts';

interface OffsetWindow {
  /** The offset from this window and the previous one. */
  offset: ClockOffset;
  /** The offset from this window alone; it becomes `offset` when the next window starts. */
  recentOffset: ClockOffset;
  startedAt: Millis;
}

const WINDOW_MS: Millis = 30_000;

/** The least recently seen process beyond this is evicted; its registers then count as just written. */
const MAX_PROCESSES = 1000;

export class ClockOffsets {
  readonly #byProcess = new Map<string, OffsetWindow>();

  /** Records that `sentAt`, on the clock of process `id`, was read at local time `now`. */
  observe(id: string, sentAt: Millis, now: Millis): void {
    const window = this.#currentWindow(id, now);
    const reading = { from: sentAt, to: Infinity };
    window.offset.observe(reading, now, now);
    window.recentOffset.observe(reading, now, now);
  }

  /** The latest local time at which the clock of process `id` shows `at`; Infinity if it is unknown. */
  latestLocalTimeOf(id: string, at: Millis): Millis {
    return this.#byProcess.get(id)?.offset.localTimesOf(at).surely ?? Infinity;
  }

  #currentWindow(id: string, now: Millis): OffsetWindow {
    const window = this.#byProcess.get(id) ?? this.#createWindow(now);
    this.#byProcess.delete(id);
    this.#byProcess.set(id, window); // moves it to the end: the least recently seen process is evicted first
    const ageMs = now - window.startedAt;
    if (ageMs < WINDOW_MS) return window;
    window.offset = ageMs < 2 * WINDOW_MS ? window.recentOffset : new ClockOffset();
    window.recentOffset = new ClockOffset();
    window.startedAt = now;
    return window;
  }

  #createWindow(now: Millis): OffsetWindow {
    if (this.#byProcess.size >= MAX_PROCESSES) {
      const [oldest] = this.#byProcess.keys();
      this.#byProcess.delete(oldest);
    }
    return { offset: new ClockOffset(), recentOffset: new ClockOffset(), startedAt: now };
  }
}
