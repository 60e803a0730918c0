import type { Millis } from '../../core/clock.ts';
import { overshootOf, windowOvershootOf } from '../overshoot.ts';
import { jainIndex } from '../statistics.ts';
import { ALLOWED, DENIED, FAILED, REPLIES, type ReplyKind } from './call-log.ts';
import { type LimitTerms, termsOf } from './limit-terms.ts';
import type { ScenarioRun } from './run.ts';
import type { FigureName } from './scenario.ts';

/** Selects the calls that count. */
export interface Selection {
  /** The client; undefined: all. */
  readonly of: string | undefined;
  readonly fromMs: Millis;
  readonly toMs: Millis;
}

/** NaN: the run has no such figure, such as a waiting time without an allowed call. */
export type ScenarioFigures = Readonly<Record<FigureName, number>>;

export function figuresOf(run: ScenarioRun, selection: Selection): ScenarioFigures {
  const { fromMs, toMs } = selection;
  const decided = decisionFigures(run, selection);
  return {
    ...decided,
    allowedPerSecond: (decided.allowed * 1000) / (toMs - fromMs),
    ...replyFigures(run, selection),
    ...limitFigures(run, selection),
    serverUse: serverUseOf(run, selection),
    limit: run.samples.mean(fromMs, toMs),
  };
}

/** Whether a caller's calls count, by caller. */
const selectedCallers = ({ callers }: ScenarioRun, { of }: Selection): readonly boolean[] =>
  callers.map(({ client }) => of === undefined || client.name === of);

function decisionFigures(run: ScenarioRun, selection: Selection) {
  const { decisions } = run;
  const { fromMs, toMs } = selection;
  const isSelected = selectedCallers(run, selection);
  const counts = [0, 0, 0];
  const allowedBy = run.callers.map(() => 0);
  const waits: Millis[] = [];
  for (let row = 0; row < decisions.length; row++) {
    const at = decisions.at[row];
    const caller = decisions.caller[row];
    if (at < fromMs || at >= toMs || !isSelected[caller]) continue;
    const decision = decisions.decision[row];
    counts[decision]++;
    if (decision !== ALLOWED) continue;
    allowedBy[caller]++;
    waits.push(decisions.waitedMs[row]);
  }
  const sorted = Float64Array.from(waits).sort();
  const [allowed, denied, failed] = [counts[ALLOWED], counts[DENIED], counts[FAILED]];
  return {
    calls: allowed + denied + failed,
    allowed,
    denied,
    failed,
    waitP50: quantile(sorted, 0.5),
    waitP95: quantile(sorted, 0.95),
    waitMax: quantile(sorted, 1),
    jain: jainIndex(allowedBy.filter((_, caller) => isSelected[caller])),
  };
}

function replyFigures(run: ScenarioRun, selection: Selection) {
  const { replies } = run;
  const { fromMs, toMs } = selection;
  const isSelected = selectedCallers(run, selection);
  const counts = new Map<ReplyKind, number>();
  const latencies: Millis[] = [];
  const changes: [at: Millis, by: number][] = [];
  let area = 0;
  for (let row = 0; row < replies.length; row++) {
    if (!isSelected[replies.caller[row]]) continue;
    const [startedAt, endedAt] = [replies.startedAt[row], replies.endedAt[row]];
    if (startedAt < toMs && endedAt > fromMs) {
      area += Math.min(endedAt, toMs) - Math.max(startedAt, fromMs);
      changes.push([Math.max(startedAt, fromMs), 1], [endedAt, -1]);
    }
    if (endedAt < fromMs || endedAt >= toMs) continue;
    const reply = REPLIES[replies.reply[row]];
    counts.set(reply, (counts.get(reply) ?? 0) + 1);
    if (reply === 'ok') latencies.push(endedAt - startedAt);
  }
  const sorted = Float64Array.from(latencies).sort();
  return {
    ok: counts.get('ok') ?? 0,
    busy: counts.get('busy') ?? 0,
    timeouts: counts.get('timeout') ?? 0,
    latencyP50: quantile(sorted, 0.5),
    latencyP95: quantile(sorted, 0.95),
    inFlight: area / (toMs - fromMs),
    maxInFlight: highestLevel(changes),
  };
}

/** The highest level; at one instant, ends count before starts. */
function highestLevel(changes: [at: Millis, by: number][]): number {
  changes.sort(([a, by], [b, other]) => a - b || by - other);
  let [level, highest] = [0, 0];
  for (const [, by] of changes) {
    level += by;
    highest = Math.max(highest, level);
  }
  return highest;
}

/** The units that were requested and allowed under one key. */
interface KeyUse {
  demand: number;
  allowed: number;
  readonly times: Millis[];
  readonly costs: number[];
}

function limitFigures(run: ScenarioRun, selection: Selection) {
  const figures = run.scenario.limits.flatMap(({ limit, key }) => {
    const uses = key === undefined ? usesByKey(run, selection) : [totalUse(run, selection)];
    return termsOf(limit).map((terms) => ({
      overshoot: Math.max(0, ...uses.map((use) => overshootOfUse(use, terms))),
      utilisation: utilisationOf(uses, terms, selection),
    }));
  });
  if (figures.length === 0) return { overshoot: Number.NaN, utilisation: Number.NaN };
  return {
    overshoot: Math.max(...figures.map(({ overshoot }) => overshoot)),
    // The rule with the highest use is the one that limits.
    utilisation: Math.max(...figures.map(({ utilisation }) => utilisation)),
  };
}

const newUse = (): KeyUse => ({ demand: 0, allowed: 0, times: [], costs: [] });

function usesByKey(run: ScenarioRun, selection: Selection): KeyUse[] {
  const uses = new Map<number, KeyUse>();
  countUse(run, selection, (row) => {
    const key = run.decisions.key[row];
    const use = uses.get(key) ?? newUse();
    uses.set(key, use);
    return use;
  });
  return [...uses.values()];
}

function totalUse(run: ScenarioRun, selection: Selection): KeyUse {
  const use = newUse();
  countUse(run, selection, () => use);
  return use;
}

function countUse(run: ScenarioRun, selection: Selection, useOf: (row: number) => KeyUse): void {
  const { decisions, callers } = run;
  const isSelected = selectedCallers(run, selection);
  const { fromMs, toMs } = selection;
  for (let row = 0; row < decisions.length; row++) {
    const at = decisions.at[row];
    const caller = decisions.caller[row];
    if (at < fromMs || at >= toMs || !isSelected[caller]) continue;
    const { cost } = callers[caller].client;
    const use = useOf(row);
    use.demand += cost;
    if (decisions.decision[row] !== ALLOWED) continue;
    use.allowed += cost;
    use.times.push(at);
    use.costs.push(cost);
  }
}

const overshootOfUse = (
  { times, costs }: KeyUse,
  { perMs, burst, windowMs }: LimitTerms,
): number =>
  windowMs === undefined
    ? overshootOf(times, perMs * 1000, burst, costs)
    : windowOvershootOf(times, burst, windowMs, costs);

/** Allowed units relative to the demand, or to the rate over that time if that is less. */
function utilisationOf(
  uses: readonly KeyUse[],
  { perMs }: LimitTerms,
  { fromMs, toMs }: Selection,
): number {
  const most = perMs * (toMs - fromMs);
  const possible = uses.reduce((sum, { demand }) => sum + Math.min(demand, most), 0);
  return uses.reduce((sum, { allowed }) => sum + allowed, 0) / possible;
}

/** The busy fraction of the server's capacity. */
function serverUseOf({ scenario, work }: ScenarioRun, { fromMs, toMs }: Selection): number {
  const { server } = scenario;
  if (!server) return Number.NaN;
  let busy = 0;
  for (let row = 0; row < work.length; row++) {
    const at = work.at[row];
    busy += Math.max(0, Math.min(at + work.ms[row], toMs) - Math.max(at, fromMs));
  }
  return busy / ((server.knee ?? server.workers) * (toMs - fromMs));
}

/** The quantile of sorted values at the fraction `part`; NaN without values. */
function quantile(sorted: Float64Array, part: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(part * sorted.length))] ?? Number.NaN;
}
