/**
 * Sinks with a character: what a sender meets in the field, small enough to know the best answer.
 *
 * Each scenario is one sink over a stretch of virtual time, for senders with an endless backlog. As
 * the sink's capacity is known at every instant, so is the most that anybody could have got through
 * it, and every result can be told as a part of that.
 *
 *     steady     ──────────────   200 at once: as fast for as many calls as `max` allows
 *     queue      20 at once       more than that wait their turn inside the sink
 *     rate       200/s            one call more is refused
 *     strict     200/s            one call more is refused, and counts all the same
 *     slow-down  ────▁▁▁▁────     the queue, four times as slow for 20 s
 *     uneven     ~^~_~^^~_~       the queue, service times all over the place
 *     outage     ────    ────     the queue, silent for 20 s
 */

import type { LoadResponse, ServerParams } from './suite.ts';

/** The stretch of a run that counts; the run ends with it. */
export interface ObservationWindow {
  readonly fromS: number;
  readonly toS: number;
}

export interface Scenario extends ObservationWindow {
  readonly name: ScenarioName;
  /** Told to whoever reads a table. */
  readonly description: string;
  /** The sink from each of these seconds on. */
  readonly stages: readonly Stage[];
}

export interface Stage {
  readonly fromS: number;
  readonly sink: ServerParams;
  /** Calls a second that can go through it. */
  readonly capacity: number;
}

/** What may be told of a scenario before it is made. */
export interface ScenarioOptions {
  /** How many times as large the sink is: room for several clients. Default 1. */
  readonly scale?: number;
  /** Part of the service time that, times an exponential random number, comes on top. Default 0.05. */
  readonly serviceJitter?: number;
  /** The stretch that counts, if it is another than the scenario's own. */
  readonly window?: ObservationWindow | undefined;
}

/** The policy's own `max`: one client alone never finds this sink's end. */
const MAX_LIMIT = 200;
const WORKERS = 20;
const RATE = 200;
const DELAY_S = 0.1;
const RATE_DELAY_S = 0.05;
const SLOWDOWN_FACTOR = 4;

/** No two answers of a real sink take exactly as long. */
export const DEFAULT_SERVICE_JITTER = 0.05;
const UNEVEN_SERVICE_JITTER = 1;

/** The incident, if there is one, and how long everything is watched. */
const INCIDENT_S = { from: 40, to: 60 };
const DEFAULT_WINDOW: ObservationWindow = { fromS: 20, toS: 80 };

const NO_LOAD_EFFECT: LoadResponse = {
  scale: 0,
  kneeStart: undefined,
  kneeExp: 1,
  limit: Infinity,
  action: 'defer',
};
const DROP_ALL: LoadResponse = { ...NO_LOAD_EFFECT, limit: 0, action: 'drop' };

type ScenarioBody = Pick<Scenario, 'description' | 'stages'> & Partial<Scenario>;

/** One maker each: how large, how rippled. */
const SCENARIO_BUILDERS = {
  steady: (size, ripple): ScenarioBody => ({
    description: `100 ms a call, up to ${MAX_LIMIT * size} at once`,
    stages: [stageOf(createSink({ workers: MAX_LIMIT * size, jitter: ripple }))],
    fromS: 0, // the climb is what is of interest
    toS: 60,
  }),
  queue: (size, ripple): ScenarioBody => ({
    description: `${WORKERS * size} at once, 100 ms each; more wait inside the sink`,
    stages: [queueStage(size, ripple)],
  }),
  rate: (size, ripple): ScenarioBody => ({
    description: `${RATE * size} calls a second, 50 ms each; more are refused`,
    stages: [rateLimitedStage(size, ripple, true)],
  }),
  strict: (size, ripple): ScenarioBody => ({
    description: `${RATE * size} calls a second, 50 ms each; refused ones count`,
    stages: [rateLimitedStage(size, ripple, false)],
  }),
  'slow-down': (size, ripple): ScenarioBody => ({
    description: `the queue, ${SLOWDOWN_FACTOR} times as slow from second 40 to 60`,
    stages: incidentStages(size, ripple, (usual) =>
      stageOf({ ...usual, delayS: DELAY_S * SLOWDOWN_FACTOR }),
    ),
  }),
  uneven: (size): ScenarioBody => ({
    description: 'the queue, each call 100 ms and a random time more',
    stages: [queueStage(size, UNEVEN_SERVICE_JITTER)],
  }),
  outage: (size, ripple): ScenarioBody => ({
    description: 'the queue, silent from second 40 to 60',
    stages: incidentStages(size, ripple, (sink) => ({
      fromS: 0,
      sink: { ...sink, byConcurrency: DROP_ALL },
      capacity: 0,
    })),
  }),
} satisfies Record<string, (size: number, ripple: number) => ScenarioBody>;

export type ScenarioName = keyof typeof SCENARIO_BUILDERS;
export const SCENARIOS = Object.keys(SCENARIO_BUILDERS) as readonly ScenarioName[];

export function createScenario(name: ScenarioName, setting: ScenarioOptions = {}): Scenario {
  const { scale = 1, serviceJitter = DEFAULT_SERVICE_JITTER, window = {} } = setting;
  return { name, ...DEFAULT_WINDOW, ...SCENARIO_BUILDERS[name](scale, serviceJitter), ...window };
}

const queueStage = (size: number, jitter: number): Stage =>
  stageOf(createSink({ workers: WORKERS * size, jitter }));

const stageOf = (sink: ServerParams): Stage => ({
  fromS: 0,
  sink,
  capacity: throughputOf(sink.workers ?? Infinity, sink),
});

function rateLimitedStage(size: number, jitter: number, forgives: boolean): Stage {
  const byRate = { ...NO_LOAD_EFFECT, limit: RATE * size };
  const sink = createSink({ delayS: RATE_DELAY_S, jitter, byRate, excludesRejected: forgives });
  return { fromS: 0, sink, capacity: RATE * size };
}

function incidentStages(
  size: number,
  ripple: number,
  bad: (usual: ServerParams) => Stage,
): Stage[] {
  const usual = queueStage(size, ripple);
  return [
    usual,
    { ...bad(usual.sink), fromS: INCIDENT_S.from },
    { ...usual, fromS: INCIDENT_S.to },
  ];
}

const createSink = (own: Partial<ServerParams>): ServerParams => ({
  delayS: DELAY_S,
  jitter: 0,
  failures: 0,
  failuresAfter: 0,
  byConcurrency: NO_LOAD_EFFECT,
  byRate: NO_LOAD_EFFECT,
  ...own,
});

/** So many at once, each taking its mean time; a sleep ends half a millisecond late on average. */
const throughputOf = (atOnce: number, { delayS, jitter }: ServerParams): number =>
  atOnce / (delayS * (1 + jitter) + 0.0005);

/** The most calls that can be completed while the scenario is watched. */
export function maxCompletable({ stages, fromS, toS }: Scenario): number {
  return stages.reduce((sum, { fromS: begin, capacity }, n) => {
    const end = Math.min(toS, stages[n + 1]?.fromS ?? toS);
    return sum + capacity * Math.max(0, end - Math.max(fromS, begin));
  }, 0);
}

/** When the last incident was over: what came after it is recovery. Nothing if there was none. */
export const recoveryStartS = ({ stages }: Scenario): number | undefined =>
  stages.length > 1 ? stages.at(-1)?.fromS : undefined;
