/**
 * Logs denied calls: one line per limit and interval, however many there were.
 *
 *     warn calls denied limit=per-client denied=4213 seconds=10
 *     warn calls denied limit=per-client denied=4213 seconds=10 keys="ip:10.0.0.7 ip:10.0.0.9"
 *
 * Limiters count their denials anyway. A timer reads these counters and logs the differences. So a decision costs
 * nothing more, and many denials are few lines. Keys are personal data: the log has them only if the configuration says
 * how many.
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import type { Log, LogFields } from '../../core/log.ts';
import type { DenialRecorder } from './denial-recorder.ts';

/** A limit, a list or a command that denies calls. */
export interface DenialSource {
  /** Unique among all sources. */
  readonly id: string;
  readonly fields: LogFields;
  /** Denials so far. A source that is new under its id begins at 0. */
  readonly denied: number;
  /** True if the limit is in shadow mode: nothing was refused, so the line is no warning. */
  readonly isShadow?: boolean;
}

/** The most denied keys by the id of their source. */
export type TopKeys = (maxKeys: number, spanMs: Millis) => ReadonlyMap<string, readonly string[]>;

/** Lines per interval, for the sources with most denials; one further line stands for the rest. */
const MAX_LINES = 20;

export class DenialLog {
  readonly #log: Log;
  readonly #clock: Clock;
  readonly #sources: () => readonly DenialSource[];
  readonly #topKeys: TopKeys;
  #counts: ReadonlyMap<string, number> = new Map();
  #since: Millis = 0;
  #everyMs: Millis = Infinity;
  #maxKeys = 0;
  #cancelTimer: (() => void) | undefined;

  constructor(
    log: Log,
    clock: Clock,
    sources: () => readonly DenialSource[],
    topKeys: TopKeys = () => new Map(),
  ) {
    this.#log = log;
    this.#topKeys = topKeys;
    this.#clock = clock;
    this.#sources = sources;
  }

  /** Logs at this interval from now on, with at most `maxKeys` keys per line; Infinity: never. */
  configure(everyMs: Millis, maxKeys = 0): void {
    this.#maxKeys = maxKeys;
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
      .map((source) => ({ ...source, count: this.#countSince(source.id, source.denied) }))
      .filter(({ count }) => count > 0)
      .sort((a, b) => b.count - a.count);
    this.#counts = new Map(sources.map(({ id, denied }) => [id, denied]));
    const spanMs = now - this.#since;
    this.#since = now;
    const topKeys = this.#maxKeys > 0 ? this.#topKeys(this.#maxKeys, spanMs) : undefined;
    for (const { id, fields, count, isShadow } of denying.slice(0, MAX_LINES)) {
      const keys = topKeys?.get(id)?.join(' ');
      const about = { ...fields, denied: count, seconds, ...(keys !== undefined && { keys }) };
      this.#log(isShadow ? 'info' : 'warn', 'calls denied', about);
    }
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

/**
 * Up to an interval of 20 s the keys are those of the last 10 to 20 s. With a longer one they are those of the last one
 * to two hours.
 */
const MAX_NOW_MS: Millis = 20_000;

/** Keys are separated by spaces. */
const quoteIfNeeded = (key: string): string => (/[\s"]/.test(key) ? JSON.stringify(key) : key);

export const topKeysOf =
  (denials: Pick<DenialRecorder, 'top'>): TopKeys =>
  (maxKeys, spanMs) => {
    const keysById = new Map<string, string[]>();
    const found = denials.top(spanMs > MAX_NOW_MS ? 'hour' : 'now', Infinity, maxKeys);
    for (const { limit, reason, command, keys } of found) {
      const isByReason = reason === 'deny-list' || reason === 'overload';
      const isByLimit = limit !== undefined && !isByReason;
      const isByCommand = command !== undefined && !isByReason;
      const id = isByLimit ? `limit ${limit}` : isByCommand ? 'command' : `reason ${reason}`;
      const known = keysById.get(id) ?? [];
      keysById.set(id, [...known, ...keys.map(({ key }) => quoteIfNeeded(key))].slice(0, maxKeys));
    }
    return keysById;
  };
