import { toPrintableLine } from '../../core/printable.ts';
import { formatDuration, formatPercent } from '../chart/format.ts';
import { alignColumns } from '../chart/table.ts';
import { drawChart } from '../chart/terminal.ts';
import { type LimitCounts, limitTitle } from './deciders.ts';
import { type DeniedKey, type LinesReport, type ReplayReport, share } from './report.ts';
import type { Suggestion } from './suggest.ts';
import type { CallTally } from './tally.ts';
import { timeChart } from './time-chart.ts';
import { formatTime, formatZone } from './times.ts';

export const formatCount = (count: number): string => count.toLocaleString('en-US');

/** `97.2 %`; what is not 0 never looks like it. */
export function formatShare(part: number, whole: number): string {
  const fraction = share(part, whole);
  if (fraction > 0 && fraction < 0.0005) return '< 0.1 %';
  if (fraction < 1 && fraction > 0.9995) return '> 99.9 %';
  return formatPercent(fraction, 1);
}

/** A length of time in its largest unit. */
function formatSpan(ms: number): string {
  const [unit, name] =
    ms >= 172_800_000 ? [86_400_000, 'days'] : ms >= 7_200_000 ? [3_600_000, 'h'] : [60_000, 'min'];
  return ms < 120_000 ? formatDuration(ms) : `${Number((ms / unit).toFixed(1))} ${name}`;
}

/** `1,200 calls of 34 keys in 24 h, from … to …`. */
export function spanLine(calls: CallTally, keys: number): string {
  if (calls.total === 0) return 'no calls';
  const { from, to, zoneMinutes, total } = calls;
  const time = (at: number) => formatTime(at, zoneMinutes);
  const span = `${time(from)} to ${time(to)} ${formatZone(zoneMinutes)}`;
  return `${plural(total, 'call')} of ${plural(keys, 'key')} in ${formatSpan(to - from)}, ${span}`;
}

export const plural = (count: number, what: string): string =>
  `${formatCount(count)} ${what}${count === 1 ? '' : 's'}`;

export function summaryRows(report: ReplayReport): [name: string, value: string][] {
  const { calls, allowed, denied, waited, keys, deniedKeys, callsPerKey } = report;
  const { retryAfterMs, waitMs, deniedShare } = report;
  const percent = (fraction: number) => formatPercent(fraction, 1);
  return [
    ['allowed', `${formatCount(allowed)}, ${formatShare(allowed, calls)}`],
    ...(waitMs
      ? [
          [
            'waited',
            `${formatCount(waited)}, p50 ${formatDuration(waitMs.p50)}, p95 ${formatDuration(waitMs.p95)}`,
          ] as [string, string],
        ]
      : []),
    ['denied', `${formatCount(denied)}, ${formatShare(denied, calls)}`],
    [
      'denied keys',
      `${formatCount(deniedKeys)} of ${formatCount(keys)}, ${formatShare(deniedKeys, keys)}`,
    ],
    [
      'calls per key',
      `p50 ${formatCount(callsPerKey.p50)}, p95 ${formatCount(callsPerKey.p95)}, most ${formatCount(callsPerKey.max)}`,
    ],
    ...(deniedShare
      ? [
          [
            'denied share of a denied key',
            `p50 ${percent(deniedShare.p50)}, p95 ${percent(deniedShare.p95)}`,
          ] as [string, string],
        ]
      : []),
    ...(retryAfterMs
      ? [
          [
            'Retry-After of a denied call',
            `p50 ${formatDuration(retryAfterMs.p50)}, p95 ${formatDuration(retryAfterMs.p95)}`,
          ] as [string, string],
        ]
      : []),
  ];
}

const CHART_ROWS = 8;
/** Columns of a chart that labels need. */
const LABEL_COLUMNS = 12;

export const chartLines = (calls: CallTally, columns: number, deniedName: string): string[] =>
  calls.total === 0
    ? []
    : drawChart(
        timeChart(calls.timeline, calls.zoneMinutes, '', deniedName, columns - LABEL_COLUMNS),
        { columns, rows: CHART_ROWS },
      ).slice(1);

export function replayLines(
  title: string,
  report: ReplayReport,
  calls: CallTally,
  columns: number,
): string[] {
  return [
    spanLine(calls, report.keys),
    title,
    '',
    ...alignColumns(summaryRows(report), '  ', 2).map((line) => line.trimEnd()),
    '',
    ...chartLines(calls, columns, 'denied'),
    ...limitLines(report.limits),
    '',
    ...deniedTable(report.top, report.deniedKeys, columns),
  ];
}

function limitLines(limits: readonly LimitCounts[] = []): string[] {
  if (limits.length === 0) return [];
  const rows = limits.map((limit) => [
    limitTitle(limit),
    formatCount(limit.allowed),
    formatCount(limit.denied),
    formatShare(limit.denied, limit.allowed + limit.denied),
  ]);
  return ['', ...alignColumns([['limit', 'allowed', 'denied', 'share'], ...rows], '  ', 1)];
}

const MIN_KEY_COLUMNS = 12;

/** A table whose first column is a key, cut so that lines fit. */
export function keyTable(rows: readonly (readonly string[])[], columns: number): string[] {
  const [head] = alignColumns(
    rows.map(([, ...rest]) => ['', ...rest]),
    '  ',
  );
  const most = Math.max(MIN_KEY_COLUMNS, columns - head.length);
  return alignColumns(
    rows.map(([key, ...rest]) => [cutKey(key, most), ...rest]),
    '  ',
    1,
  );
}

/** A time of a report without its zone, which is in the first line. */
export const shortTime = (iso: string): string => iso.slice(0, 19).replace('T', ' ');

function deniedTable(top: readonly DeniedKey[], total: number, columns: number): string[] {
  if (top.length === 0) return ['no key was denied'];
  const rows = top.map((row) => [
    row.key,
    formatCount(row.calls),
    formatCount(row.denied),
    formatShare(row.denied, row.calls),
    shortTime(row.firstDenied),
    shortTime(row.lastDenied),
  ]);
  const head = ['denied key', 'calls', 'denied', 'share', 'first denied', 'last denied'];
  const more =
    total > top.length ? [`and ${plural(total - top.length, 'more key')}; --top shows more`] : [];
  return [...keyTable([head, ...rows], columns), ...more];
}

function cutKey(key: string, most: number): string {
  const text = toPrintableLine(key) || '""';
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** Notes on lines that do not count and on the precision of the times, for standard error. */
export function noteLines(lines: LinesReport, calls: CallTally): string[] {
  const { read, bad, problems, leftOut, withoutKey, ofFurtherKeys, late, furthestLateMs } = lines;
  const hidden = bad - problems.length;
  const of = `of ${plural(read, 'line')}`;
  return [
    ...(bad > 0 ? [`${formatCount(bad)} ${of} cannot be read:`] : []),
    ...problems.map((problem) => `  ${problem}`),
    ...(hidden > 0 && problems.length > 0 ? [`  and ${formatCount(hidden)} more`] : []),
    ...(leftOut > 0 ? [`${formatCount(leftOut)} ${of} left out by --where`] : []),
    ...(withoutKey > 0 ? [`${formatCount(withoutKey)} ${of} have no key and are not counted`] : []),
    ...(ofFurtherKeys > 0
      ? [`${plural(ofFurtherKeys, 'call')} of keys beyond --max-keys left out`]
      : []),
    ...(late > 0
      ? [
          `${plural(late, 'line')} further out of order than --reorder, up to ${formatSpan(furthestLateMs)}: decided late`,
        ]
      : []),
    ...(calls.total > 0 && calls.isWholeSeconds
      ? [
          'times have whole seconds: calls of one second count as simultaneous, so denials are an upper bound',
        ]
      : []),
  ];
}

/** Candidates around the suggestion. */
const SHOWN_CANDIDATES = 2;

export function suggestionLines(
  { rate, burst, candidates }: Suggestion,
  percent: number,
  report: ReplayReport,
): string[] {
  const { keys, deniedKeys } = report;
  const at = candidates.findIndex((candidate) => candidate.rate === rate);
  const near = candidates.slice(Math.max(0, at - SHOWN_CANDIDATES), at + SHOWN_CANDIDATES + 1);
  const rows = near.map((each) => [
    `${each.rate === rate ? '*' : ' '} bucket ${each.rate} burst ${each.burst}`,
    formatCount(Math.round(each.perMinute)),
    formatCount(each.throttled),
    formatShare(each.throttled, keys),
  ]);
  const isHeld = deniedKeys * 100 <= percent * keys + 1e-6;
  return [
    `suggestion: bucket ${rate} burst ${burst}`,
    `  throttles at most ${percent} % of the keys; of such limits, one key can make the fewest calls in a minute`,
    `  verified by replaying it: ${formatCount(deniedKeys)} of ${plural(keys, 'key')} denied, ${formatShare(deniedKeys, keys)}${isHeld ? '' : ', more than asked for'}`,
    '',
    ...alignColumns(
      [['  limit', 'calls in a minute', 'throttled keys', 'share'], ...rows],
      '  ',
      1,
    ),
    '',
  ];
}
