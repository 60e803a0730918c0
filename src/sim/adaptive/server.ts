/**
 * The simulated server: it slows down under load, and past its limits defers or drops.
 *
 * An attempt that is dropped is never answered: only the caller's own time-out ends it.
 */

import type { Millis } from '../../clock.ts';
import { exponential, type Random } from '../../random.ts';
import type { Timeline } from '../timeline.ts';
import { LevelFigures } from './figures.ts';
import type { Load, ServerParams } from './suite.ts';

export type Answer = 'ok' | 'deferred';

export class Server {
  readonly inFlight = new LevelFigures();
  readonly rate = new LevelFigures();
  completed = 0;

  readonly #params: ServerParams;
  readonly #timeline: Timeline;
  readonly #random: Random;
  #level = 0;
  #recent: Millis[] = [];
  #failures: number;

  constructor(params: ServerParams, timeline: Timeline, random: Random) {
    this.#params = params;
    this.#timeline = timeline;
    this.#random = random;
    this.#failures = params.failures;
  }

  /**
   * Takes an attempt. `isWaiting` says whether the caller is still there when the answer is ready:
   * an answer nobody hears frees the server's place, but completes nothing.
   */
  attempt(isWaiting: () => boolean, answer: (answer: Answer) => void): void {
    this.#recent = this.#prune();
    this.#recent.push(this.#timeline.now);
    this.#step(1);
    const [level, rate] = [this.#level, this.#recent.length];

    const action = this.#actionAt(level, rate);
    if (action === 'drop') {
      this.#end();
      return;
    }
    const load = action === 'defer' ? 0 : slowdown(this.#params.byLevel, level);
    const more = action === 'defer' ? 0 : slowdown(this.#params.byRate, rate);
    this.#timeline.after(sleepMs(this.#delayS(load + more)), () => {
      this.#end();
      if (!isWaiting()) return;
      if (action !== 'defer') this.completed++;
      answer(action === 'defer' ? 'deferred' : 'ok');
    });
  }

  #actionAt(level: number, rate: number): 'defer' | 'drop' | undefined {
    const { byLevel, byRate, failuresAfter } = this.#params;
    if (this.#failures > 0 && this.completed >= failuresAfter) {
      this.#failures--;
      return 'defer';
    }
    if (level > byLevel.limit) return byLevel.action;
    return rate > byRate.limit ? byRate.action : undefined;
  }

  #delayS(load: number): number {
    const { delayS, jitter } = this.#params;
    const shake = jitter > 0 ? jitter * exponential(this.#random) : 0;
    return delayS * (1 + load + shake);
  }

  #end(): void {
    this.#recent = this.#prune();
    this.#step(-1);
  }

  #step(by: 1 | -1): void {
    this.rate.add(this.#recent.length, this.#timeline.now);
    this.inFlight.add(this.#level, this.#timeline.now); // as it was until now
    this.#level += by;
  }

  /** The start times of the last second. */
  #prune(): Millis[] {
    const then = this.#timeline.now - 1000;
    const keep = this.#recent.findIndex((at) => at > then);
    return keep < 0 ? [] : keep === 0 ? this.#recent : this.#recent.slice(keep);
  }
}

/** How much longer than usual an attempt takes that is the n-th at its level or in its second. */
function slowdown({ scale, kneeStart, kneeExp }: Load, n: number): number {
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
