/**
 * Runs two limits on the same traffic, each with its own server, on virtual time, with the library's own limiter.
 *
 *     arrivals ──┬──▶ limit A ── allowed ──▶ server      refused calls are not retried
 *                └──▶ limit B ── allowed ──▶ server      a permit is settled with the reply of the server
 *
 * A run is a sequence of short steps, so that a page stays responsive between them.
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { seededRandom } from '../../core/random.ts';
import { createLimiter } from '../../limiter/limiter.ts';
import type { Limiter } from '../../limiter/limiter-interface.ts';
import type { Permit, Refusal } from '../../limiter/permit.ts';
import { drainMicrotasks } from '../../testing/virtual-clock.ts';
import type { Reply, Server } from '../laboratory/servers.ts';
import { Timeline } from '../timeline.ts';
import type { Settings } from './fields.ts';
import { limitOf, SIDES, type Side } from './limits.ts';
import { INTERVALS, Recorder, type RunResult } from './recorder.ts';
import { kneeServer } from './server.ts';
import { type Arrival, arrivals, clientsOf } from './traffic.ts';

/** The most virtual time by which one limit may be ahead of the other. */
const TURN_MS: Millis = 50;

/** Instants of a step: calls, replies and timers of the limiter. */
const INSTANTS_PER_STEP = 8;

/** Calls of a run; later ones are left out. */
const MAX_CALLS = 200_000;

/** The most clients; each has its own key. */
const MAX_KEYS = 128;

/** The key where all clients have one count. */
const SHARED_KEY = 'all';

const keyOf = (client: number): string => `client-${client + 1}`;

export interface PlaygroundResult {
  readonly a: RunResult;
  readonly b: RunResult;
  /** The end of each interval, in milliseconds since the start. */
  readonly times: readonly Millis[];
  /** True if calls were left out, because there were too many. */
  readonly isCut: boolean;
}

const lengthOf = ({ seconds }: Settings): Millis => 1000 * (seconds as number);

/** Yields the completed fraction, 0 to 1, after every step. @throws {ConfigError} for an invalid limit. */
export async function* simulatePlayground(
  settings: Settings,
): AsyncGenerator<number, PlaygroundResult> {
  const [a, b] = SIDES.map((side) => new LimitRun(settings, side));
  const lengthMs = lengthOf(settings);
  for (let at = 0; at < lengthMs; at += TURN_MS)
    for (const side of [a, b]) {
      const steps = side.runUntil(Math.min(lengthMs, at + TURN_MS));
      while (!(await steps.next()).done) yield at / lengthMs;
    }
  const times = Array.from({ length: INTERVALS }, (_, n) => ((n + 1) * lengthMs) / INTERVALS);
  const ofA = a.result();
  yield 1 - 1 / INTERVALS; // sorting the times of all calls takes a step of its own
  return { a: ofA, b: b.result(), times, isCut: a.isCut };
}

/** Timers of the limiter on the time of the simulation. */
function clockOf(timeline: Timeline): Clock {
  return {
    now: () => timeline.now,
    wakeAt(at, callback) {
      let isActive = true;
      timeline.scheduleAt(Math.max(at, timeline.now), () => {
        if (isActive) callback();
      });
      return () => {
        isActive = false;
      };
    },
  };
}

/** One limit, its traffic and its server. */
class LimitRun {
  readonly #timeline = new Timeline();
  readonly #arrivals: Iterator<Arrival>;
  readonly #limiter: Limiter | undefined;
  readonly #server: Server;
  readonly #recorder: Recorder;
  readonly #isShared: boolean;
  readonly #waitMs: Millis;
  readonly #timeoutMs: Millis;
  readonly #lengthMs: Millis;
  #calls = 0;
  /** Calls whose `acquire` is still pending. */
  #pending = 0;
  #intervals = 0;
  #isTurnOver = false;
  isCut = false;

  constructor(settings: Settings, side: Side) {
    // Separate random streams: arrivals are the same for both limits, whatever else is drawn.
    const stream = (n: number) => seededRandom((settings.seed as number) * 104_729 + n);
    const timeline = this.#timeline;
    this.#lengthMs = lengthOf(settings);
    this.#arrivals = arrivals(settings, stream(1));
    this.#server = kneeServer({ timeline, random: stream(2) }, settings);
    this.#recorder = new Recorder(this.#lengthMs, clientsOf(settings));
    this.#isShared = settings[`${side}.scope`] === 'all';
    this.#waitMs = Number(settings[`${side}.wait`] ?? 0);
    this.#timeoutMs = 1000 * (settings.timeout as number);
    const limit = limitOf(settings, side);
    this.#limiter =
      limit &&
      (createLimiter(
        {
          limit,
          clock: clockOf(timeline),
          random: stream(3),
          permitTimeout: Number.POSITIVE_INFINITY,
          maxKeys: MAX_KEYS,
        },
        { path: side },
      ) as Limiter);
    this.#scheduleArrival();
    this.#scheduleInterval();
  }

  /** Runs everything that happens before an instant, in steps. */
  async *runUntil(at: Millis): AsyncGenerator<void> {
    this.#isTurnOver = false;
    this.#timeline.scheduleAt(at, () => {
      this.#isTurnOver = true;
    });
    for (let n = 1; !this.#isTurnOver; n++) {
      this.#timeline.runNextInstant();
      if (this.#pending > 0) await drainMicrotasks();
      if (n % INSTANTS_PER_STEP === 0) yield;
    }
  }

  result(): RunResult {
    return this.#recorder.result();
  }

  #scheduleArrival(): void {
    const { value } = this.#arrivals.next();
    if (value.at >= this.#lengthMs) return;
    this.isCut = this.#calls++ >= MAX_CALLS;
    if (this.isCut) return;
    this.#timeline.scheduleAt(value.at, () => {
      this.#call(value.client);
      this.#scheduleArrival();
    });
  }

  #scheduleInterval(): void {
    const at = (++this.#intervals * this.#lengthMs) / INTERVALS;
    this.#timeline.scheduleAt(at, () => {
      this.#recorder.endInterval(this.#learnt(), this.#timeline.now);
      this.#scheduleInterval();
    });
  }

  /** The learnt limit now: calls in flight, or calls or tokens a second. */
  #learnt(): number | undefined {
    const { limit, level } = this.#limiter?.inspect(this.#isShared ? SHARED_KEY : keyOf(0)) ?? {};
    return limit ?? level;
  }

  #call(client: number): void {
    this.#recorder.offer(client);
    if (!this.#limiter) {
      this.#send(client, 0);
      return;
    }
    const key = this.#isShared ? SHARED_KEY : keyOf(client);
    if (this.#waitMs === 0) {
      this.#enter(client, this.#limiter.tryAcquire(key), 0);
      return;
    }
    const since = this.#timeline.now;
    this.#pending++;
    void this.#limiter.acquire(key, 1, { wait: this.#waitMs }).then((entry) => {
      this.#pending--;
      this.#enter(client, entry, this.#timeline.now - since);
    });
  }

  #enter(client: number, entry: Permit | Refusal, waitedMs: Millis): void {
    if (entry.verdict === 'deny') this.#recorder.refuse();
    else this.#send(client, waitedMs, entry);
  }

  #send(client: number, waitedMs: Millis, permit?: Permit): void {
    const timeline = this.#timeline;
    const sentAt = timeline.now;
    this.#recorder.start(client, waitedMs, sentAt);
    let isPending = true;
    const end = (outcome: Reply | 'timeout'): void => {
      if (!isPending) return; // the reply came after the timeout
      isPending = false;
      this.#recorder.end(outcome, timeline.now - sentAt, timeline.now);
      permit?.settle({ outcome });
    };
    this.#server(end);
    timeline.scheduleAfter(this.#timeoutMs, () => end('timeout'));
  }
}
