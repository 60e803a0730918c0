/**
 * The simulation TChannel's design was argued with: nine seconds of busy replies, then none.
 *
 *     time   1 ──────────── 9   10   11 ─────────────────── 31
 *            │ busy replies │    │   │ recovering: until     │
 *            │ cut the limit│    │   │ nothing is throttled, │
 *            └──────────────┘    │   │ or time is up         │
 *                      no step ──┘   └───────────────────────┘
 *
 * Each step is a second: send what the limit lets through, count the busy replies, move the limit.
 * How the limit moves is the rule of the live policy (`busyRule`), not a copy of it. What is told
 * here is only the traffic, and the original's habits, which its printed figures depend on: it
 * sends whole calls while the service is busy and fractions of calls afterwards, and it rounds
 * figures down when it prints them and at no other time.
 */

import { type BusyRule, busyRule, UNLIMITED } from '../policies/busy.ts';

export const TRAFFIC_SHAPES = ['steady', 'flappy', 'linear_grow', 'linear_decrease'] as const;
export type TrafficShape = (typeof TRAFFIC_SHAPES)[number];

/** So many a second at the start, and how that changes with time. */
export interface Flow {
  readonly start: number;
  readonly shape: TrafficShape;
}

/** What the client would like to send, and how much of it the service would answer with busy. */
export interface Traffic {
  readonly rps: Flow;
  readonly busy: Flow;
}

/** Either a recover rate (3: every second four times as much) or a recover value (so much more). */
export type Recovery = { readonly recoverRate: number } | { readonly recoverValue: number };

export interface SimulatedSecond {
  readonly time: number;
  /** What the client would like to send. Sent and throttled add up to it. */
  readonly rps: number;
  readonly sent: number;
  readonly throttled: number;
  readonly busy: number;
  /** The limit these calls met. It is moved only when they are over. */
  readonly limit: number;
}

export interface TchannelRun {
  readonly traffic: Traffic;
  readonly recovery: Recovery;
  readonly maxLimit: number;
  readonly busy: readonly SimulatedSecond[];
  readonly recovering: readonly SimulatedSecond[];
  /** When nothing was throttled any more; undefined if that took too long. */
  readonly convergedAt: number | undefined;
}

/** The traffic of the original's four runs, each known by the name of one shape in it. */
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

/** The second in which nothing happens but the service getting well; speed is counted from here. */
export const HEALTHY_AT = 10;

/** Whoever is back by then has converged. */
const CONVERGED_BY = 30;

/** One second more is looked at, too late to count. */
const MAX_TIME = 31;

/** More calls than the largest limit would be throttled for ever. */
export const MAX_CALLS = UNLIMITED;

/** How fast the linear shapes move, in calls a second every second. */
const SLOPE_PER_SECOND = 100;

const FLAPPY_EVERY = 3;

/** So many a second at `time`. A decrease ends at nothing: nobody sends less than no calls. */
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

/** Tells what happens to this traffic under one way of recovering. */
export function simulateTchannel(traffic: Traffic, recovery: Recovery): TchannelRun {
  const rule = busyRule(recovery, '');
  const busy = busySeconds(traffic, rule);
  const recovering = recoveringSeconds(traffic, rule, busy);
  const { time, throttled } = recovering.at(-1) ?? { time: HEALTHY_AT, throttled: 0 };
  const isBack = throttled === 0 && time <= CONVERGED_BY;
  return {
    traffic,
    recovery,
    maxLimit: rule.max,
    busy,
    recovering,
    convergedAt: isBack ? time : undefined,
  };
}

function busySeconds(traffic: Traffic, rule: BusyRule): SimulatedSecond[] {
  const seconds: SimulatedSecond[] = [];
  for (let time = 1; time < HEALTHY_AT; time++) {
    const rps = flowAt(traffic.rps, time);
    const limit = limitAfter(seconds.at(-1), rule);
    const sent = Math.floor(Math.min(rps, limit));
    const busy = Math.min(flowAt(traffic.busy, time), sent); // only what was sent can be refused
    seconds.push({ time, rps, sent, throttled: rps - sent, busy, limit });
  }
  return seconds;
}

/** Nothing to recover from is recovered at once, without a single second of it. */
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

/** The limit that follows from how the last second went. */
function limitAfter(last: SimulatedSecond | undefined, rule: BusyRule): number {
  return last === undefined ? rule.max : rule.halve(rule.grow(last.limit), last.busy);
}

/** The story in the original's words, one line each. */
export function formatRun(story: TchannelRun): string[] {
  const { traffic, maxLimit, busy, recovering } = story;
  const { rps, busy: refused } = traffic;
  return [
    `started with ${formatRecovery(story.recovery)}`,
    `start rps=${rps.start} (${rps.shape}) throttled=0 busy=${refused.start} (${refused.shape}) limit=${maxLimit}`,
    ...busy.map((second) => `    --- ${formatSecond(second)}`),
    '    ++++ recovering',
    ...recovering.map((second) => `    +++ ${formatSecond(second)}`),
    `    ${formatOutcome(story)}`,
  ];
}

function formatRecovery(recovery: Recovery): string {
  return 'recoverRate' in recovery
    ? `recover_rate: ${recovery.recoverRate}`
    : `recover_value: ${recovery.recoverValue}`;
}

function formatSecond({ time, sent, throttled, busy, limit }: SimulatedSecond): string {
  const [rps, held, refused, most] = [sent, throttled, busy, limit].map(Math.trunc);
  return `time=${time} rps=${rps} throttled=${held} busy=${refused} limit=${most}`;
}

export function formatOutcome({ convergedAt }: TchannelRun): string {
  return convergedAt === undefined
    ? 'failed to converge'
    : `converged at time=${convergedAt}, speed=${convergedAt - HEALTHY_AT}`;
}
