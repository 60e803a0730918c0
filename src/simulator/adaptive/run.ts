import { seededRandom } from '../../core/random.ts';
import { Timeline } from '../timeline.ts';
import { Client } from './client.ts';
import type { Figures } from './figures.ts';
import { Server } from './server.ts';
import type { Case, ExpectedRange, Suite } from './suite.ts';

/** One day. A case that takes longer does not end by itself. */
const MAX_VIRTUAL_MS = 86_400_000;

/** An expected range and the measured value. */
export interface RangeCheck {
  readonly range: string;
  readonly lo: number;
  readonly hi: number;
  readonly got: number;
}

export interface CaseResult {
  readonly figures: Readonly<Record<string, Figures>>;
  readonly passed: readonly RangeCheck[];
  readonly failed: readonly RangeCheck[];
  readonly seconds: number;
  /** False if it was stopped after one day of virtual time. */
  readonly isFinished: boolean;
}

export function runCase(suite: Suite, test: Case, seed: number): CaseResult {
  const timeline = new Timeline();
  const random = seededRandom(seed);
  const server = new Server(test.server, timeline, random);
  const client = new Client({ ...suite, limit: test.limit }, timeline, server, random);

  enqueueAll(test, timeline, client);
  const isOver = () => server.completed >= test.requests || timeline.now > MAX_VIRTUAL_MS;
  for (let more = true; more && !isOver(); more = timeline.runNextInstant()) client.runPending();

  const figures = {
    'server.in_flight': server.inFlight.figures(),
    'server.rate': server.rate.figures(),
    'controller.in_flight': client.inFlight.figures(),
    'controller.concurrency_limit': client.limit.figures(),
    'controller.observed_rtt': client.observedRtt.figures(),
    'controller.averaged_rtt': client.averagedRtt.figures(),
  };
  const checks = test.expect.map((range) => compareRange(range, figures));
  return {
    figures,
    passed: checks.filter(isWithin),
    failed: checks.filter((one) => !isWithin(one)),
    seconds: timeline.now / 1000,
    isFinished: server.completed >= test.requests,
  };
}

/** Enqueues all calls at once, or one per interval from the first millisecond on. */
function enqueueAll({ requests, intervalMs }: Case, timeline: Timeline, client: Client): void {
  if (intervalMs === 0) {
    for (let n = 0; n < requests; n++) client.enqueue();
    return;
  }
  const next = (n: number): void => {
    client.enqueue();
    const due = 1 + Math.round((n + 1) * intervalMs);
    if (n + 1 < requests)
      timeline.scheduleAfter(Math.max(0, due - timeline.now), () => next(n + 1));
  };
  timeline.scheduleAfter(1, () => next(0));
}

/** Extremes and modes of levels are whole numbers, and are compared with truncated bounds. */
function compareRange(
  range: ExpectedRange,
  figures: Readonly<Record<string, Figures>>,
): RangeCheck {
  const got = figures[range.stat][range.figure];
  const isWhole = !range.stat.endsWith('_rtt') && range.figure !== 'mean';
  const [lo, hi] = isWhole ? [Math.trunc(range.lo), Math.trunc(range.hi)] : [range.lo, range.hi];
  return { range: range.name, lo, hi, got };
}

const isWithin = ({ lo, hi, got }: RangeCheck): boolean => got >= lo && got <= hi;
