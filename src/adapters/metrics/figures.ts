/**
 * What there is to see of a limit: every figure by its name, once for all who show figures.
 *
 * Names are spelled as OpenTelemetry spells them. Prometheus writes `sluice.decisions` as
 * `sluice_decisions_total`, as it would if it came by way of OpenTelemetry, so that a question or an
 * alert is the same whichever way the figures came.
 */

import { OUTCOMES } from '../../core/decision.ts';
import type { Histogram } from '../../limiter/stats.ts';
import type { KeyReading, Reading, Seen } from './watch.ts';

export type Labels = Readonly<Record<string, string>>;

export interface Point {
  readonly labels: Labels;
  readonly value: number;
}

/** A number: one that only grows, or one that goes up and down. */
export interface Figure {
  readonly name: string;
  readonly kind: 'counter' | 'gauge';
  readonly unit?: 'By';
  readonly help: string;
  points(reading: Reading): Point[];
}

/** How long something took, in seconds. */
export interface Timing {
  readonly name: string;
  readonly help: string;
  read(stats: Seen): Histogram;
}

/** A figure that is one number for the whole limit, where there is such a thing. */
const whole =
  (read: (stats: Seen) => number | undefined) =>
  ({ limit, stats }: Reading): Point[] => {
    const value = read(stats);
    return value === undefined ? [] : [{ labels: { limit }, value }];
  };

/** A figure that is several, told apart by a label. */
const by =
  (label: string, read: (stats: Seen) => Readonly<Record<string, number>>) =>
  ({ limit, stats }: Reading): Point[] =>
    Object.entries(read(stats)).map(([name, value]) => ({
      labels: { limit, [label]: name },
      value,
    }));

/** A figure of each key that is shown. */
const perKey = ({ limit, keys }: Reading, read: (key: KeyReading) => number | undefined): Point[] =>
  keys.flatMap((own) => {
    const value = read(own);
    return value === undefined ? [] : [{ labels: { limit, key: own.key }, value }];
  });

const held = whole((stats) => stats.held);

export const FIGURES: readonly Figure[] = [
  {
    name: 'sluice.decisions',
    kind: 'counter',
    help: 'Calls decided: allow at once, wait and then go ahead, deny.',
    points: by('verdict', ({ allowed, waited, denied }) => ({
      allow: allowed - waited,
      wait: waited,
      deny: denied,
    })),
  },
  {
    name: 'sluice.limited',
    kind: 'counter',
    help: 'Calls that could not go ahead at once: they waited, were denied or left.',
    points: whole(({ waited, denied, left }) => waited + denied + left),
  },
  {
    name: 'sluice.left',
    kind: 'counter',
    help: 'Calls that gave up while they waited: their signal aborted.',
    points: whole((stats) => stats.left),
  },
  {
    name: 'sluice.lost_permits',
    kind: 'counter',
    help: 'Permits that were never settled and were taken back.',
    points: whole((stats) => stats.lost),
  },
  {
    name: 'sluice.settled',
    kind: 'counter',
    help: 'Calls settled, by how they went.',
    points: by('outcome', ({ settled }) =>
      Object.fromEntries(OUTCOMES.map((outcome) => [outcome, settled[outcome]])),
    ),
  },
  {
    name: 'sluice.limit',
    kind: 'gauge',
    help: 'The limit as it stands. adaptive: calls in flight; busy: calls a second.',
    points: (reading) => perKey(reading, ({ limit }) => limit),
  },
  {
    name: 'sluice.in_flight',
    kind: 'gauge',
    help: 'Calls in flight: by key where the limit counts them, else all permits that are out.',
    points: (reading) =>
      reading.inFlightByKey ? perKey(reading, ({ inFlight }) => inFlight) : held(reading),
  },
  {
    name: 'sluice.waiting',
    kind: 'gauge',
    help: 'Calls that stand in line right now.',
    points: whole((stats) => stats.waiting),
  },
  {
    name: 'sluice.reachable',
    kind: 'gauge',
    help: 'Whoever decides a shared limit: 1 if in reach, 0 while onUnavailable answers instead.',
    points: whole(({ isReachable }) =>
      isReachable === undefined ? undefined : Number(isReachable),
    ),
  },
  {
    name: 'sluice.makeshift',
    kind: 'counter',
    help: 'Calls of a shared limit that onUnavailable answered.',
    points: whole((stats) => stats.makeshift),
  },
  {
    name: 'sluice.parts',
    kind: 'gauge',
    help: 'In how many parts a pool divides the limit, as this process uses it; 0: it has none.',
    points: whole(({ poolSize }) => poolSize),
  },
  {
    name: 'sluice.keys',
    kind: 'gauge',
    help: 'Keys that have a state right now.',
    points: whole((stats) => stats.keys),
  },
  {
    name: 'sluice.evicted_keys',
    kind: 'counter',
    help: 'Keys that had to make room while in use: if it grows, keysMax is too small.',
    points: whole((stats) => stats.evicted),
  },
  {
    name: 'sluice.memory',
    kind: 'gauge',
    unit: 'By',
    help: 'Memory held for keys.',
    points: whole((stats) => stats.bytes),
  },
];

export const WAIT: Timing = {
  name: 'sluice.wait.duration',
  help: 'How long those waited who had to wait and were let through.',
  read: (stats) => stats.waitMs,
};

export const RTT: Timing = {
  name: 'sluice.rtt.duration',
  help: 'How long calls took that went well.',
  read: (stats) => stats.rttMs,
};
