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
import { Ahead } from '../../core/clock-offset.ts';

interface Known {
  /** What its registers said in this span and the one before, */
  ahead: Ahead;
  /** and in this one alone: what is known when the next begins. */
  lately: Ahead;
  since: Millis;
}

/** How long a span is. */
const SPAN_MS: Millis = 30_000;

/** Those not heard of for longest are forgotten: their registers then look as young as they can be. */
const PROCESSES_MAX = 1000;

export class Clocks {
  readonly #known = new Map<string, Known>();

  /** A process wrote that it sent something then, on its clock, and now it is here. */
  heard(id: string, sentAt: Millis, now: Millis): void {
    const known = this.#lately(id, now);
    const told = { from: sentAt, to: Infinity };
    known.ahead.learn(told, now, now);
    known.lately.learn(told, now, now);
  }

  /** When a process's clock shows an instant, on ours, at the latest. */
  reaches(id: string, theirs: Millis): Millis {
    return this.#known.get(id)?.ahead.reaches(theirs).surely ?? Infinity;
  }

  #lately(id: string, now: Millis): Known {
    const known = this.#known.get(id) ?? this.#meet(now);
    this.#known.delete(id);
    this.#known.set(id, known); // whoever was heard of last is the last to go
    const agoMs = now - known.since;
    if (agoMs < SPAN_MS) return known;
    known.ahead = agoMs < 2 * SPAN_MS ? known.lately : new Ahead();
    known.lately = new Ahead();
    known.since = now;
    return known;
  }

  #meet(now: Millis): Known {
    if (this.#known.size >= PROCESSES_MAX) {
      const [oldest] = this.#known.keys();
      this.#known.delete(oldest);
    }
    return { ahead: new Ahead(), lately: new Ahead(), since: now };
  }
}
