/**
 * Several senders on one sink, all with an endless backlog, each with its own adaptive limit.
 *
 *     client 1 ─ limit ─┐
 *     client 2 ─ limit ─┼─▶ sink ─▶ answers, refusals, silence
 *     client n ─ limit ─┘
 *
 * They know nothing of each other: what one does, the others feel in their round-trip times. A
 * fleet of one is the plain case, so every sweep is made of these runs.
 */

import type { Millis } from '../../core/clock.ts';
import type { Outcome } from '../../core/decision.ts';
import { seededRandom } from '../../core/random.ts';
import { jainIndex, mean, meanPairwiseCorrelation, standardDeviation, sum } from '../statistics.ts';
import { Timeline } from '../timeline.ts';
import { Client } from './client.ts';
import { DurationHistogram } from './durations.ts';
import { maxCompletable, recoveryStartS, type Scenario } from './scenario.ts';
import { Server } from './server.ts';
import type { ClientLimit } from './suite.ts';

/** How often everybody's limit is read: about once per round trip. */
export const SAMPLE_MS = 100;
const SAMPLES_PER_S = 1000 / SAMPLE_MS;

/** What part of the capacity counts as having arrived. */
const CONVERGED_FRACTION = 0.9;

/** A far seed for each client: the sink's dice stay the same however many clients there are. */
const SEED_STRIDE = 7919;

export interface FleetConfig {
  readonly scenario: Scenario;
  readonly limit: ClientLimit;
  readonly clients: number;
  readonly seed: number;
}

/**
 * What a run comes to. Counted is what ends while the scenario is watched; `Infinity` is never, and
 * `NaN` is what has no meaning there.
 */
export interface FleetFigures {
  /** Completed calls a second, of all clients. */
  readonly perSecond: number;
  /** The same as a part of the most there could have been. */
  readonly utilisation: number;
  /** Part of the attempts that were refused, or not answered within their second. */
  readonly rejected: number;
  /** How long successful attempts took, from their start to their answer. */
  readonly meanMs: Millis;
  readonly p95Ms: Millis;
  readonly p99Ms: Millis;
  /** The mean of the limits of all clients together. */
  readonly limit: number;
  /** Seconds from the start until a whole second ran at nine tenths of the capacity. */
  readonly convergenceS: number;
  /** The same from the end of the incident on, if there was one. */
  readonly recoveryS: number;
  /** Mean correlation of the steps that the clients' limits take: 1 is a march, 0 is a crowd. */
  readonly limitCorrelation: number;
  /** How much the calls in flight of all clients go up and down: deviation over mean. */
  readonly oscillation: number;
  /** Jain's index over the clients' completed calls: 1 is fair, 1/n is all to one. */
  readonly fairness: number;
}

export interface FleetRun {
  readonly figures: FleetFigures;
  /** The limits of all clients together, once per `SAMPLE_MS` from the start. */
  readonly limits: readonly number[];
  /** Completed calls of all clients in each of these stretches. */
  readonly completed: readonly number[];
}

/** One sender and what is noted of it. */
interface FleetMember {
  readonly client: Client;
  readonly limits: number[];
  completed: number;
}

export function runFleet({ scenario, limit, clients, seed }: FleetConfig): FleetRun {
  const timeline = new Timeline();
  const server = new Server(scenario.stages[0].sink, timeline, seededRandom(seed));
  const log = new RunRecorder(timeline, scenario);
  const members = Array.from({ length: clients }, (_, n): FleetMember => {
    const random = seededRandom(seed + SEED_STRIDE * (n + 1));
    const watch = (outcome: Outcome, rttMs: Millis) => log.record(member, outcome, rttMs);
    const client = new Client({ ...CLIENT_DEFAULTS, limit }, timeline, server, random, watch);
    const member: FleetMember = { client, limits: [], completed: 0 };
    return member;
  });

  for (const { fromS, sink } of scenario.stages.slice(1)) {
    timeline.scheduleAfter(fromS * 1000, () => server.reconfigure(sink));
  }
  samplePeriodically(timeline, () => log.sample(members));
  for (const { client } of members) client.enqueue(Infinity);
  do {
    for (const { client } of members) client.runPending();
  } while (timeline.runNextInstant() && timeline.now <= scenario.toS * 1000);
  return log.result(members);
}

/** Each attempt is judged on its own, which is how a limit should be used. */
const CLIENT_DEFAULTS = { layering: 'per-attempt', backoff: [1, 1] } as const;

function samplePeriodically(timeline: Timeline, sample: () => void): void {
  sample();
  timeline.scheduleAfter(SAMPLE_MS, () => samplePeriodically(timeline, sample));
}

/** What is noted while they run, and what it comes to. */
class RunRecorder {
  readonly #timeline: Timeline;
  readonly #scenario: Scenario;
  readonly #rtts = new DurationHistogram();
  readonly #limits: number[] = [];
  readonly #inFlight: number[] = [];
  readonly #completed: number[] = [];
  #completedSinceSample = 0;
  #ended = 0;
  #rejected = 0;

  constructor(timeline: Timeline, scenario: Scenario) {
    this.#timeline = timeline;
    this.#scenario = scenario;
  }

  record(member: FleetMember, outcome: Outcome, rttMs: Millis): void {
    if (outcome === 'ok') this.#completedSinceSample++;
    if (this.#timeline.now < this.#scenario.fromS * 1000) return;
    this.#ended++;
    if (outcome === 'ok') {
      member.completed++;
      this.#rtts.add(rttMs);
    } else {
      this.#rejected++;
    }
  }

  sample(members: readonly FleetMember[]): void {
    const views = members.map(({ client }) => client.status);
    members.forEach(({ limits }, n) => {
      limits.push(views[n].limit);
    });
    this.#limits.push(sum(views.map(({ limit }) => limit)));
    this.#inFlight.push(sum(views.map(({ inFlight }) => inFlight)));
    if (this.#timeline.now > 0) this.#completed.push(this.#completedSinceSample);
    this.#completedSinceSample = 0;
  }

  result(members: readonly FleetMember[]): FleetRun {
    const { fromS, toS } = this.#scenario;
    const from = fromS * SAMPLES_PER_S;
    const counts = members.map(({ completed }) => completed);
    const recovery = recoveryStartS(this.#scenario);
    const best = maxCompletable(this.#scenario);
    const figures: FleetFigures = {
      perSecond: sum(counts) / (toS - fromS),
      utilisation: best > 0 ? sum(counts) / best : Number.NaN,
      rejected: this.#ended === 0 ? 0 : this.#rejected / this.#ended,
      ...this.#rtts.figures(),
      limit: mean(this.#limits.slice(from)),
      convergenceS: this.#convergenceAfter(0),
      recoveryS: recovery === undefined ? Number.NaN : this.#convergenceAfter(recovery),
      limitCorrelation: meanPairwiseCorrelation(
        members.map(({ limits }) => differences(limits.slice(from))),
      ),
      oscillation: standardDeviation(this.#inFlight.slice(from)) / mean(this.#inFlight.slice(from)),
      fairness: jainIndex(counts),
    };
    return { figures, limits: this.#limits, completed: this.#completed };
  }

  /** How long after this second a whole second ran at nine tenths of what the sink can do then. */
  #convergenceAfter(beginS: number): number {
    const { stages } = this.#scenario;
    const { capacity } = stages.findLast(({ fromS }) => fromS <= beginS) ?? stages[0];
    const begin = beginS * SAMPLES_PER_S;
    for (let end = begin + SAMPLES_PER_S; end <= this.#completed.length; end++) {
      const second = sum(this.#completed.slice(end - SAMPLES_PER_S, end));
      if (second >= CONVERGED_FRACTION * capacity) return (end - begin) / SAMPLES_PER_S;
    }
    return Infinity;
  }
}

/**
 * What a limit gained or lost from one sample to the next. The levels themselves would not do: two
 * limits that both climb for a minute look alike, though they need not move at the same moments.
 */
const differences = (limits: readonly number[]): number[] =>
  limits.slice(1).map((limit, n) => limit - limits[n]);
