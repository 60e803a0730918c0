/** A dropped attempt gets no reply: it ends with the client's timeout. */

import type { Millis } from '../../core/clock.ts';
import { exponentialVariate, type Random } from '../../core/random.ts';
import type { Timeline } from '../timeline.ts';
import { LevelFigures } from './figures.ts';
import type { LoadResponse, ServerParams } from './suite.ts';

export type ServerReply = 'ok' | 'deferred';

export class Server {
  readonly inFlight = new LevelFigures();
  readonly rate = new LevelFigures();
  completed = 0;

  #params: ServerParams;
  readonly #timeline: Timeline;
  readonly #random: Random;
  #level = 0;
  readonly #recent = new LastSecond();
  #failures: number;
  #busyWorkers = 0;
  readonly #queue: (() => void)[] = [];

  constructor(params: ServerParams, timeline: Timeline, random: Random) {
    this.#params = params;
    this.#timeline = timeline;
    this.#random = random;
    this.#failures = params.failures;
  }

  /** Changes the parameters. Attempts in progress end with the old ones. */
  reconfigure(params: ServerParams): void {
    this.#params = params;
  }

  /**
   * Starts an attempt. `isWaiting` says whether the client still waits when the reply is ready. If it does not, the
   * attempt frees its worker but does not count as completed.
   */
  attempt(isWaiting: () => boolean, onReply: (reply: ServerReply) => void): void {
    this.#recent.add(this.#timeline.now);
    this.#step(1);
    const [level, rate] = [this.#level, this.#recent.count];

    const action = this.#actionAt(level, rate);
    if (action !== undefined && this.#params.excludesRejected) this.#recent.removeNewest();
    if (action === 'drop') {
      this.#finish();
      return;
    }
    const { byConcurrency, byRate } = this.#params;
    const isDeferred = action === 'defer';
    const load = isDeferred ? 0 : slowdown(byConcurrency, level) + slowdown(byRate, rate);
    const work = isDeferred ? this.#work : this.#workQueued;
    work.call(this, load, () => {
      this.#finish();
      if (!isWaiting()) return;
      if (!isDeferred) this.completed++;
      onReply(isDeferred ? 'deferred' : 'ok');
    });
  }

  #work(load: number, done: () => void): void {
    this.#timeline.scheduleAfter(sleepMs(this.#delayS(load)), done);
  }

  /** Serves FIFO, including attempts that timed out in the queue: the server does not know about timeouts. */
  #workQueued(load: number, done: () => void): void {
    if (this.#busyWorkers >= (this.#params.workers ?? Infinity)) {
      this.#queue.push(() => this.#workQueued(load, done));
      return;
    }
    this.#busyWorkers++;
    this.#work(load, () => {
      this.#busyWorkers--;
      this.#queue.shift()?.();
      done();
    });
  }

  #actionAt(level: number, rate: number): 'defer' | 'drop' | undefined {
    const { byConcurrency, byRate, failuresAfter } = this.#params;
    if (this.#failures > 0 && this.completed >= failuresAfter) {
      this.#failures--;
      return 'defer';
    }
    if (level > byConcurrency.limit) return byConcurrency.action;
    return rate > byRate.limit ? byRate.action : undefined;
  }

  #delayS(load: number): number {
    const { delayS, jitter } = this.#params;
    const extra = jitter > 0 ? jitter * exponentialVariate(this.#random) : 0;
    return delayS * (1 + load + extra);
  }

  #finish(): void {
    this.#recent.dropExpired(this.#timeline.now);
    this.#step(-1);
  }

  #step(by: 1 | -1): void {
    this.rate.add(this.#recent.count, this.#timeline.now);
    this.inFlight.add(this.#level, this.#timeline.now); // the level until now
    this.#level += by;
  }
}

/** The start times of the last second, oldest first. */
class LastSecond {
  #times: Millis[] = [];
  #first = 0;

  get count(): number {
    return this.#times.length - this.#first;
  }

  add(now: Millis): void {
    this.dropExpired(now);
    this.#times.push(now);
  }

  removeNewest(): void {
    this.#times.pop();
  }

  dropExpired(now: Millis): void {
    while (this.#times[this.#first] <= now - 1000) this.#first++;
    // Removing expired entries one by one would copy the array each time.
    if (this.#first < MAX_EXPIRED_ENTRIES) return;
    this.#times = this.#times.slice(this.#first);
    this.#first = 0;
  }
}

/** Expired entries are removed in blocks of this size. */
const MAX_EXPIRED_ENTRIES = 1024;

/** Extra service time of the n-th attempt in flight or in the last second, relative to the base time. */
function slowdown({ scale, kneeStart, kneeExp }: LoadResponse, n: number): number {
  const knee = kneeStart === undefined ? 0 : kneeExp ** Math.max(0, n - kneeStart) - 1;
  return (n - 1) * scale + knee;
}

/**
 * The real duration of a sleep. The timers of the published runs have millisecond resolution, and a sleep ends with
 * the first tick after the delay. The delay itself is exact to a nanosecond.
 */
export function sleepMs(seconds: number): Millis {
  return Math.floor(Math.round(seconds * 1e9) / 1e6) + 1;
}
