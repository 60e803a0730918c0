/**
 * Runs a rule on a sink: one client or several, each with its own rule, against one server on virtual time.
 *
 *     arrivals or an endless backlog ──▶ client: rule.start ──▶ network ──▶ server
 *                                            rule.settle ◀── ok, busy, or timeout
 *
 * A call that was refused or timed out is not retried; the client takes the next one.
 */

import type { Millis } from '../../core/clock.ts';
import type { Outcome } from '../../core/decision.ts';
import { type Random, seededRandom } from '../../core/random.ts';
import { Timeline } from '../timeline.ts';
import { type Course, type Figures, INTERVAL_MS, Recorder } from './recorder.ts';
import type { CreateRule, Rule } from './rule.ts';
import { network, type Server } from './servers.ts';
import { constant } from './service-times.ts';
import {
  type Arrivals,
  type ClientTerms,
  clientsOf,
  durationOf,
  type Sink,
  termsOf,
} from './sink.ts';

/** Calls that wait at a client, unless the sink has a bound of its own. */
const MAX_BACKLOG = 2000;

/** Calls that a client may have in flight, whatever its rule allows. */
const MAX_IN_FLIGHT = 5000;

/** Calls that a client can start in a millisecond. Without a bound, fast refusals make an endless number of calls. */
const MAX_CALLS_PER_MS = 20;

/** A rule is not asked again earlier: time must move on. */
const MIN_RETRY_MS: Millis = 0.001;

const ROUND_TRIP = constant(1);

const CLOCK_RANGE_MS: Millis = 60_000;

export interface Run {
  readonly figures: Figures;
  readonly course: Course;
}

export function runSink(sink: Sink, createRule: CreateRule, seed: number): Run {
  const timeline = new Timeline();
  const simulation = { timeline, random: seededRandom(seed * 7919 + 13) };
  const shared = sink.server(simulation);
  const recorder = new Recorder(sink);
  const clients: Client[] = [];
  const join = (number: number, terms: ClientTerms): void => {
    const { roundTrip = sink.roundTrip ?? ROUND_TRIP, neighbour = createRule } = terms;
    const server = network(simulation, roundTrip, shared);
    const options = { number, sink, terms, timeline, server, recorder, seed };
    const client = new Client({ ...options, createRule: neighbour });
    if (terms.neighbour === undefined) clients.push(client);
    client.start();
    if (terms.leavesAtMs !== undefined) timeline.scheduleAt(terms.leavesAtMs, () => client.leave());
  };
  for (let number = 0; number < clientsOf(sink); number++) {
    const terms = termsOf(sink, number);
    timeline.scheduleAfter(terms.joinsAtMs ?? 0, () => join(number, terms));
  }

  const recordInterval = (): void => {
    const limits = clients.reduce((total, client) => total + client.limit, 0);
    recorder.recordInterval(limits, timeline.now);
    timeline.scheduleAfter(INTERVAL_MS, recordInterval);
  };
  timeline.scheduleAfter(0, recordInterval);
  let isOver = false;
  timeline.scheduleAfter(durationOf(sink), () => {
    isOver = true;
  });
  while (!isOver) timeline.runNextInstant();
  return { figures: recorder.figures(), course: recorder.course };
}

interface ClientOptions {
  readonly number: number;
  readonly sink: Sink;
  readonly terms: ClientTerms;
  readonly timeline: Timeline;
  readonly server: Server;
  readonly recorder: Recorder;
  readonly createRule: CreateRule;
  readonly seed: number;
}

/** What a client's clock shows at the start: no two clients agree, and no server changes at the instants that a rule likes. */
const clockOf = (seed: number, number: number): Millis =>
  CLOCK_RANGE_MS * seededRandom(seed * 613 + 5 + 7919 * number)();

class Client {
  readonly #options: ClientOptions;
  readonly #rule: Rule;
  readonly #arrivalRandom: Random;
  /** Of its own clock, which is all that the rule sees. */
  readonly #aheadMs: Millis;
  #backlog: number;
  #inFlight = 0;
  #hasLeft = false;
  /** Calls started since `#millisecond`. */
  #started = 0;
  #millisecond: Millis = -1;
  /** When the rule is asked again; in the past if no timer is pending. */
  #retryAt: Millis = -1;

  constructor(options: ClientOptions) {
    this.#options = options;
    const { number, seed, createRule } = options;
    this.#aheadMs = clockOf(seed, number);
    this.#backlog = this.#arrivals ? 0 : Infinity;
    // Two streams: arrivals are the same whatever the rule draws.
    const own = (seed * 31 + number) * 104_729;
    this.#arrivalRandom = seededRandom(own + 7);
    this.#rule = createRule(seededRandom(own + 8), this.#clock);
  }

  get limit(): number {
    if (this.#hasLeft) return 0;
    return this.#rule.limit(this.#clock);
  }

  get #clock(): Millis {
    return this.#options.timeline.now + this.#aheadMs;
  }

  start(): void {
    this.#scheduleArrivals();
    this.#send();
  }

  leave(): void {
    this.#hasLeft = true;
  }

  get #arrivals(): Arrivals | undefined {
    const { sink, terms } = this.#options;
    return 'arrivals' in terms ? terms.arrivals : sink.arrivals;
  }

  #scheduleArrivals(): void {
    const { sink, timeline } = this.#options;
    const next = this.#arrivals?.(this.#arrivalRandom, timeline.now);
    if (next === undefined) return;
    const { waitMs, count } = next;
    timeline.scheduleAfter(waitMs, () => {
      this.#backlog += count;
      this.#send();
      this.#backlog = Math.min(sink.maxBacklog ?? MAX_BACKLOG, this.#backlog);
      this.#scheduleArrivals();
    });
  }

  /** Starts as many calls as the rule allows. */
  #send(): void {
    const { timeline } = this.#options;
    if (timeline.now >= this.#millisecond + 1)
      [this.#millisecond, this.#started] = [timeline.now, 0];
    while (this.#backlog > 0 && this.#inFlight < MAX_IN_FLIGHT && !this.#hasLeft) {
      const isTooFast = this.#started >= MAX_CALLS_PER_MS;
      const waitMs = isTooFast
        ? this.#millisecond + 1 - timeline.now
        : this.#rule.start(this.#clock, this.#inFlight);
      if (waitMs > 0) {
        this.#retryAfter(waitMs);
        return;
      }
      this.#backlog--;
      this.#started++;
      this.#call(timeline.now);
    }
  }

  /** After `Infinity` the next call that settles asks again. */
  #retryAfter(waitMs: Millis): void {
    const { timeline } = this.#options;
    const at = timeline.now + Math.max(MIN_RETRY_MS, waitMs);
    const isPending = this.#retryAt > timeline.now && this.#retryAt <= at;
    if (at === Infinity || isPending) return;
    this.#retryAt = at;
    timeline.scheduleAfter(at - timeline.now, () => this.#send());
  }

  #call(sentAt: Millis): void {
    const { number, timeline, server, recorder, sink } = this.#options;
    const inFlight = ++this.#inFlight;
    recorder.recordStart(number, sentAt);
    let isPending = true;
    const finish = (outcome: Outcome): void => {
      if (!isPending) return; // the reply came after the timeout
      isPending = false;
      const { now } = timeline;
      this.#inFlight--;
      recorder.recordEnd(number, outcome, now - sentAt, now);
      this.#rule.settle(outcome, sentAt + this.#aheadMs, inFlight, this.#clock);
      this.#send();
    };
    server(finish);
    if (sink.timeoutMs !== undefined)
      timeline.scheduleAfter(sink.timeoutMs, () => finish('timeout'));
  }
}
