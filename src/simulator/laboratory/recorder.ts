import type { Millis } from '../../core/clock.ts';
import type { Outcome } from '../../core/decision.ts';
import { jainIndex, sum } from '../statistics.ts';
import { clientsOf, durationOf, measureFromOf, type Sink } from './sink.ts';

/** Length of an interval of `Course`. */
export const INTERVAL_MS: Millis = 100;

/** Figures of one run, from `measureFromMs` on. */
export interface Figures {
  /** Successful calls a second. */
  readonly goodput: number;
  /** Round-trip time of successful calls; NaN without one. */
  readonly meanRttMs: Millis;
  readonly p99RttMs: Millis;
  /** Mean calls in flight, of all clients together. */
  readonly inFlight: number;
  /** Part of the finished calls that were refused or timed out. */
  readonly refused: number;
  /** Calls sent while the server refused or lost every call. */
  readonly sentInSpell: number;
  /** Jain's fairness index of the clients' successful calls. */
  readonly fairness: number;
}

/** The run by intervals, from its start on; sums over all clients. */
export interface Course {
  readonly limit: Float64Array;
  readonly inFlight: Float64Array;
  /** Successful calls in the interval. */
  readonly completed: Float64Array;
  /** Calls of the interval that were refused or timed out. */
  readonly dropped: Float64Array;
}

export class Recorder {
  readonly course: Course;
  readonly #sink: Sink;
  readonly #fromMs: Millis;
  readonly #rttsMs: Millis[] = [];
  readonly #completedBy: number[];
  #dropped = 0;
  #sentInSpell = 0;
  #inFlight = 0;
  /** Calls in flight × time. */
  #inFlightArea = 0;
  #updatedAt: Millis;

  constructor(sink: Sink) {
    this.#sink = sink;
    this.#fromMs = measureFromOf(sink);
    this.#updatedAt = this.#fromMs;
    this.#completedBy = Array(clientsOf(sink)).fill(0);
    const intervals = () => new Float64Array(Math.ceil(durationOf(sink) / INTERVAL_MS));
    this.course = {
      limit: intervals(),
      inFlight: intervals(),
      completed: intervals(),
      dropped: intervals(),
    };
  }

  recordStart(now: Millis): void {
    const { refusingSpell: spell } = this.#sink;
    if (spell && now >= spell.fromMs && now < spell.toMs) this.#sentInSpell++;
    this.#changeInFlight(1, now);
  }

  recordEnd(client: number, outcome: Outcome, rttMs: Millis, now: Millis): void {
    this.#changeInFlight(-1, now);
    const { completed, dropped } = this.course;
    (outcome === 'ok' ? completed : dropped)[Math.floor(now / INTERVAL_MS)]++;
    if (now < this.#fromMs) return;
    if (outcome === 'ok') {
      this.#rttsMs.push(rttMs);
      this.#completedBy[client]++;
    } else this.#dropped++;
  }

  recordInterval(limit: number, now: Millis): void {
    const n = Math.floor(now / INTERVAL_MS);
    this.course.limit[n] = limit;
    this.course.inFlight[n] = this.#inFlight;
  }

  figures(): Figures {
    const endsAt = durationOf(this.#sink);
    this.#changeInFlight(0, endsAt);
    const rttsMs = Float64Array.from(this.#rttsMs).sort();
    const completed = rttsMs.length;
    return {
      goodput: (1000 * completed) / (endsAt - this.#fromMs),
      meanRttMs: sum(this.#rttsMs) / completed,
      p99RttMs: rttsMs[Math.floor(0.99 * completed)] ?? Number.NaN,
      inFlight: this.#inFlightArea / (endsAt - this.#fromMs),
      refused: this.#dropped / Math.max(1, this.#dropped + completed),
      sentInSpell: this.#sentInSpell,
      fairness: jainIndex(this.#completedBy),
    };
  }

  #changeInFlight(by: number, now: Millis): void {
    if (now > this.#updatedAt) {
      this.#inFlightArea += this.#inFlight * (now - this.#updatedAt);
      this.#updatedAt = now;
    }
    this.#inFlight += by;
  }
}
