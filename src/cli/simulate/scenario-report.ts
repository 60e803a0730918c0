import type { CheckedExpectation } from '../../simulator/scenario/expectations.ts';
import { figuresOf, type ScenarioFigures } from '../../simulator/scenario/figures.ts';
import type { ScenarioRun } from '../../simulator/scenario/run.ts';
import type { Expectation, FigureName } from '../../simulator/scenario/scenario.ts';
import { formatDuration, formatSignificant, roundTo } from '../chart/format.ts';
import { alignColumns } from '../chart/table.ts';
import { countOf } from '../framework/command.ts';

/** A run, its figures and its expectations. */
export interface ScenarioReport {
  readonly run: ScenarioRun;
  /** Figures of all clients together. */
  readonly total: ScenarioFigures;
  readonly clients: readonly { readonly name: string; readonly figures: ScenarioFigures }[];
  readonly expectations: readonly CheckedExpectation[];
}

export function reportOf(
  run: ScenarioRun,
  expectations: readonly CheckedExpectation[],
): ScenarioReport {
  const { clients, durationMs } = run.scenario;
  const select = (of: string | undefined): ScenarioFigures =>
    figuresOf(run, { of, fromMs: 0, toMs: durationMs });
  return {
    run,
    total: select(undefined),
    clients: clients.map(({ name }) => ({ name, figures: select(name) })),
    expectations,
  };
}

export function headOf({ run: { scenario, decisions } }: ScenarioReport): string {
  const { name, nodes, durationMs, seed } = scenario;
  const parts = [countOf(nodes, 'node'), `${durationMs / 1000} s`, `seed ${seed}`];
  return `${name}: ${parts.join(', ')}, ${countOf(decisions.length, 'decision')}`;
}

export const limitText = ({ run: { scenario } }: ScenarioReport): string =>
  scenario.limits
    .map(({ name, limit, backend }) => `${name}: ${JSON.stringify(limit)}, ${backend.kind}`)
    .join('; ');

const COLUMNS: readonly FigureName[] = [
  ...(['calls', 'allowed', 'denied', 'failed', 'allowedPerSecond'] as const),
  ...(['waitP50', 'waitP95', 'ok', 'busy', 'timeouts', 'latencyP50', 'latencyP95'] as const),
];

const HEADINGS: Readonly<Record<FigureName, string>> = {
  ...{ calls: 'calls', allowed: 'allowed', denied: 'denied', failed: 'failed' },
  allowedPerSecond: 'allowed/s',
  ...{ waitP50: 'wait p50', waitP95: 'wait p95', waitMax: 'longest wait' },
  ...{ ok: 'ok', busy: 'busy', timeouts: 'timeouts' },
  ...{ latencyP50: 'latency p50', latencyP95: 'latency p95' },
  ...{ utilisation: 'utilisation', overshoot: 'overshoot', jain: "Jain's index" },
  ...{ inFlight: 'mean in flight', maxInFlight: 'most in flight', serverUse: 'server use' },
  limit: 'mean limit',
};

const TIMES: readonly FigureName[] = ['waitP50', 'waitP95', 'waitMax', 'latencyP50', 'latencyP95'];
const FRACTIONS: readonly FigureName[] = ['utilisation', 'serverUse'];

export function formatFigure(figure: FigureName, value: number): string {
  if (Number.isNaN(value)) return '-';
  if (value === Infinity) return 'any';
  if (TIMES.includes(figure)) return formatDuration(value);
  if (FRACTIONS.includes(figure)) return `${roundTo(value * 100, 1)} %`;
  return Number.isInteger(value) ? String(value) : formatSignificant(value);
}

/** Head and rows: each client, then all of them; with several reports, each of them in turn. */
export function clientRows(reports: readonly ScenarioReport[]): string[][] {
  const rows = reports.flatMap((report) => {
    const run = reports.length > 1 ? [report.run.scenario.name] : [];
    const all = { name: 'all', figures: report.total };
    const clients = report.clients.length > 1 ? [...report.clients, all] : report.clients;
    return clients.map(({ name, figures }) => ({ names: [...run, name], figures }));
  });
  const shown = COLUMNS.filter((column) => rows.some(({ figures }) => isTold(figures[column])));
  const names = reports.length > 1 ? ['scenario', 'client'] : ['client'];
  return [
    [...names, ...shown.map((column) => HEADINGS[column])],
    ...rows.map((row) => [
      ...row.names,
      ...shown.map((column) => formatFigure(column, row.figures[column])),
    ]),
  ];
}

const isTold = (value: number): boolean => value !== 0 && !Number.isNaN(value);

const SUMMARY: readonly FigureName[] = [
  ...([
    'utilisation',
    'overshoot',
    'jain',
    'inFlight',
    'maxInFlight',
    'serverUse',
    'limit',
  ] as const),
];

/** Figures that only all clients together have: their names, and the value in each report. */
export function summaryRows(reports: readonly ScenarioReport[]): string[][] {
  return SUMMARY.filter((figure) => reports.some(({ total }) => !Number.isNaN(total[figure])))
    .filter((figure) => figure !== 'jain' || reports.some(({ run }) => run.callers.length > 1))
    .filter((figure) => !/flight/i.test(figure) || reports.some(({ run }) => run.scenario.server))
    .map((figure) => [
      HEADINGS[figure],
      ...reports.map(({ total }) => formatFigure(figure, total[figure])),
    ]);
}

/** `allowed of mallory, 10 s to 20 s: 101, expected 95 to 105`. */
export const expectationText = ({ expectation, value }: CheckedExpectation): string =>
  `${subjectOf(expectation)}: ${formatFigure(expectation.figure, value)}, expected ${rangeText(expectation)}`;

/** `95 to 105`. */
export function rangeText({ figure, min, max }: Expectation): string {
  const format = (bound: number): string => formatFigure(figure, bound);
  if (min === max) return format(min);
  return max === Infinity ? `at least ${format(min)}` : `${format(min)} to ${format(max)}`;
}

export const subjectOf = ({ figure, of, fromMs, toMs }: Expectation): string =>
  `${figure}${of === undefined ? '' : ` of ${of}`}, ${fromMs / 1000} s to ${toMs / 1000} s`;

export function reportLines(reports: readonly ScenarioReport[]): string[] {
  const summary = summaryRows(reports);
  return [
    ...reports.flatMap((report) => [headOf(report), `  ${limitText(report)}`]),
    '',
    ...alignColumns(clientRows(reports), '  ', reports.length > 1 ? 2 : 1),
    ...(summary.length > 0 ? ['', ...alignColumns(summary, '  ', 1)] : []),
    ...reports.flatMap((report) => expectationLines(report, reports.length > 1)),
  ];
}

function expectationLines({ expectations, run }: ScenarioReport, isNamed: boolean): string[] {
  if (expectations.length === 0) return [];
  const missed = expectations.filter(({ isMet }) => !isMet);
  const head = isNamed ? `${run.scenario.name}: ` : '';
  const met = `${head}${expectations.length - missed.length} of ${expectations.length} expectations met`;
  return [
    '',
    met,
    ...expectations.map((one) => `  ${one.isMet ? 'met    ' : 'MISSED '} ${expectationText(one)}`),
  ];
}

/** For `--json`; a figure that a run does not have is null. */
export const reportJson = ({ run, total, clients, expectations }: ScenarioReport): object => ({
  name: run.scenario.name,
  seed: run.scenario.seed,
  durationMs: run.scenario.durationMs,
  decisions: run.decisions.length,
  figures: total,
  clients: Object.fromEntries(clients.map(({ name, figures }) => [name, figures])),
  expectations: expectations.map(({ expectation, value, isMet }) => ({
    ...expectation,
    value,
    isMet,
  })),
});
