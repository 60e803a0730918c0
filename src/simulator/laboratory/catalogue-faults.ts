/** Sinks that refuse, lose, fail or hold calls. */

import type { Millis } from '../../core/clock.ts';
import { dropping, failing, holding, losing } from './servers.ts';
import type { CreateServer, Sink } from './sink.ts';
import {
  bursts,
  type Details,
  isWithin,
  MM20,
  MS_100,
  queue,
  refusedWhen,
  STEADY_20,
  sink,
  withQuota,
} from './sinks.ts';

/** The server refuses or loses every call. */
const OUTAGE = { fromMs: 30_000, toMs: 40_000 };
const isOutage = (now: Millis): boolean => isWithin(OUTAGE.fromMs, OUTAGE.toMs, now);

/** From second 30 on the server is silent. */
const HANG_FROM_MS: Millis = 30_000;

const hang = (seconds: number, timeoutMs: Millis): Details => {
  const toMs = HANG_FROM_MS + 1000 * seconds;
  return {
    spell: { fromMs: HANG_FROM_MS, toMs },
    timeoutMs,
    durationMs: toMs + 20_000,
    changes: [{ atMs: toMs, becomes: STEADY_20 }],
  };
};

const lost =
  (seconds: number): CreateServer =>
  (simulation) =>
    losing(
      simulation,
      (_random, now) => isWithin(HANG_FROM_MS, HANG_FROM_MS + 1000 * seconds, now),
      MM20(simulation),
    );

const held =
  (seconds: number): CreateServer =>
  (simulation) =>
    holding(simulation, HANG_FROM_MS, HANG_FROM_MS + 1000 * seconds, MM20(simulation));

export const REFUSING: readonly Sink[] = [
  sink('refusing', 'quota', '80 calls in any second, then 429', withQuota(80)),
  sink(
    'refusing',
    'quota-strict',
    '80 calls in any second, refused ones included',
    withQuota(80, true),
  ),
  sink(
    'refusing',
    'overflow',
    '503 above capacity: 20 workers, a queue of 5',
    queue(20, MS_100, 5),
  ),
  sink(
    'refusing',
    'random',
    '20 workers; 1 % of the calls get 503',
    refusedWhen((random) => random() < 0.01, MM20),
  ),
  sink(
    'refusing',
    'random-10',
    '20 workers; 10 % of the calls get 503',
    refusedWhen((random) => random() < 0.1, MM20),
  ),
  sink(
    'refusing',
    'random-5',
    '20 workers; 5 % of the calls get 503',
    refusedWhen((random) => random() < 0.05, MM20),
  ),
  sink(
    'refusing',
    'outage',
    '20 workers; 503 to everything from second 30 to 40',
    refusedWhen((_random, now) => isOutage(now), MM20),
    { spell: OUTAGE },
  ),
  sink(
    'refusing',
    'timeouts',
    '20 workers; no reply from second 30 to 40; timeout 1 s',
    (simulation) => losing(simulation, (_random, now) => isOutage(now), MM20(simulation)),
    { timeoutMs: 1000, spell: OUTAGE },
  ),
  sink('refusing', 'bursty-quota', 'quota, with bursts of calls', withQuota(80), {
    arrivals: bursts(60, 70),
  }),
];

const lossOf = (percent: number): Sink =>
  sink(
    'lossy',
    `lost-${percent}`,
    `20 workers; ${percent} % of the calls are lost; timeout 1 s`,
    (simulation) => losing(simulation, (random) => random() < percent / 100, MM20(simulation)),
    { timeoutMs: 1000 },
  );

const failureOf = (percent: number): Sink =>
  sink('lossy', `failed-${percent}`, `20 workers; ${percent} % of the calls fail`, (simulation) =>
    failing(simulation, percent / 100, MM20(simulation)),
  );

export const LOSSY: readonly Sink[] = [
  ...[3, 5, 10].map(lossOf),
  ...[3, 10].map(failureOf),
  sink(
    'lossy',
    'dropping',
    '20 workers; more calls get no reply; timeout 1 s',
    (simulation) => dropping(20, MM20(simulation)),
    { timeoutMs: 1000 },
  ),
  sink('lossy', 'impatient', '20 workers; timeout 300 ms, which ends no work', queue(20, MS_100), {
    timeoutMs: 300,
  }),
];

const HANGS: readonly [seconds: number, timeoutS: number][] = [
  [10, 5],
  [10, 30],
  [45, 5],
  [45, 30],
  [45, 60],
];

export const HUNG: readonly Sink[] = HANGS.flatMap(([seconds, timeoutS]) => {
  const spell = `for ${seconds} s; timeout ${timeoutS} s`;
  const more = hang(seconds, 1000 * timeoutS);
  const name = `${seconds}-${timeoutS}`;
  return [
    sink('hung', `held-${name}`, `20 workers; replies held ${spell}`, held(seconds), more),
    sink('hung', `lost-${name}`, `20 workers; calls lost ${spell}`, lost(seconds), more),
  ];
});
