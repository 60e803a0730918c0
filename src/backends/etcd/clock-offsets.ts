/**
 * What is known of the clocks of other processes, which is no more than what they wrote tells.
 *
 *     theirs    sentAt ──┐                  a process writes down when it sent a register, on its own clock,
 *     ours               └───▶ heardAt      and we cannot have read that any sooner
 *
 * So at `heardAt` their clock shows at least `sentAt`. The best of many such readings is good to a trip; a single one is
 * as good as the register was young. Nobody's clock need be right for it, and none is set against a server's. All that is
 * assumed is that monotonic clocks go equally fast, but for `DRIFT` (`pool/ahead.ts`).
 *
 * A machine that was suspended breaks that: its clock stood still, and what was known of it promises too much. So nothing
 * is known for longer than a minute.
 */

import type { Millis } from '../../core/clock.ts';
import { ClockOffset } from '../../core/clock-offset.ts';

interface OffsetWindow {
  /** What its registers said in this span and the one before, */
  offset: ClockOffset;
  /** and in this one alone: what is known when the next begins. */
  recentOffset: ClockOffset;
  startedAt: Millis;
}

/** How long a span is. */
const WINDOW_MS: Millis = 30_000;

/** Those not heard of for longest are forgotten: their registers then look as young as they can be. */
const MAX_PROCESSES = 1000;

export class ClockOffsets {
  readonly #byProcess = new Map<string, OffsetWindow>();

  /** A process wrote that it sent something then, on its clock, and now it is here. */
  observe(id: string, sentAt: Millis, now: Millis): void {
    const known = this.#currentWindow(id, now);
    const told = { from: sentAt, to: Infinity };
    known.offset.observe(told, now, now);
    known.recentOffset.observe(told, now, now);
  }

  /** When a process's clock shows an instant, on ours, at the latest. */
  latestLocalTimeOf(id: string, theirs: Millis): Millis {
    return this.#byProcess.get(id)?.offset.localTimesOf(theirs).surely ?? Infinity;
  }

  #currentWindow(id: string, now: Millis): OffsetWindow {
    const known = this.#byProcess.get(id) ?? this.#createWindow(now);
    this.#byProcess.delete(id);
    this.#byProcess.set(id, known); // whoever was heard of last is the last to go
    const agoMs = now - known.startedAt;
    if (agoMs < WINDOW_MS) return known;
    known.offset = agoMs < 2 * WINDOW_MS ? known.recentOffset : new ClockOffset();
    known.recentOffset = new ClockOffset();
    known.startedAt = now;
    return known;
  }

  #createWindow(now: Millis): OffsetWindow {
    if (this.#byProcess.size >= MAX_PROCESSES) {
      const [oldest] = this.#byProcess.keys();
      this.#byProcess.delete(oldest);
    }
    return { offset: new ClockOffset(), recentOffset: new ClockOffset(), startedAt: now };
  }
}
