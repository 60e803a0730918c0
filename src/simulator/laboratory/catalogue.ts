/** The sinks of the laboratory. Every sink is behind a network with a round trip of 1 ms unless it says otherwise. */

import type { Millis } from '../../core/clock.ts';
import { HUNG, LOSSY, REFUSING } from './catalogue-faults.ts';
import { SHARED } from './catalogue-shared.ts';
import {
  autoscaled,
  balanced,
  onCores,
  quadraticContention,
  queueServer,
  streaming,
  universalScalability,
} from './servers.ts';
import {
  cached,
  constant,
  exponential,
  logNormal,
  mixture,
  pausing,
  scaled,
} from './service-times.ts';
import type { Arrivals, Sink } from './sink.ts';
import {
  bursts,
  type Details,
  isWithin,
  MM20,
  MS_100,
  poisson,
  queue,
  STEADY_20,
  sharing,
  sink,
  steadyQueue,
} from './sinks.ts';

/** Changes at 25 s, and back at 45 s. */
const INCIDENT = { fromMs: 25_000, toMs: 45_000 };
const isIncident = (now: Millis): boolean => isWithin(INCIDENT.fromMs, INCIDENT.toMs, now);

const incident = (during: Sink, after: Sink): Details => ({
  durationMs: 70_000,
  changes: [
    { atMs: INCIDENT.fromMs, becomes: during },
    { atMs: INCIDENT.toMs, becomes: after },
  ],
});
const LONG: Details = { durationMs: 70_000 };

/** 0 until `fromMs`, 1 from `toMs` on. */
const rampOf = (now: Millis, fromMs: Millis, toMs: Millis): number =>
  Math.min(1, Math.max(0, (now - fromMs) / (toMs - fromMs)));

/** From 20 s to 30 s no call arrives; otherwise twice as many as 20 workers can serve. */
const silenceArrivals: Arrivals = (_random, now) =>
  isWithin(20_000, 30_000, now) ? { waitMs: 30_000 - now, count: 0 } : { waitMs: 10, count: 4 };

const STEADY: readonly Sink[] = [
  sink('steady', 'mm1', 'M/M/1: 1 worker, 20 ms', queue(1, exponential(20))),
  sink('steady', 'mm5', 'M/M/5: 5 workers, 50 ms', queue(5, exponential(50))),
  STEADY_20,
  sink('steady', 'mm200', 'M/M/200: 200 workers, 100 ms', queue(200, MS_100)),
  sink('steady', 'sharing', 'processor sharing on 20 cores, 100 ms', sharing(onCores(20), MS_100)),
  sink(
    'steady',
    'knee',
    'no queue; beyond 20 calls contention grows by the square',
    sharing(quadraticContention(20, 4), MS_100),
  ),
  sink('steady', 'far', 'M/M/20 behind a network of 200 ms', MM20, { roundTrip: constant(200) }),
  sink('steady', 'farther', 'M/M/20 behind two hops, 400 ms with jitter', MM20, {
    roundTrip: (random, now) => 350 + exponential(25)(random, now) + exponential(25)(random, now),
  }),
  sink(
    'steady',
    'usl',
    'Universal Scalability Law, 20 ms, most throughput at 44 calls',
    sharing(universalScalability(0.02, 0.0005), exponential(20)),
  ),
];

const CHANGING: readonly Sink[] = [
  sink(
    'changing',
    'halved',
    '20 workers, 10 from second 25 to 45',
    queue((now) => (isIncident(now) ? 10 : 20), MS_100),
    incident(steadyQueue(10, 100), STEADY_20),
  ),
  sink(
    'changing',
    'slower',
    '20 workers; calls take 3 times as long in seconds 25 to 45',
    queue(
      20,
      scaled(MS_100, (now) => (isIncident(now) ? 3 : 1)),
    ),
    incident(steadyQueue(20, 300), STEADY_20),
  ),
  sink(
    'changing',
    'drift',
    '20 workers; calls take 1 % longer every second',
    queue(
      20,
      scaled(MS_100, (now) => 1.01 ** (now / 1000)),
    ),
    LONG,
  ),
  sink(
    'changing',
    'pauses',
    '20 workers that stand still for 0.8 s every 8 s',
    queue(20, pausing(8000, 800, MS_100)),
    LONG,
  ),
  sink(
    'changing',
    'collections',
    '20 workers that stand still for 0.2 s every 2 s',
    queue(20, pausing(2000, 200, MS_100)),
    LONG,
  ),
  sink('changing', 'jitter', '20 workers; network of 30 ms plus 30 ms of random time', MM20, {
    roundTrip: (random, now) => 30 + exponential(30)(random, now),
  }),
  sink(
    'changing',
    'cold',
    'cold start: 5 workers, 5 more every second, up to 100',
    queue((now) => Math.min(100, 5 + now / 200), MS_100),
    { ...LONG, measureFromMs: 5000 },
  ),
  sink(
    'changing',
    'silence',
    '20 workers; no traffic from second 20 to 30, then 8 workers',
    queue((now) => (now < 30_000 ? 20 : 8), MS_100),
    { arrivals: silenceArrivals, maxBacklog: 50, ...LONG, measureFromMs: 30_000 },
  ),
  sink(
    'changing',
    'doubled',
    '20 workers, 40 from second 30 on',
    queue((now) => (now < 30_000 ? 20 : 40), MS_100),
    { ...LONG, changes: [{ atMs: 30_000, becomes: steadyQueue(40, 100) }] },
  ),
  sink(
    'changing',
    'sawtooth',
    'workers grow from 10 to 40 in 15 s, then fall to 10 at once',
    queue((now) => 10 + Math.floor((30 * (now % 15_000)) / 15_000), MS_100),
    { durationMs: 75_000 },
  ),
  sink(
    'changing',
    'autoscaled',
    '10 to 60 workers, a tenth more for every second of high load',
    (simulation) => queueServer(simulation, { workers: autoscaled(10, 60), service: MS_100 }),
    LONG,
  ),
  sink(
    'changing',
    'background',
    '20 workers; other jobs take half of them, 3 s of every 10 s',
    queue((now) => (now % 10_000 < 3000 ? 10 : 20), MS_100),
    LONG,
  ),
  sink(
    'changing',
    'cache',
    '20 workers; cache hit 40 ms, miss 200 ms; emptied every 20 s',
    (simulation) =>
      queueServer(simulation, {
        workers: 20,
        service: cached(exponential(40), exponential(200), 20_000),
      }),
    { durationMs: 80_000, measureFromMs: 20_000 },
  ),
  sink(
    'changing',
    'falling',
    '26 workers, one less every 2.4 s until one is left',
    queue((now) => 26 - Math.floor(25 * rampOf(now, 15_000, 75_000)), MS_100),
    { durationMs: 90_000, measureFromMs: 10_000 },
  ),
  ...[2, 3].map((times) =>
    sink(
      'changing',
      `times-${times}`,
      `20 workers, exactly 100 ms; ${times} times as long from second 25 on`,
      queue(
        20,
        scaled(constant(100), (now) => (now < 25_000 ? 1 : times)),
      ),
      LONG,
    ),
  ),
  ...[50, 100, 500].map((ms) =>
    sink(
      'changing',
      `path-${ms}`,
      `M/M/20; the path grows by ${ms} ms from second 20 to 80`,
      MM20,
      {
        roundTrip: (_random, now) => 1 + ms * rampOf(now, 20_000, 80_000),
        durationMs: 120_000,
        measureFromMs: 20_000,
      },
    ),
  ),
  sink('changing', 'detour', 'M/M/20; the path is 100 ms longer in seconds 25 to 45', MM20, {
    roundTrip: (_random, now) => (isIncident(now) ? 101 : 1),
    ...LONG,
  }),
  sink('changing', 'flood', 'M/M/20; 5 calls a second for a minute, then 1,000', MM20, {
    arrivals: poisson((now) => (now < 60_000 ? 5 : 1000)),
    maxBacklog: 200,
    durationMs: 80_000,
    measureFromMs: 60_000,
  }),
  sink('changing', 'step', 'M/M/20; load 60 %, from second 30 on 140 %', MM20, {
    arrivals: poisson((now) => (now < 30_000 ? 120 : 280)),
    maxBacklog: 50,
    ...LONG,
  }),
];

const OTHER: readonly Sink[] = [
  sink('other', 'deterministic', 'M/D/20: 20 workers, exactly 100 ms', queue(20, constant(100))),
  sink('other', 'lognormal', '20 workers, 100 ms with a heavy tail', queue(20, logNormal(100, 1))),
  sink(
    'other',
    'mixed',
    '20 workers; 90 % of the calls take 30 ms, 10 % take 500 ms',
    queue(20, mixture(0.9, exponential(30), exponential(500))),
  ),
  sink('other', 'bursty', '20 workers at 80 % load, in bursts', MM20, {
    arrivals: bursts(80, 160),
  }),
  sink('other', 'light', '20 workers at 50 % load: the limit is never needed', MM20, {
    arrivals: poisson(() => 100),
  }),
  sink('other', 'sine', '20 workers; load from 20 % to 110 % and back in 30 s', MM20, {
    arrivals: poisson((now) => 130 * (1 + 0.7 * Math.sin((2 * Math.PI * now) / 30_000))),
    durationMs: 75_000,
  }),
  sink('other', 'open', '75 % load of 20 workers; calls that must wait are lost', MM20, {
    arrivals: poisson(() => 150),
    maxBacklog: 0,
  }),
  sink('other', 'open-overload', 'as open, at 150 % load', MM20, {
    arrivals: poisson(() => 300),
    maxBacklog: 0,
  }),
  sink(
    'other',
    'streams',
    '20 workers; 0.5 % of the calls are streams of 20 s',
    (simulation) => streaming(simulation, 0.005, 20_000, MM20(simulation)),
    LONG,
  ),
  sink(
    'other',
    'long-jobs',
    '20 workers; 0.2 % of the calls hold one for 20 s',
    queue(20, mixture(0.998, MS_100, constant(20_000))),
    LONG,
  ),
  sink('other', 'slow-calls', '10 workers, 2 s a call', queue(10, exponential(2000)), {
    durationMs: 120_000,
    measureFromMs: 40_000,
  }),
  sink('other', 'fast-calls', '8 workers, 1 ms a call', queue(8, exponential(1)), {
    durationMs: 20_000,
    measureFromMs: 8000,
  }),
  sink('other', 'unequal', 'load balancer; 10 workers of 100 ms and 10 of 200 ms', (simulation) =>
    balanced(simulation, queue(10, MS_100)(simulation), queue(10, exponential(200))(simulation)),
  ),
];

export const CATALOGUE: readonly Sink[] = [
  ...STEADY,
  ...CHANGING,
  ...REFUSING,
  ...LOSSY,
  ...HUNG,
  ...SHARED,
  ...OTHER,
];
