/**
 * The simulation from TChannel's design document: nine seconds of busy replies, then recovery.
 *
 *     time   1 ──────────── 9   10   11 ─────────────────── 31
 *            │ busy replies │    │   │ recovering: until     │
 *            │ halve the    │    │   │ nothing is throttled  │
 *            │ limit        │    │   │ or the time is up     │
 *            └──────────────┘    │   └───────────────────────┘
 *                      no step ──┘
 *
 * Each step is a second: send what the limit allows, count the busy replies, move the limit. The limit moves by the
 * rule of the production policy (`busyRule`).
 *
 * The output must match the original byte for byte, so two of its properties are kept. It sends whole calls while the
 * service is busy and fractions of calls afterwards. It truncates numbers when it prints them, and never before.
 */

import { UNLIMITED } from '../core/decision.ts';
import { type BusyRule, busyRule } from '../policies/busy.ts';

export const TRAFFIC_SHAPES = ['steady', 'flappy', 'linear_grow', 'linear_decrease'] as const;
export type TrafficShape = (typeof TRAFFIC_SHAPES)[number];

/** Calls per second at the start, and their change over time. */
export interface Flow {
  readonly start: number;
  readonly shape: TrafficShape;
}

/** The client's demand, and how many calls the service would refuse as busy. */
export interface Traffic {
  readonly rps: Flow;
  readonly busy: Flow;
}

/** A recover rate (3: the limit is four times as high after a second) or a recover value (calls per second added). */
export type Recovery = { readonly recoverRate: number } | { readonly recoverValue: number };

export interface SimulatedSecond {
  readonly time: number;
  /** The client's demand: sent + throttled. */
  readonly rps: number;
  readonly sent: number;
  readonly throttled: number;
  readonly busy: number;
  /** The limit during this second; it changes at the end of the second. */
  readonly limit: number;
}

export interface TchannelRun {
  readonly traffic: Traffic;
  readonly recovery: Recovery;
  readonly maxLimit: number;
  readonly busy: readonly SimulatedSecond[];
  readonly recovering: readonly SimulatedSecond[];
  /** The first second without throttling; undefined if there is none in time. */
  readonly convergedAt: number | undefined;
}

/** The traffic of the original's four runs. */
export const PATTERNS: Readonly<Record<TrafficShape, Traffic>> = {
  steady: {
    rps: { start: 5000, shape: 'steady' },
    busy: { start: 3000, shape: 'steady' },
  },
  flappy: {
    rps: { start: 5000, shape: 'steady' },
    busy: { start: 3000, shape: 'flappy' },
  },
  linear_grow: {
    rps: { start: 100, shape: 'linear_grow' },
    busy: { start: 0, shape: 'linear_grow' },
  },
  linear_decrease: {
    rps: { start: 5000, shape: 'linear_decrease' },
    busy: { start: 3000, shape: 'steady' },
  },
};

/** The service is healthy from this second on, which has no step. Convergence time counts from here. */
export const HEALTHY_AT = 10;

/** The last second that counts as converged. */
const CONVERGED_BY = 30;

/** The original prints one second more, which does not count. */
export const MAX_TIME = 31;

/** Calls above the highest limit would be throttled for ever. */
export const MAX_CALLS = UNLIMITED;

/** Slope of the linear shapes, in calls per second per second. */
const SLOPE_PER_SECOND = 100;

const FLAPPY_EVERY = 3;

/** Calls per second at `time`. A decrease ends at 0. */
export function flowAt({ start, shape }: Flow, time: number): number {
  switch (shape) {
    case 'steady':
      return start;
    case 'flappy':
      return time % FLAPPY_EVERY === 0 ? start : 0;
    case 'linear_grow':
      return start + SLOPE_PER_SECOND * time;
    case 'linear_decrease':
      return Math.max(0, start - SLOPE_PER_SECOND * time);
  }
}

export function simulateTchannel(traffic: Traffic, recovery: Recovery): TchannelRun {
  const rule = busyRule(recovery, '');
  const busy = busySeconds(traffic, rule);
  return runOf(traffic, recovery, busy, recoveringSeconds(traffic, rule, busy));
}

/** Builds a run from its seconds. */
export function runOf(
  traffic: Traffic,
  recovery: Recovery,
  busy: readonly SimulatedSecond[],
  recovering: readonly SimulatedSecond[],
): TchannelRun {
  const { time, throttled } = recovering.at(-1) ?? { time: HEALTHY_AT, throttled: 0 };
  const isConverged = throttled === 0 && time <= CONVERGED_BY;
  const convergedAt = isConverged ? time : undefined;
  return { traffic, recovery, maxLimit: UNLIMITED, busy, recovering, convergedAt };
}

function busySeconds(traffic: Traffic, rule: BusyRule): SimulatedSecond[] {
  const seconds: SimulatedSecond[] = [];
  for (let time = 1; time < HEALTHY_AT; time++) {
    const rps = flowAt(traffic.rps, time);
    const limit = limitAfter(seconds.at(-1), rule);
    const sent = Math.floor(Math.min(rps, limit));
    const busy = Math.min(flowAt(traffic.busy, time), sent); // only sent calls can be refused
    seconds.push({ time, rps, sent, throttled: rps - sent, busy, limit });
  }
  return seconds;
}

/** The recovering seconds; empty if nothing was throttled at the end of the busy phase. */
function recoveringSeconds(
  traffic: Traffic,
  rule: BusyRule,
  before: readonly SimulatedSecond[],
): SimulatedSecond[] {
  const seconds: SimulatedSecond[] = [];
  let last = before.at(-1);
  for (let time = HEALTHY_AT + 1; time <= MAX_TIME && last?.throttled !== 0; time++) {
    const rps = flowAt(traffic.rps, time);
    const limit = limitAfter(last, rule);
    const sent = Math.min(rps, limit);
    last = { time, rps, sent, throttled: rps - sent, busy: 0, limit };
    seconds.push(last);
  }
  return seconds;
}

/** The limit after the last second. */
function limitAfter(last: SimulatedSecond | undefined, rule: BusyRule): number {
  return last === undefined ? rule.max : rule.halve(rule.grow(last.limit), last.busy);
}

/** The run in the original's output format. */
export function formatRun(run: TchannelRun): string[] {
  const { traffic, maxLimit, busy, recovering } = run;
  const { rps, busy: refused } = traffic;
  return [
    `started with ${formatRecovery(run.recovery)}`,
    `start rps=${rps.start} (${rps.shape}) throttled=0 busy=${refused.start} (${refused.shape}) limit=${maxLimit}`,
    ...busy.map((second) => `    --- ${formatSecond(second)}`),
    '    ++++ recovering',
    ...recovering.map((second) => `    +++ ${formatSecond(second)}`),
    `    ${formatOutcome(run)}`,
  ];
}

function formatRecovery(recovery: Recovery): string {
  return 'recoverRate' in recovery
    ? `recover_rate: ${recovery.recoverRate}`
    : `recover_value: ${recovery.recoverValue}`;
}

function formatSecond({ time, sent, throttled, busy, limit }: SimulatedSecond): string {
  const [rps, dropped, refused, maxRps] = [sent, throttled, busy, limit].map(Math.trunc);
  return `time=${time} rps=${rps} throttled=${dropped} busy=${refused} limit=${maxRps}`;
}

export function formatOutcome({ convergedAt }: TchannelRun): string {
  return convergedAt === undefined
    ? 'failed to converge'
    : `converged at time=${convergedAt}, speed=${convergedAt - HEALTHY_AT}`;
}
