/**
 * The simulated client: one sender, endless retries, and the real adaptive policy between them.
 *
 * Where the limiter stands among the layers decides what it gets to see:
 *
 *     per-attempt         retry( limiter( timeout( server )))     a permit and a timing an attempt
 *     whole-call          limiter( retry( timeout( server )))     one of each for all attempts
 *     measured-attempts   limiter( retry( measure( timeout( server ))))   one permit, all timings
 */

import type { Millis } from '../../core/clock.ts';
import type { Outcome } from '../../core/decision.ts';
import type { Random } from '../../core/random.ts';
import { type AdaptivePolicy, adaptive } from '../../policies/adaptive.ts';
import { concurrency } from '../../policies/concurrency.ts';
import type { State } from '../../policies/policy.ts';
import type { Timeline } from '../timeline.ts';
import { LevelFigures, ValueFigures } from './figures.ts';
import { PermitQueue } from './permits.ts';
import { type Server, sleepMs } from './server.ts';
import type { Case, Suite } from './suite.ts';

const ATTEMPT_TIMEOUT_S = 1;
const MAX_BACKOFF_S = 30;

/** One event on its way, over all its attempts. */
interface SimulatedCall {
  startedAt: Millis;
  attempts: number;
}

/** What a client needs to know of its case: where the limiter stands, how to wait, which limit. */
export type ClientConfig = Pick<Suite, 'layering' | 'backoff'> & Pick<Case, 'limit'>;

/** Told of every attempt when it is over, however it ended. */
export type AttemptObserver = (outcome: Outcome, rttMs: Millis) => void;

export class Client {
  readonly inFlight = new LevelFigures();
  readonly limit = new LevelFigures();
  readonly observedRtt = new ValueFigures();
  readonly averagedRtt = new ValueFigures();

  readonly #config: ClientConfig;
  readonly #timeline: Timeline;
  readonly #server: Server;
  readonly #policy: AdaptivePolicy;
  readonly #state: State;
  readonly #permits: PermitQueue;
  readonly #onAttempt: AttemptObserver;
  #backlog = 0;
  #isSending = false;

  constructor(
    sender: ClientConfig,
    timeline: Timeline,
    server: Server,
    random: Random,
    watch: AttemptObserver = () => {},
  ) {
    this.#config = sender;
    this.#timeline = timeline;
    this.#server = server;
    this.#onAttempt = watch;
    const { limit } = sender;
    this.#policy =
      'concurrency' in limit ? concurrency(limit.concurrency, random) : adaptive(limit, random);
    this.#state = new Float64Array(this.#policy.width);
    this.#policy.init(this.#state, 0, timeline.now);
    this.#permits = new PermitQueue(this.status.limit);
  }

  /** Events are there to be sent; without end, if so many. */
  enqueue(count = 1): void {
    this.#backlog += count;
  }

  /** Lets the sender and everybody who was handed a permit act; the end of every instant. */
  runPending(): void {
    this.#sendNext();
    this.#permits.runGranted();
  }

  /** What the rule allows and counts right now. */
  get status(): { limit: number; inFlight: number } {
    const { limit = 0, inFlight = 0 } = this.#policy.keyState(this.#state, 0, this.#timeline.now);
    return { limit, inFlight };
  }

  /** One sender, one event at a time: the next one queues when this one has its permit. */
  #sendNext(): void {
    if (this.#isSending || this.#backlog === 0) return;
    this.#isSending = true;
    this.#backlog--;
    this.#permits.acquire(() => {
      this.#isSending = false;
      this.#startCall({ startedAt: this.#timeline.now, attempts: 0 });
      this.#sendNext();
    });
  }

  /** Starts what a permit was got for: an attempt, or a whole sequence of them. */
  #startCall(call: SimulatedCall): void {
    call.startedAt = this.#timeline.now;
    this.inFlight.add(this.status.inFlight, this.#timeline.now);
    const { verdict } = this.#policy.check(this.#state, 0, 1, this.#timeline.now);
    if (verdict !== 'allow') throw new Error('a permit was handed out that the rule refuses');
    this.#attempt(call);
  }

  #attempt(call: SimulatedCall): void {
    const startedAt = this.#timeline.now;
    let isWaiting = true;
    const finish = (outcome: Outcome): void => {
      if (!isWaiting) return; // answered and timed out at once: the answer came first
      isWaiting = false;
      this.#finishAttempt(call, outcome, this.#timeline.now - startedAt);
    };
    this.#server.attempt(
      () => isWaiting,
      (answer) => finish(answer === 'ok' ? 'ok' : 'busy'),
    );
    this.#timeline.scheduleAfter(sleepMs(ATTEMPT_TIMEOUT_S), () => finish('timeout'));
  }

  #finishAttempt(call: SimulatedCall, outcome: Outcome, rttMs: Millis): void {
    call.attempts++;
    this.#onAttempt(outcome, rttMs);
    const { layering } = this.#config;
    if (layering !== 'whole-call') this.#recordAttempt(outcome, rttMs);
    else if (outcome === 'ok') this.#recordAttempt(outcome, this.#timeline.now - call.startedAt);

    if (layering === 'per-attempt' || outcome === 'ok') this.#settle();
    if (outcome === 'ok') return;
    this.#timeline.scheduleAfter(sleepMs(this.#backoffS(call.attempts)), () => {
      if (layering === 'per-attempt') this.#permits.acquire(() => this.#startCall(call));
      else this.#attempt(call);
    });
  }

  #recordAttempt(outcome: Outcome, rttMs: Millis): void {
    if (outcome === 'ok') this.observedRtt.add(rttMs / 1000, this.#timeline.now);
    this.#policy.recordAttempt(this.#state, 0, outcome, rttMs);
  }

  /** The controller learns that it is over, then the permit is free. */
  #settle(): void {
    const { now } = this.#timeline;
    const { limit, inFlight } = this.status;
    this.inFlight.add(inFlight, now);
    const { meanMs, due } = this.#policy.currentWindow(this.#state, 0, now);
    if (due) {
      // Whole microseconds, divided once: the published figures are exact to the last digit.
      if (meanMs !== undefined) this.averagedRtt.add(Math.round(meanMs * 1000) / 1e6, now);
      this.limit.add(limit, now);
    }
    this.#policy.settle(this.#state, 0, { outcome: 'ignored', cost: 1, dueAt: now }, now);
    this.#permits.resize(limit, this.status.limit);
    this.#permits.release();
  }

  #backoffS(attempts: number): number {
    let [wait, next] = this.#config.backoff;
    for (let n = 1; n < attempts && wait < MAX_BACKOFF_S; n++) [wait, next] = [next, wait + next];
    return Math.min(wait, MAX_BACKOFF_S);
  }
}
