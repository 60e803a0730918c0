/**
 * Shares the event loop and the memory between connections, so that one that pipelines without pause does not delay the others.
 *
 *     a turn of the event loop:   new bytes of every connection, one slice each
 *                                 then waiting connections, the longest waiting first, for TURN_MS together
 *
 * A connection whose slice is over keeps its bytes and waits. Meanwhile it is read ahead within a bound, so that the age
 * of its requests is known (`read-ahead.ts`). While others wait, new bytes get a short slice only: enough for the
 * requests of a client that does not pipeline.
 */

import { type Clock, type Millis, onImmediate, onNextTick, systemClock } from '../../core/clock.ts';
import { BucketCounter } from '../../limiter/stats.ts';
import { HeldBytes } from './held-bytes.ts';
import { Overload } from './overload.ts';

/** How long one connection may process requests at a time: new bytes while no connection waits, and while some do. */
const SLICE_MS: Millis = 0.5;
const CONTENDED_SLICE_MS: Millis = 0.05;

/** The slice of a connection that has waited. */
const WAITED_SLICE_MS: Millis = 0.2;

/** How long waiting connections are processed before new bytes are read. */
const TURN_MS: Millis = 0.5;

/** Waiting connections that are read nevertheless. With more of them, reading would take most of a turn. */
const MAX_READING_AHEAD = 64;

/** Bytes of short requests after which a handler looks at the slice again: reading the clock is not free. */
export const BYTES_PER_LOOK = 512;

/** One slice in this many is measured; a power of two. */
const SLICES_PER_SAMPLE = 64;

/** In seconds. */
const DURATION_BOUNDS: readonly number[] = [
  0.000_01, 0.000_025, 0.000_05, 0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.1,
];

/** The slice as protocol handlers see it. */
export interface Slice {
  /** True once the slice is over. */
  readonly isOver: boolean;
}

/** For handlers without a connection. */
export const ENDLESS_SLICE: Slice = { isOver: false };

export class Turns implements Slice {
  readonly overload: Overload;
  readonly held: HeldBytes;
  /** How long slices took: to parse, decide and encode what was read at once. */
  readonly durations = new BucketCounter(DURATION_BOUNDS);
  readonly clock: Clock;
  /** A few entries a connection at most: itself, and its pending batches. */
  readonly #waiting: (() => void)[] = [];
  #isRunning = false;
  /** When the present slice began. */
  beganAt: Millis = 0;
  #endsAt: Millis = 0;
  #slices = 0;
  #turnEndsAt: Millis = 0;

  /** The clock must not stand still while requests are processed. */
  constructor(clock: Clock = systemClock, overload = new Overload(clock), held = new HeldBytes()) {
    this.clock = clock;
    this.overload = overload;
    this.held = held;
  }

  get now(): Millis {
    return this.clock.now();
  }

  /** Begins the slice of a connection; returns the time. */
  begin(): Millis {
    const now = this.clock.now();
    const newMs = this.#waiting.length > 0 ? CONTENDED_SLICE_MS : SLICE_MS;
    this.beganAt = now;
    this.#endsAt = now + (this.#isRunning ? WAITED_SLICE_MS : newMs);
    return now;
  }

  /** Ends the slice of a connection. */
  end(): void {
    this.overload.isShedding = false;
    if ((++this.#slices & (SLICES_PER_SAMPLE - 1)) === 0)
      this.durations.add((this.clock.now() - this.beganAt) / 1000);
  }

  get isOver(): boolean {
    return this.clock.now() >= this.#endsAt;
  }

  /** True if connections that wait are read nevertheless. */
  get canReadAhead(): boolean {
    return this.#waiting.length <= MAX_READING_AHEAD;
  }

  /** Calls `resume` in a later turn, after all connections that wait already. */
  wait(resume: () => void): void {
    this.#waiting.push(resume);
    if (this.#waiting.length === 1 && !this.#isRunning) onImmediate(this.#startTurn);
  }

  /** Resolves in a later turn, when a slice of the caller has begun: for requests that take longer than one. */
  next(): Promise<void> {
    return new Promise((resolve) => {
      this.wait(() => {
        this.begin();
        resolve();
      });
    });
  }

  /** At least one connection, however slow the machine is. */
  readonly #startTurn = (): void => {
    this.#isRunning = true;
    this.#turnEndsAt = this.clock.now() + TURN_MS;
    this.#runOne();
  };

  /** One connection per tick: what it has left to the end of the tick counts as its time. */
  #runOne(): void {
    try {
      this.#waiting.shift()?.();
    } finally {
      queueMicrotask(() => onNextTick(this.#continue)); // behind all ticks and microtasks that it has left
    }
  }

  readonly #continue = (): void => {
    this.#isRunning = this.#waiting.length > 0 && this.clock.now() < this.#turnEndsAt;
    if (this.#isRunning) this.#runOne();
    else if (this.#waiting.length > 0) onImmediate(this.#startTurn);
  };
}
