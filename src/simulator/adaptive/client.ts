/**
 * The simulated client: one sender with the production rule aimd and unlimited retries.
 *
 * The position of the limiter among the layers decides what it measures:
 *
 *     per-attempt         retry( limiter( timeout( server )))              a permit and a timing per attempt
 *     whole-call          limiter( retry( timeout( server )))              a permit and a timing per call
 *     measured-attempts   limiter( retry( measure( timeout( server ))))    a permit per call, a timing per attempt
 */

import type { Millis } from '../../core/clock.ts';
import type { Outcome } from '../../core/decision.ts';
import type { Random } from '../../core/random.ts';
import { type AimdPolicy, aimd } from '../../policies/aimd.ts';
import { concurrency } from '../../policies/concurrency.ts';
import type { State } from '../../policies/policy.ts';
import type { Timeline } from '../timeline.ts';
import { LevelFigures, ValueFigures } from './figures.ts';
import { PermitQueue } from './permits.ts';
import { type Server, sleepMs } from './server.ts';
import type { Case, Suite } from './suite.ts';

const ATTEMPT_TIMEOUT_S = 1;
const MAX_BACKOFF_S = 30;

/** One call, with all its attempts. */
interface SimulatedCall {
  startedAt: Millis;
  attempts: number;
}

export type ClientConfig = Pick<Suite, 'layering' | 'backoff'> & Pick<Case, 'limit'>;

/** Called at the end of every attempt, with any outcome. */
export type AttemptObserver = (outcome: Outcome, rttMs: Millis) => void;

export class Client {
  readonly inFlight = new LevelFigures();
  readonly limit = new LevelFigures();
  readonly observedRtt = new ValueFigures();
  readonly averagedRtt = new ValueFigures();

  readonly #config: ClientConfig;
  readonly #timeline: Timeline;
  readonly #server: Server;
  readonly #policy: AimdPolicy;
  readonly #state: State;
  readonly #permits: PermitQueue;
  readonly #onAttempt: AttemptObserver;
  #backlog = 0;
  #isSending = false;

  constructor(
    config: ClientConfig,
    timeline: Timeline,
    server: Server,
    random: Random,
    onAttempt: AttemptObserver = () => {},
  ) {
    this.#config = config;
    this.#timeline = timeline;
    this.#server = server;
    this.#onAttempt = onAttempt;
    const { limit } = config;
    this.#policy =
      'concurrency' in limit ? concurrency(limit.concurrency, random) : aimd(limit, random);
    this.#state = new Float64Array(this.#policy.width);
    this.#policy.init(this.#state, 0, timeline.now);
    this.#permits = new PermitQueue(this.status.limit);
  }

  /** Adds calls to the backlog; `Infinity` for an endless backlog. */
  enqueue(count = 1): void {
    this.#backlog += count;
  }

  /** Runs the sender and all calls with a new permit. Called at the end of every instant. */
  runPending(): void {
    this.#sendNext();
    this.#permits.runGranted();
  }

  get status(): { limit: number; inFlight: number } {
    const { limit = 0, inFlight = 0 } = this.#policy.keyState(this.#state, 0, this.#timeline.now);
    return { limit, inFlight };
  }

  /** The sender queues one call at a time: the next one when this one has its permit. */
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

  /** Uses a permit: for one attempt, or for a call with all its attempts. */
  #startCall(call: SimulatedCall): void {
    call.startedAt = this.#timeline.now;
    this.inFlight.add(this.status.inFlight, this.#timeline.now);
    const { verdict } = this.#policy.check(this.#state, 0, 1, this.#timeline.now);
    if (verdict !== 'allow') throw new Error('expected the policy to allow a granted permit');
    this.#attempt(call);
  }

  #attempt(call: SimulatedCall): void {
    const startedAt = this.#timeline.now;
    let isWaiting = true;
    const finish = (outcome: Outcome): void => {
      if (!isWaiting) return; // a reply and a timeout at the same instant: the reply came first
      isWaiting = false;
      this.#finishAttempt(call, outcome, this.#timeline.now - startedAt);
    };
    this.#server.attempt(
      () => isWaiting,
      (reply) => finish(reply === 'ok' ? 'ok' : 'busy'),
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

  /** Records the end in the policy, then releases the permit. */
  #settle(): void {
    const { now } = this.#timeline;
    const { limit, inFlight } = this.status;
    this.inFlight.add(inFlight, now);
    const { meanMs, due } = this.#policy.currentWindow(this.#state, 0, now);
    if (due) {
      // Whole microseconds, divided once: matches the published figures to the last digit.
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
