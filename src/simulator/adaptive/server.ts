/**
 * The simulated server: it slows down under load, and past its limits defers or drops.
 *
 * An attempt that is dropped is never answered: only the caller's own time-out ends it.
 */

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

  /** From now on it is another server; what it has begun ends as it began. */
  reconfigure(params: ServerParams): void {
    this.#params = params;
  }

  /**
   * Takes an attempt. `isWaiting` says whether the caller is still there when the answer is ready:
   * an answer nobody hears frees the server's place, but completes nothing.
   */
  attempt(isWaiting: () => boolean, answer: (answer: ServerReply) => void): void {
    this.#recent.add(this.#timeline.now);
    this.#step(1);
    const [level, rate] = [this.#level, this.#recent.count];

    const action = this.#actionAt(level, rate);
    if (action !== undefined && this.#params.excludesRejected) this.#recent.removeNewest();
    if (action === 'drop') {
      this.#finish();
      return;
    }
    const load = action === 'defer' ? 0 : slowdown(this.#params.byConcurrency, level);
    const more = action === 'defer' ? 0 : slowdown(this.#params.byRate, rate);
    const work = action === 'defer' ? this.#work : this.#workQueued;
    work.call(this, load + more, () => {
      this.#finish();
      if (!isWaiting()) return;
      if (action !== 'defer') this.completed++;
      answer(action === 'defer' ? 'deferred' : 'ok');
    });
  }

  #work(load: number, done: () => void): void {
    this.#timeline.scheduleAfter(sleepMs(this.#delayS(load)), done);
  }

  /** First come, first served. Whoever has given up meanwhile is served too: a server cannot know. */
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
    const shake = jitter > 0 ? jitter * exponentialVariate(this.#random) : 0;
    return delayS * (1 + load + shake);
  }

  #finish(): void {
    this.#recent.dropExpired(this.#timeline.now);
    this.#step(-1);
  }

  #step(by: 1 | -1): void {
    this.rate.add(this.#recent.count, this.#timeline.now);
    this.inFlight.add(this.#level, this.#timeline.now); // as it was until now
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

  /** As if the newest had not come. */
  removeNewest(): void {
    this.#times.pop();
  }

  dropExpired(now: Millis): void {
    while (this.#times[this.#first] <= now - 1000) this.#first++;
    // Moving the rest down each time would cost more than the whole second is worth.
    if (this.#first < MAX_EXPIRED_ENTRIES) return;
    this.#times = this.#times.slice(this.#first);
    this.#first = 0;
  }
}

/** So many times may lie before the last second until they are cleared away. */
const MAX_EXPIRED_ENTRIES = 1024;

/** How much longer than usual an attempt takes that is the n-th at its level or in its second. */
function slowdown({ scale, kneeStart, kneeExp }: LoadResponse, n: number): number {
  const knee = kneeStart === undefined ? 0 : kneeExp ** Math.max(0, n - kneeStart) - 1;
  return (n - 1) * scale + knee;
}

/**
 * How long a sleep really takes: the timers of the published runs count whole milliseconds, and a
 * sleep ends with the first one that is surely over. The delay itself is exact to a nanosecond.
 */
export function sleepMs(seconds: number): Millis {
  return Math.floor(Math.round(seconds * 1e9) / 1e6) + 1;
}
