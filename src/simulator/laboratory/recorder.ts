import type { Millis } from '../../core/clock.ts';
import type { Outcome } from '../../core/decision.ts';
import { jainIndex, sum } from '../statistics.ts';
import { clientsOf, durationOf, isComparable, measureFromOf, type Sink, termsOf } from './sink.ts';

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
  /** Calls sent while the server refused, lost or held every call. */
  readonly sentInSpell: number;
  /** Most calls in flight in that time, as a multiple of those at its beginning. */
  readonly peakInSpell: number;
  /** Jain's fairness index of the successful calls of clients that always have calls to make. */
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
  #peakInSpell = 0;
  #inFlightBefore = 0;
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

  recordStart(client: number, now: Millis): void {
    if (this.#isNeighbour(client)) return;
    const { spell } = this.#sink;
    this.#changeInFlight(1, now);
    if (!spell || now >= spell.toMs) return;
    if (now < spell.fromMs) return;
    this.#sentInSpell++;
    this.#peakInSpell = Math.max(this.#peakInSpell, this.#inFlight);
  }

  recordEnd(client: number, outcome: Outcome, rttMs: Millis, now: Millis): void {
    if (this.#isNeighbour(client)) return;
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
    const { spell } = this.#sink;
    if (spell && now <= spell.fromMs) this.#inFlightBefore = this.#inFlight;
  }

  #isNeighbour(client: number): boolean {
    return termsOf(this.#sink, client).neighbour !== undefined;
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
      peakInSpell: this.#peakInSpell / Math.max(1, this.#inFlightBefore),
      fairness: jainIndex(this.#completedBy.filter((_, n) => isComparable(this.#sink, n))),
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
