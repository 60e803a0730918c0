/**
 * Simulated servers for sweeps of the adaptive limit.
 *
 * A scenario is one server over a period of virtual time; its clients have an endless backlog. The server's capacity is
 * known at every instant, so results are relative to the maximum throughput.
 *
 *     steady     ──────────────   200 at once, the default of `max`: constant latency
 *     queue      20 at once       more calls wait inside the sink
 *     rate       200/s            more calls are refused
 *     strict     200/s            more calls are refused, and refused calls count
 *     slow-down  ────▁▁▁▁────     the queue, four times as slow for 20 s
 *     uneven     ~^~_~^^~_~       the queue, with highly variable service times
 *     outage     ────    ────     the queue, no replies for 20 s
 */

import type { LoadResponse, ServerParams } from './suite.ts';

/** The measured part of a run; the run ends with it. */
export interface ObservationWindow {
  readonly fromS: number;
  readonly toS: number;
}

export interface Scenario extends ObservationWindow {
  readonly name: ScenarioName;
  /** One line above a table. */
  readonly description: string;
  /** The server over time. */
  readonly stages: readonly Stage[];
}

export interface Stage {
  readonly fromS: number;
  readonly sink: ServerParams;
  /** Maximum throughput in calls per second. */
  readonly capacity: number;
}

export interface ScenarioOptions {
  /** Capacity factor of the server, for several clients. Default 1. */
  readonly scale?: number;
  /** Variation of service times: this fraction times an exponential random number is added. Default 0.05. */
  readonly serviceJitter?: number;
  /** Overrides the scenario's own window. */
  readonly window?: ObservationWindow | undefined;
}

/** The default `max` of the policy: the limit of a single client stays below this server's capacity. */
const MAX_LIMIT = 200;
const WORKERS = 20;
const RATE = 200;
const DELAY_S = 0.1;
const RATE_DELAY_S = 0.05;
const SLOWDOWN_FACTOR = 4;

/** Service times of a real server are never constant. */
export const DEFAULT_SERVICE_JITTER = 0.05;
const UNEVEN_SERVICE_JITTER = 1;

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

const SCENARIO_BUILDERS = {
  steady: (size, jitter) => ({
    description: `100 ms per call, up to ${MAX_LIMIT * size} at once`,
    stages: [stageOf(createSink({ workers: MAX_LIMIT * size, jitter }))],
    fromS: 0, // measures the ramp-up
    toS: 60,
  }),
  queue: (size, jitter) => ({
    description: `${WORKERS * size} at once, 100 ms each; more wait inside the sink`,
    stages: [queueStage(size, jitter)],
  }),
  rate: (size, jitter) => ({
    description: `${RATE * size} calls per second, 50 ms each; more are refused`,
    stages: [rateLimitedStage(size, jitter, true)],
  }),
  strict: (size, jitter) => ({
    description: `${RATE * size} calls per second, 50 ms each; refused calls count`,
    stages: [rateLimitedStage(size, jitter, false)],
  }),
  'slow-down': (size, jitter) => ({
    description: `the queue, ${SLOWDOWN_FACTOR} times as slow from second 40 to 60`,
    stages: incidentStages(size, jitter, (sink) =>
      stageOf({ ...sink, delayS: DELAY_S * SLOWDOWN_FACTOR }),
    ),
  }),
  uneven: (size) => ({
    description: 'the queue; each call takes 100 ms plus a random time',
    stages: [queueStage(size, UNEVEN_SERVICE_JITTER)],
  }),
  outage: (size, jitter) => ({
    description: 'the queue, no replies from second 40 to 60',
    stages: incidentStages(size, jitter, (sink) => ({
      fromS: 0,
      sink: { ...sink, byConcurrency: DROP_ALL },
      capacity: 0,
    })),
  }),
} satisfies Record<string, (size: number, jitter: number) => ScenarioBody>;

export type ScenarioName = keyof typeof SCENARIO_BUILDERS;
export const SCENARIOS = Object.keys(SCENARIO_BUILDERS) as readonly ScenarioName[];

export function createScenario(name: ScenarioName, options: ScenarioOptions = {}): Scenario {
  const { scale = 1, serviceJitter = DEFAULT_SERVICE_JITTER, window = {} } = options;
  return { name, ...DEFAULT_WINDOW, ...SCENARIO_BUILDERS[name](scale, serviceJitter), ...window };
}

const queueStage = (size: number, jitter: number): Stage =>
  stageOf(createSink({ workers: WORKERS * size, jitter }));

const stageOf = (sink: ServerParams): Stage => ({
  fromS: 0,
  sink,
  capacity: throughputOf(sink.workers ?? Infinity, sink),
});

function rateLimitedStage(size: number, jitter: number, excludesRejected: boolean): Stage {
  const byRate = { ...NO_LOAD_EFFECT, limit: RATE * size };
  const sink = createSink({ delayS: RATE_DELAY_S, jitter, byRate, excludesRejected });
  return { fromS: 0, sink, capacity: RATE * size };
}

function incidentStages(
  size: number,
  jitter: number,
  incident: (sink: ServerParams) => Stage,
): Stage[] {
  const normal = queueStage(size, jitter);
  return [
    normal,
    { ...incident(normal.sink), fromS: INCIDENT_S.from },
    { ...normal, fromS: INCIDENT_S.to },
  ];
}

const createSink = (params: Partial<ServerParams>): ServerParams => ({
  delayS: DELAY_S,
  jitter: 0,
  failures: 0,
  failuresAfter: 0,
  byConcurrency: NO_LOAD_EFFECT,
  byRate: NO_LOAD_EFFECT,
  ...params,
});

/** Workers over the mean service time; a sleep ends half a millisecond late on average. */
const throughputOf = (atOnce: number, { delayS, jitter }: ServerParams): number =>
  atOnce / (delayS * (1 + jitter) + 0.0005);

/** The most calls that can be completed within the window. */
export function maxCompletable({ stages, fromS, toS }: Scenario): number {
  return stages.reduce((sum, { fromS: begin, capacity }, n) => {
    const end = Math.min(toS, stages[n + 1]?.fromS ?? toS);
    return sum + capacity * Math.max(0, end - Math.max(fromS, begin));
  }, 0);
}

/** End of the incident and start of the recovery; undefined without an incident. */
export const recoveryStartS = ({ stages }: Scenario): number | undefined =>
  stages.length > 1 ? stages.at(-1)?.fromS : undefined;
