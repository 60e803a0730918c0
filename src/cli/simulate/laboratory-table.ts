import { type Evaluation, meanScore } from '../../simulator/laboratory/score.ts';
import { SINK_CLASSES, type Sink } from '../../simulator/laboratory/sink.ts';
import { formatDuration, formatPercent } from '../chart/format.ts';
import { alignColumns } from '../chart/table.ts';

interface Column {
  readonly heading: string;
  readonly text: (evaluation: Evaluation) => string;
  /** Left out if no evaluation has it. */
  readonly has?: (evaluation: Evaluation) => boolean;
}

const SINK_COLUMN: Column = { heading: 'sink', text: ({ sink }) => sink.name };
const RULE_COLUMN: Column = { heading: 'rule', text: ({ rule }) => rule };
const BEST_COLUMN: Column = { heading: 'best', text: ({ best }) => `${best.limit}` };

const MEASURES: readonly Column[] = [
  { heading: 'score', text: ({ median }) => formatRatio(median.score) },
  { heading: 'worst', text: ({ worstScore }) => formatRatio(worstScore) },
  { heading: 'goodput', text: ({ median }) => formatPercent(median.goodput, 0) },
  { heading: 'rtt', text: ({ median }) => formatFactor(median.meanRtt) },
  { heading: 'p99', text: ({ median }) => formatFactor(median.p99Rtt) },
  { heading: 'in flight', text: ({ median }) => formatFactor(median.inFlight) },
  { heading: 'refused', text: ({ median }) => formatPercent(median.refused, 1) },
  {
    heading: 'fair',
    text: ({ median, sink }) => (sink.clients === undefined ? '-' : formatRatio(median.fairness)),
    has: ({ sink }) => sink.clients !== undefined,
  },
  {
    heading: 'sent',
    text: ({ median, sink }) => (sink.spell ? `${median.sentInSpell}` : '-'),
    has: ({ sink }) => sink.spell !== undefined,
  },
  {
    heading: 'peak',
    text: ({ median, sink }) => (sink.spell ? formatFactor(median.peakInSpell) : '-'),
    has: ({ sink }) => sink.spell !== undefined,
  },
  {
    heading: 'settled',
    text: ({ settlingMs }) => settlingMs.map(formatSettling).join(', ') || '-',
    has: ({ sink }) => sink.changes !== undefined,
  },
];

export function laboratoryTable(evaluations: readonly Evaluation[]): string[] {
  const sinks = unique(evaluations.map(({ sink }) => sink));
  const rules = unique(evaluations.map(({ rule }) => rule));
  if (sinks.length === 1) {
    return [...headOf(evaluations[0]), ...detailTable(RULE_COLUMN, [], evaluations)];
  }
  if (rules.length > 1) return scoreTable(sinks, rules, evaluations);
  const means = meanRows(sinks, rules, evaluations).map(([name, mean]) => `${name}: ${mean}`);
  return [
    `rule ${rules[0]}`,
    '',
    ...detailTable(SINK_COLUMN, [BEST_COLUMN], evaluations),
    '',
    ...means,
  ];
}

/** The sink, and what the best fixed limit reaches on it. */
function headOf({ sink, best: { limit, figures } }: Evaluation): string[] {
  const { goodput, meanRttMs, p99RttMs } = figures;
  const each = sink.clients === undefined ? '' : ' for each client';
  const reached = `${goodput.toFixed(0)} calls/s, mean ${formatDuration(meanRttMs)}, p99 ${formatDuration(p99RttMs)}`;
  return [`${sink.name}: ${sink.description}`, `best fixed limit ${limit}${each}: ${reached}`, ''];
}

function detailTable(name: Column, more: readonly Column[], rows: readonly Evaluation[]): string[] {
  const columns = [name, ...more, ...MEASURES].filter(({ has }) => !has || rows.some(has));
  const cells = rows.map((row) => columns.map(({ text }) => text(row)));
  return alignColumns([columns.map(({ heading }) => heading), ...cells], '  ', 1);
}

/** One row per sink: the median score of each rule, and that of its worst seed in brackets. */
function scoreTable(
  sinks: readonly Sink[],
  rules: readonly string[],
  evaluations: readonly Evaluation[],
): string[] {
  const rows = sinks.map((sink) => {
    const own = evaluations.filter((evaluation) => evaluation.sink === sink);
    const scores = own.map(
      ({ median, worstScore }) => `${formatRatio(median.score)} (${formatRatio(worstScore)})`,
    );
    return [sink.name, BEST_COLUMN.text(own[0]), ...scores];
  });
  const means = meanRows(sinks, rules, evaluations).map(([name, ...scores]) => [
    name,
    '',
    ...scores.map((score) => `${score}       `), // below the medians
  ]);
  return alignColumns([['sink', 'best', ...rules], ...rows, ...means], '  ', 1).map((line) =>
    line.trimEnd(),
  );
}

/** The mean score of each rule by class and over all sinks; a score above 1 counts as 1. */
function meanRows(
  sinks: readonly Sink[],
  rules: readonly string[],
  evaluations: readonly Evaluation[],
): string[][] {
  const rowOf = (name: string, isCounted: (sink: Sink) => boolean): string[] => [
    `mean of ${name}`,
    ...rules.map((rule) =>
      formatRatio(meanScore(evaluations.filter((one) => one.rule === rule && isCounted(one.sink)))),
    ),
  ];
  const classes = SINK_CLASSES.filter((kind) => sinks.some((sink) => sink.kind === kind));
  return [
    ...classes.map((kind) => rowOf(kind, (sink) => sink.kind === kind)),
    rowOf(`all ${sinks.length}`, () => true),
  ];
}

/** One line per sink, grouped by class. */
export function catalogueList(sinks: readonly Sink[]): string[] {
  const width = Math.max(...sinks.map(({ name }) => name.length));
  return SINK_CLASSES.flatMap((kind) => {
    const own = sinks.filter((sink) => sink.kind === kind);
    if (own.length === 0) return [];
    return [kind, ...own.map(({ name, description }) => `  ${name.padEnd(width)}  ${description}`)];
  });
}

const unique = <T>(values: readonly T[]): T[] => [...new Set(values)];

const formatRatio = (ratio: number): string => ratio.toFixed(2);

function formatFactor(factor: number): string {
  return Number.isFinite(factor) ? `${factor.toFixed(2)} x` : '-';
}

function formatSettling(ms: number): string {
  return Number.isFinite(ms) ? `${(ms / 1000).toFixed(1)} s` : 'never';
}
