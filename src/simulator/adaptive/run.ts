/** Runs a case on virtual time and compares what came out with what was expected. */

import { seededRandom } from '../../core/random.ts';
import { Timeline } from '../timeline.ts';
import { Client } from './client.ts';
import type { Figures } from './figures.ts';
import { Server } from './server.ts';
import type { Case, Range, Suite } from './suite.ts';

/** A day of virtual time: a case that has not ended by then never will. */
const VIRTUAL_MS_MAX = 86_400_000;

/** A range that was expected, and what came. */
export interface Check {
  readonly range: string;
  readonly lo: number;
  readonly hi: number;
  readonly got: number;
}

export interface CaseResult {
  readonly figures: Readonly<Record<string, Figures>>;
  readonly held: readonly Check[];
  readonly missed: readonly Check[];
  readonly seconds: number;
  /** False if it was still not done after a day. */
  readonly finished: boolean;
}

export function runCase(suite: Suite, test: Case, seed: number): CaseResult {
  const timeline = new Timeline();
  const random = seededRandom(seed);
  const server = new Server(test.server, timeline, random);
  const client = new Client({ ...suite, limit: test.limit }, timeline, server, random);

  offerAll(test, timeline, client);
  const isOver = () => server.completed >= test.requests || timeline.now > VIRTUAL_MS_MAX;
  for (let more = true; more && !isOver(); more = timeline.turn()) client.run();

  const figures = {
    'server.in_flight': server.inFlight.figures(),
    'server.rate': server.rate.figures(),
    'controller.in_flight': client.inFlight.figures(),
    'controller.concurrency_limit': client.limit.figures(),
    'controller.observed_rtt': client.observedRtt.figures(),
    'controller.averaged_rtt': client.averagedRtt.figures(),
  };
  const checks = test.expect.map((range) => check(range, figures));
  return {
    figures,
    held: checks.filter(holds),
    missed: checks.filter((one) => !holds(one)),
    seconds: timeline.now / 1000,
    finished: server.completed >= test.requests,
  };
}

/** All events at once, or one every interval from the first millisecond on. */
function offerAll({ requests, intervalMs }: Case, timeline: Timeline, client: Client): void {
  if (intervalMs === 0) {
    for (let n = 0; n < requests; n++) client.offer();
    return;
  }
  const next = (n: number): void => {
    client.offer();
    const due = 1 + Math.round((n + 1) * intervalMs);
    if (n + 1 < requests) timeline.after(Math.max(0, due - timeline.now), () => next(n + 1));
  };
  timeline.after(1, () => next(0));
}

/** Levels are whole numbers, so their extremes are compared with whole bounds; all else is real. */
function check(range: Range, figures: Readonly<Record<string, Figures>>): Check {
  const got = figures[range.stat][range.figure];
  const isWhole = !range.stat.endsWith('_rtt') && range.figure !== 'mean';
  const [lo, hi] = isWhole ? [Math.trunc(range.lo), Math.trunc(range.hi)] : [range.lo, range.hi];
  return { range: range.name, lo, hi, got };
}

const holds = ({ lo, hi, got }: Check): boolean => got >= lo && got <= hi;
