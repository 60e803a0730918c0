/**
 * Logs when checks begin to be shed, and when that has ended: at most one such pair of lines in MIN_INTERVAL_MS.
 *
 *     warn overloaded: checks that are too old are shed maxAgeMs=250 fail=open
 *     info overload has ended shed=48211 denied=0 seconds=12.4
 */

import { type Clock, type Millis, schedule } from '../../core/clock.ts';
import type { Log } from '../../core/log.ts';
import type { Overload } from './overload.ts';

/** Overloads that begin earlier after the last logged one are not logged. */
const MIN_INTERVAL_MS: Millis = 60_000;

/** How often the end is looked for. */
const LOOK_MS: Millis = 1000;

type Shedding = Pick<
  Overload,
  'config' | 'isRecent' | 'lastShedAt' | 'shedCount' | 'deniedCount' | 'onBegin'
>;

export class OverloadLog {
  readonly #log: Log;
  readonly #clock: Clock;
  readonly #overload: Shedding;
  /** The overload that was logged last: when it began, and what was shed before. */
  #beganAt: Millis = -Infinity;
  #shedBefore = 0;
  #deniedBefore = 0;
  /** Set until the end is logged. */
  #cancelLook: (() => void) | undefined;

  constructor(log: Log, clock: Clock, overload: Shedding) {
    this.#log = log;
    this.#clock = clock;
    this.#overload = overload;
    overload.onBegin = () => this.#begin();
  }

  /** Logs the end of an overload that lasts. */
  stop(): void {
    if (this.#cancelLook) this.#end();
  }

  /** Called before the first check is counted. */
  #begin(): void {
    const now = this.#clock.now();
    if (this.#cancelLook || now - this.#beganAt < MIN_INTERVAL_MS) return;
    const { config, shedCount, deniedCount } = this.#overload;
    this.#beganAt = now;
    this.#shedBefore = shedCount;
    this.#deniedBefore = deniedCount;
    this.#log('warn', 'overloaded: checks that are too old are shed', {
      maxAgeMs: config.maxAgeMs,
      fail: config.isOpen ? 'open' : 'closed',
    });
    this.#lookLater();
  }

  #lookLater(): void {
    const look = (): void => (this.#overload.isRecent ? this.#lookLater() : this.#end());
    this.#cancelLook = schedule(this.#clock, this.#clock.now() + LOOK_MS, look, false);
  }

  #end(): void {
    this.#cancelLook?.();
    this.#cancelLook = undefined;
    const { lastShedAt, shedCount, deniedCount } = this.#overload;
    this.#log('info', 'overload has ended', {
      shed: shedCount - this.#shedBefore,
      denied: deniedCount - this.#deniedBefore,
      seconds: Math.max(0.1, Math.round((lastShedAt - this.#beganAt) / 100) / 10),
    });
  }
}
