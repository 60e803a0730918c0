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

import type { Load, ServerParams } from './suite.ts';

/** The stretch of a run that counts; the run ends with it. */
export interface Watched {
  readonly fromS: number;
  readonly toS: number;
}

export interface Scenario extends Watched {
  readonly name: ScenarioName;
  /** Told to whoever reads a table. */
  readonly about: string;
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
export interface Setting {
  /** How many times as large the sink is: room for several clients. Default 1. */
  readonly size?: number;
  /** Part of the service time that, times an exponential random number, comes on top. Default 0.05. */
  readonly ripple?: number;
  /** The stretch that counts, if it is another than the scenario's own. */
  readonly watch?: Watched | undefined;
}

/** The policy's own `max`: one client alone never finds this sink's end. */
const LIMIT_MAX = 200;
const WORKERS = 20;
const RATE = 200;
const DELAY_S = 0.1;
const RATE_DELAY_S = 0.05;
const SLOWER = 4;

/** No two answers of a real sink take exactly as long. */
export const RIPPLE = 0.05;
const UNEVEN = 1;

/** The incident, if there is one, and how long everything is watched. */
const INCIDENT_S = { from: 40, to: 60 };
const WATCHED: Watched = { fromS: 20, toS: 80 };

const FREE: Load = { scale: 0, kneeStart: undefined, kneeExp: 1, limit: Infinity, action: 'defer' };
const SILENT: Load = { ...FREE, limit: 0, action: 'drop' };

type Part = Pick<Scenario, 'about' | 'stages'> & Partial<Scenario>;

/** One maker each: how large, how rippled. */
const MAKERS = {
  steady: (size, ripple): Part => ({
    about: `100 ms a call, up to ${LIMIT_MAX * size} at once`,
    stages: [queueOf(sinkOf({ workers: LIMIT_MAX * size, jitter: ripple }))],
    fromS: 0, // the climb is what is of interest
    toS: 60,
  }),
  queue: (size, ripple): Part => ({
    about: `${WORKERS * size} at once, 100 ms each; more wait inside the sink`,
    stages: [queue(size, ripple)],
  }),
  rate: (size, ripple): Part => ({
    about: `${RATE * size} calls a second, 50 ms each; more are refused`,
    stages: [rated(size, ripple, true)],
  }),
  strict: (size, ripple): Part => ({
    about: `${RATE * size} calls a second, 50 ms each; refused ones count`,
    stages: [rated(size, ripple, false)],
  }),
  'slow-down': (size, ripple): Part => ({
    about: `the queue, ${SLOWER} times as slow from second 40 to 60`,
    stages: incident(size, ripple, (usual) => queueOf({ ...usual, delayS: DELAY_S * SLOWER })),
  }),
  uneven: (size): Part => ({
    about: 'the queue, each call 100 ms and a random time more',
    stages: [queue(size, UNEVEN)],
  }),
  outage: (size, ripple): Part => ({
    about: 'the queue, silent from second 40 to 60',
    stages: incident(size, ripple, (sink) => ({
      fromS: 0,
      sink: { ...sink, byLevel: SILENT },
      capacity: 0,
    })),
  }),
} satisfies Record<string, (size: number, ripple: number) => Part>;

export type ScenarioName = keyof typeof MAKERS;
export const SCENARIOS = Object.keys(MAKERS) as readonly ScenarioName[];

export function scenario(name: ScenarioName, setting: Setting = {}): Scenario {
  const { size = 1, ripple = RIPPLE, watch = {} } = setting;
  return { name, ...WATCHED, ...MAKERS[name](size, ripple), ...watch };
}

const queue = (size: number, jitter: number): Stage =>
  queueOf(sinkOf({ workers: WORKERS * size, jitter }));

const queueOf = (sink: ServerParams): Stage => ({
  fromS: 0,
  sink,
  capacity: perSecond(sink.workers ?? Infinity, sink),
});

function rated(size: number, jitter: number, forgives: boolean): Stage {
  const byRate = { ...FREE, limit: RATE * size };
  const sink = sinkOf({ delayS: RATE_DELAY_S, jitter, byRate, forgives });
  return { fromS: 0, sink, capacity: RATE * size };
}

function incident(size: number, ripple: number, bad: (usual: ServerParams) => Stage): Stage[] {
  const usual = queue(size, ripple);
  return [
    usual,
    { ...bad(usual.sink), fromS: INCIDENT_S.from },
    { ...usual, fromS: INCIDENT_S.to },
  ];
}

const sinkOf = (own: Partial<ServerParams>): ServerParams => ({
  delayS: DELAY_S,
  jitter: 0,
  failures: 0,
  failuresAfter: 0,
  byLevel: FREE,
  byRate: FREE,
  ...own,
});

/** So many at once, each taking its mean time; a sleep ends half a millisecond late on average. */
const perSecond = (atOnce: number, { delayS, jitter }: ServerParams): number =>
  atOnce / (delayS * (1 + jitter) + 0.0005);

/** The most calls that can be completed while the scenario is watched. */
export function bestOf({ stages, fromS, toS }: Scenario): number {
  return stages.reduce((sum, { fromS: begin, capacity }, n) => {
    const end = Math.min(toS, stages[n + 1]?.fromS ?? toS);
    return sum + capacity * Math.max(0, end - Math.max(fromS, begin));
  }, 0);
}

/** When the last incident was over: what came after it is recovery. Nothing if there was none. */
export const recoveryFrom = ({ stages }: Scenario): number | undefined =>
  stages.length > 1 ? stages.at(-1)?.fromS : undefined;
