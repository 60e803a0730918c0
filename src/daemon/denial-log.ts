/**
 * Logs denied calls: one line per limit and interval, however many there were.
 *
 *     warn calls denied limit=per-client denied=4213 seconds=10
 *
 * Limiters count their denials anyway. A timer reads these counters and logs the differences, so a decision costs
 * nothing more, and a flood of denials is not a flood of lines.
 */

import { type Clock, type Millis, schedule } from '../core/clock.ts';
import type { Log, LogFields } from '../core/log.ts';

/** A limit, a list or a command that denies calls. */
export interface DenialSource {
  /** Unique among all sources. */
  readonly id: string;
  readonly fields: LogFields;
  /** Denials so far. A source that is new under its id begins at 0. */
  readonly denied: number;
}

/** Lines per interval, for the sources with most denials; one further line stands for the rest. */
const MAX_LINES = 20;

export class DenialLog {
  readonly #log: Log;
  readonly #clock: Clock;
  readonly #sources: () => readonly DenialSource[];
  #counts: ReadonlyMap<string, number> = new Map();
  #since: Millis = 0;
  #everyMs: Millis = Infinity;
  #cancelTimer: (() => void) | undefined;

  constructor(log: Log, clock: Clock, sources: () => readonly DenialSource[]) {
    this.#log = log;
    this.#clock = clock;
    this.#sources = sources;
  }

  /** Logs at this interval from now on; Infinity: not at all. */
  configure(everyMs: Millis): void {
    if (everyMs === this.#everyMs) return;
    this.stop();
    this.#everyMs = everyMs;
    if (everyMs === Infinity) return;
    this.#counts = new Map(this.#sources().map(({ id, denied }) => [id, denied]));
    this.#since = this.#clock.now();
    this.#scheduleNext();
  }

  /** Logs what is pending and stops the timer. */
  stop(): void {
    this.#cancelTimer?.();
    this.#cancelTimer = undefined;
    this.flush();
    this.#everyMs = Infinity;
  }

  /** Logs the denials since the last line. */
  flush(): void {
    if (this.#everyMs === Infinity) return;
    const now = this.#clock.now();
    const seconds = Math.max(0.1, Math.round((now - this.#since) / 100) / 10);
    const sources = this.#sources();
    const denying = sources
      .map(({ id, fields, denied }) => ({ fields, count: this.#countSince(id, denied) }))
      .filter(({ count }) => count > 0)
      .sort((a, b) => b.count - a.count);
    this.#counts = new Map(sources.map(({ id, denied }) => [id, denied]));
    this.#since = now;
    for (const { fields, count } of denying.slice(0, MAX_LINES))
      this.#log('warn', 'calls denied', { ...fields, denied: count, seconds });
    const rest = denying.slice(MAX_LINES);
    const denied = rest.reduce((sum, { count }) => sum + count, 0);
    if (denied > 0)
      this.#log('warn', 'calls denied by further limits', { limits: rest.length, denied, seconds });
  }

  #countSince(id: string, denied: number): number {
    const before = this.#counts.get(id) ?? 0;
    return denied < before ? denied : denied - before; // a new limiter of this name counts from 0
  }

  #scheduleNext(): void {
    const next = this.#clock.now() + this.#everyMs;
    const tick = (): void => {
      this.#scheduleNext();
      this.flush();
    };
    this.#cancelTimer = schedule(this.#clock, next, tick, false);
  }
}
