/**
 * Several clients of one server, each with its own adaptive limit and an endless backlog.
 *
 *     client 1 ─ limit ─┐
 *     client 2 ─ limit ─┼─▶ server ─▶ replies, refusals, timeouts
 *     client n ─ limit ─┘
 *
 * Clients do not communicate: they affect each other through round-trip times and refusals only. A single client is a
 * fleet of one, so every cell of a sweep is such a run.
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

/** Sampling interval of the limits: about one round trip. */
export const SAMPLE_MS = 100;
const SAMPLES_PER_S = 1000 / SAMPLE_MS;

/** Fraction of the capacity that counts as converged. */
const CONVERGED_FRACTION = 0.9;

/** Distance between the seeds of clients. The server's random numbers do not depend on the number of clients. */
const SEED_STRIDE = 7919;

export interface FleetConfig {
  readonly scenario: Scenario;
  readonly limit: ClientLimit;
  readonly clients: number;
  readonly seed: number;
}

/** The results of a run, over attempts that end within the window. `Infinity` is never, `NaN` is undefined. */
export interface FleetFigures {
  /** Completed calls per second, of all clients. */
  readonly perSecond: number;
  /** Completed calls relative to the maximum throughput. */
  readonly utilisation: number;
  /** Fraction of attempts that were refused or timed out. */
  readonly rejected: number;
  /** Latency of successful attempts. */
  readonly meanMs: Millis;
  readonly p95Ms: Millis;
  readonly p99Ms: Millis;
  /** Mean of the sum of all limits. */
  readonly limit: number;
  /** Ramp-up: seconds from the start until a whole second ran at 90 % of the capacity. */
  readonly convergenceS: number;
  /** Recovery: `convergenceS` from the end of the incident, if there was one. */
  readonly recoveryS: number;
  /** Mean pairwise correlation of the changes of the clients' limits. */
  readonly limitCorrelation: number;
  /** Standard deviation over mean of the calls in flight of all clients. */
  readonly oscillation: number;
  /** Jain's fairness index of the clients' completed calls. */
  readonly fairness: number;
}

export interface FleetRun {
  readonly figures: FleetFigures;
  /** Sum of all limits, once per `SAMPLE_MS` from the start. */
  readonly limits: readonly number[];
  /** Completed calls of all clients per `SAMPLE_MS`. */
  readonly completed: readonly number[];
}

interface FleetMember {
  readonly client: Client;
  readonly limits: number[];
  completed: number;
}

export function runFleet({ scenario, limit, clients, seed }: FleetConfig): FleetRun {
  const timeline = new Timeline();
  const server = new Server(scenario.stages[0].sink, timeline, seededRandom(seed));
  const recorder = new RunRecorder(timeline, scenario);
  const members = Array.from({ length: clients }, (_, n): FleetMember => {
    const random = seededRandom(seed + SEED_STRIDE * (n + 1));
    const onAttempt = (outcome: Outcome, rttMs: Millis) => recorder.record(member, outcome, rttMs);
    const client = new Client({ ...CLIENT_DEFAULTS, limit }, timeline, server, random, onAttempt);
    const member: FleetMember = { client, limits: [], completed: 0 };
    return member;
  });

  for (const { fromS, sink } of scenario.stages.slice(1)) {
    timeline.scheduleAfter(fromS * 1000, () => server.reconfigure(sink));
  }
  samplePeriodically(timeline, () => recorder.sample(members));
  for (const { client } of members) client.enqueue(Infinity);
  do {
    for (const { client } of members) client.runPending();
  } while (timeline.runNextInstant() && timeline.now <= scenario.toS * 1000);
  return recorder.result(members);
}

/** The recommended layering: a permit per attempt. */
const CLIENT_DEFAULTS = { layering: 'per-attempt', backoff: [1, 1] } as const;

function samplePeriodically(timeline: Timeline, sample: () => void): void {
  sample();
  timeline.scheduleAfter(SAMPLE_MS, () => samplePeriodically(timeline, sample));
}

/** Collects samples during a run and computes the figures. */
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
    const statuses = members.map(({ client }) => client.status);
    members.forEach(({ limits }, n) => {
      limits.push(statuses[n].limit);
    });
    this.#limits.push(sum(statuses.map(({ limit }) => limit)));
    this.#inFlight.push(sum(statuses.map(({ inFlight }) => inFlight)));
    if (this.#timeline.now > 0) this.#completed.push(this.#completedSinceSample);
    this.#completedSinceSample = 0;
  }

  result(members: readonly FleetMember[]): FleetRun {
    const { fromS, toS } = this.#scenario;
    const from = fromS * SAMPLES_PER_S;
    const counts = members.map(({ completed }) => completed);
    const recovery = recoveryStartS(this.#scenario);
    const maxCompleted = maxCompletable(this.#scenario);
    const figures: FleetFigures = {
      perSecond: sum(counts) / (toS - fromS),
      utilisation: maxCompleted > 0 ? sum(counts) / maxCompleted : Number.NaN,
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

  /** Seconds from `beginS` until a whole second ran at 90 % of the capacity at `beginS`. */
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

/** Changes between samples. Levels are unsuitable: two limits that both grow for a minute correlate in any case. */
const differences = (limits: readonly number[]): number[] =>
  limits.slice(1).map((limit, n) => limit - limits[n]);
