/**
 * Runs a scenario on virtual time.
 *
 *     caller ──▶ balancer ──▶ node: limiter ──▶ server ──▶ reply ──▶ settle
 *       ▲ retry, or the next call of a hog ◀──────────────────┘
 *
 * A plain check is decided at once, without a promise. Where a call waits, or a backend replies later, promises resolve
 * between two instants.
 */

import type { Millis } from '../../core/clock.ts';
import { seededRandom } from '../../core/random.ts';
import { Timeline } from '../timeline.ts';
import { createBalancer } from './balancer.ts';
import { DecisionLog, ReplyLog, WorkLog } from './call-log.ts';
import { type Caller, createCallers, KeyNumbers } from './callers.ts';
import { Calls } from './calls.ts';
import { scheduleFaults } from './faults.ts';
import { Links } from './links.ts';
import { ScenarioNode } from './node.ts';
import { LimitSamples } from './samples.ts';
import type { Scenario } from './scenario.ts';
import { createServer } from './server.ts';
import { createSharedBackend } from './shared-backends.ts';

export interface ScenarioRun {
  readonly scenario: Scenario;
  readonly callers: readonly Caller[];
  readonly keys: number;
  readonly decisions: DecisionLog;
  readonly replies: ReplyLog;
  readonly work: WorkLog;
  readonly samples: LimitSamples;
}

/** Called at intervals with the simulated fraction of the run. */
export type OnProgress = (fraction: number) => void;

/** Microtask turns after an instant: more than the longest promise chain of a limiter. */
const MICROTASK_TURNS = 50;

/** Instants between two progress reports. */
const PROGRESS_INSTANTS = 10_000;

export async function runScenario(
  scenario: Scenario,
  onProgress?: OnProgress,
): Promise<ScenarioRun> {
  const { startMs, warmUpMs, durationMs } = scenario;
  const timeline = new Timeline(startMs - warmUpMs);
  const endMs = startMs + durationMs;
  let hasPromises = false;
  const onPromises = (): void => {
    hasPromises = true;
  };
  const { callers, keys, calls, samples, ...logs } = prepare(scenario, timeline, onPromises);
  for (const caller of callers) calls.start(caller);
  await drainMicrotasks(); // backends that connect
  let instants = 0;
  while (timeline.nextAt < endMs) {
    timeline.runNextInstant();
    if (hasPromises) {
      hasPromises = false;
      await drainMicrotasks();
    }
    if (++instants % PROGRESS_INSTANTS === 0)
      onProgress?.(Math.max(0, timeline.now - startMs) / durationMs);
  }
  calls.end(durationMs);
  return { scenario, callers, keys, samples, ...logs };
}

async function drainMicrotasks(): Promise<void> {
  for (let n = 0; n < MICROTASK_TURNS; n++) await Promise.resolve();
}

/** Creates and connects the callers, nodes, backends and the server. */
function prepare(scenario: Scenario, timeline: Timeline, onPromises: () => void) {
  const { seed, startMs, nodes: nodeCount, limits, network } = scenario;
  const links = new Links(network, nodeCount, seededRandom(seed * 104_729 + 1));
  const clock = { now: (): Millis => timeline.now };
  const around = { clock, random: seededRandom(seed * 104_729 + 2), links, nodes: nodeCount };
  const shared = limits.map((limit) => createSharedBackend(limit, around));
  const setup = { timeline, limits, shared, seed, onTimer: onPromises };
  const nodes = Array.from({ length: nodeCount }, (_, index) => new ScenarioNode(index, setup));
  const numbers = new KeyNumbers();
  const callers = createCallers(scenario, numbers);
  const [decisions, replies, work] = [new DecisionLog(), new ReplyLog(), new WorkLog()];
  const serverState = { slowness: 1, refusals: 0 };
  const simulation = { timeline, random: seededRandom(seed * 104_729 + 3) };
  const server =
    scenario.server && createServer(scenario.server, simulation, serverState, work, startMs);
  const pick = createBalancer(scenario.balancer, nodes, seededRandom(seed * 104_729 + 4));
  const calls = new Calls({ timeline, startMs, pick, server, decisions, replies, onPromises });
  scheduleFaults(scenario, { timeline, nodes, links, serverState });
  const samples = new LimitSamples(scenario, timeline, nodes, callers[0]);
  return { callers, keys: numbers.size, calls, samples, decisions, replies, work };
}
