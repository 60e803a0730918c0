import { toPrintableLine } from '../core/printable.ts';
import type { TopCalled } from '../daemon/calls/call-recorder.ts';
import { mostCalledKeys } from '../daemon/calls/most-called-keys.ts';
import type { SourceName } from '../daemon/key-counts/sources.ts';
import { alignColumns, cut } from './chart/table.ts';
import type { ScreenLine } from './framework/screen.ts';
import type { SortOrder, TopView } from './top-view.ts';

/** `GET /top`. */
export interface TopPage {
  readonly at: number;
  readonly span: 'now' | 'hour';
  /** The time that the counts of keys cover. */
  readonly spanSeconds: number;
  readonly limits: readonly LimitCounters[];
  readonly reasons: Readonly<Record<string, number>>;
  /** Checks that an overload shed, allowed or denied. */
  readonly shed?: number;
  readonly denied: readonly DeniedKeys[];
  readonly called: readonly TopCalled[];
}

interface LimitCounters extends Pick<Cause, 'shadow'> {
  readonly name: string;
  readonly allowed: number;
  readonly denied: number;
  /** The highest use of its quota by a key that the daemon knows, at the last sample of its history: 0 to 1. */
  readonly use?: number;
}

interface DeniedKeys extends Cause {
  readonly denied: number;
  readonly keys: readonly {
    readonly key: string;
    readonly denied: number;
    readonly error?: number;
  }[];
}

/** The source of a denial. */
export interface Cause {
  readonly limit?: string;
  readonly reason?: string;
  readonly command?: string;
  readonly shadow?: true | undefined;
}

export interface TopReport
  extends Pick<TopPage, 'at' | 'span' | 'spanSeconds' | 'denied' | 'called'> {
  readonly seconds: number;
  readonly limits: readonly LimitRates[];
}

interface LimitRates extends LimitCounters {
  readonly allowedPerSecond: number;
  readonly deniedPerSecond: number;
}

/** A limit's name, or the reason where no limit was exhausted. */
export const causeText = ({ limit, reason, command, shadow }: Partial<SourceName>): string => {
  const by = [reason, limit ?? command].filter((word) => word !== undefined).join(' of ');
  return toPrintableLine(shadow ? `${by} (shadow)` : by);
};

/** The rates between two readings; a counter that has fallen began anew. */
export function reportOf(before: TopPage, page: TopPage): TopReport {
  const seconds = Math.max(0.001, (page.at - before.at) / 1000);
  const known = new Map(countersOf(before).map((limit) => [limit.name, limit]));
  const limits = countersOf(page).map((limit) => {
    const old = known.get(limit.name) ?? { allowed: 0, denied: 0 };
    const rate = (name: 'allowed' | 'denied'): number => {
      const grown = limit[name] - (limit[name] < old[name] ? 0 : old[name]);
      return Math.round((grown / seconds) * 10) / 10;
    };
    return { ...limit, allowedPerSecond: rate('allowed'), deniedPerSecond: rate('denied') };
  });
  const { at, span, spanSeconds, denied, called } = page;
  limits.sort(COMPARISONS.denied);
  return { at, seconds, span, spanSeconds, limits, denied, called };
}

/** The limits and keys that match the filter, in the order that was chosen. */
export function arrange(report: TopReport, { sort, filter }: TopView): TopReport {
  const wanted = filter.toLowerCase();
  const isWanted = (...names: string[]): boolean =>
    names.some((name) => name.toLowerCase().includes(wanted));
  const limits = report.limits.filter(({ name }) => isWanted(name)).sort(COMPARISONS[sort]);
  const wantedOf = <S extends SourceOfKeys>(sources: readonly S[]): S[] =>
    sources
      .map((source) => ({
        ...source,
        keys: source.keys.filter(({ key }) => isWanted(key, causeText(source))),
      }))
      .filter(({ keys }) => keys.length > 0);
  const { denied, called } = report;
  return { ...report, limits, denied: wantedOf(denied), called: wantedOf(called) };
}

interface SourceOfKeys extends SourceName {
  readonly keys: readonly { readonly key: string }[];
}

/** The lists and `unmatched` deny calls as limits do; an overload also allows some. Those that never did are left out. */
const countersOf = ({ limits, reasons, shed = 0 }: TopPage): LimitCounters[] => [
  ...limits,
  ...Object.entries(reasons)
    .map(([name, denied]) => ({ name, allowed: name === 'overload' ? shed - denied : 0, denied }))
    .filter(({ allowed, denied }) => allowed + denied > 0),
];

const shadowLast = (a: Cause, b: Cause): number => Number(a.shadow ?? 0) - Number(b.shadow ?? 0);

const callsPerSecond = ({ allowedPerSecond, deniedPerSecond }: LimitRates): number =>
  allowedPerSecond + deniedPerSecond;

type Compare = (a: LimitRates, b: LimitRates) => number;

const byDenied: Compare = (a, b) =>
  b.deniedPerSecond - a.deniedPerSecond ||
  b.allowedPerSecond - a.allowedPerSecond ||
  b.denied - a.denied;

const byName: Compare = (a, b) => (a.name < b.name ? -1 : 1);

/** Limits in shadow mode come last, except by name. */
const COMPARISONS: Readonly<Record<SortOrder, Compare>> = {
  denied: (a, b) => shadowLast(a, b) || byDenied(a, b),
  calls: (a, b) => shadowLast(a, b) || callsPerSecond(b) - callsPerSecond(a) || byDenied(a, b),
  allowed: (a, b) =>
    shadowLast(a, b) || b.allowedPerSecond - a.allowedPerSecond || b.allowed - a.allowed,
  use: (a, b) => shadowLast(a, b) || (b.use ?? -1) - (a.use ?? -1) || byDenied(a, b),
  name: byName,
};

const LIMIT_HEADINGS = [
  ...['limit', 'allowed/s', 'denied/s', 'denied %', 'use %', 'allowed', 'denied in all'],
];

const SPANS = { now: 'last 10 to 20 s', hour: 'last 1 to 2 h' };

/** As lines of at most `columns` characters; at most `rows` of them. By calls, the keys are those called most. */
export function reportLines(
  title: string,
  report: TopReport,
  sort: SortOrder,
  columns: number,
  rows: number,
): ScreenLine[] {
  const [keyHead, ...keyRows] = sort === 'calls' ? calledTable(report) : deniedTable(report);
  // Title and two headings with an empty line before each; keys get what limits leave, at least half.
  const free = Math.max(2, rows - 5);
  const limitCount = Math.min(report.limits.length, Math.max(free - keyRows.length, free >> 1));
  const limits = limitTable(report, columns).slice(0, limitCount + 1);
  const keys = alignTable([keyHead, ...keyRows], columns, 2);
  const hidden = report.limits.length - limitCount;
  const more = hidden > 0 ? `, ${hidden} more limits` : '';
  const lines: ScreenLine[] = [
    { text: cut(`${title}${more}`, columns), style: 'title' },
    { text: '' },
    { text: limits[0], style: 'heading' },
    ...limits.slice(1).map((text) => ({ text })),
    { text: '' },
    { text: keys[0], style: 'heading' },
    ...keys.slice(1).map((text) => ({ text })),
  ];
  if (keyRows.length === 0) lines.push({ text: 'none' });
  return lines.slice(0, rows);
}

function deniedTable({ denied, span }: TopReport): string[][] {
  const keys = denied
    .flatMap((source) => source.keys.map((key) => ({ ...source, ...key, by: causeText(source) })))
    .sort((a, b) => shadowLast(a, b) || b.denied - a.denied);
  return [
    [`denied key, ${SPANS[span]}`, 'by', 'denied', ''],
    ...keys.map(({ key, by, denied: count, error }) => [
      keyText(key),
      by,
      count.toLocaleString('en-US'),
      error === undefined ? '' : `± ${error.toLocaleString('en-US')}`,
    ]),
  ];
}

const ONE_DIGIT = { minimumFractionDigits: 1, maximumFractionDigits: 1 };

function calledTable({ called, span, spanSeconds }: TopReport): string[][] {
  const perSecond = (count: number): string =>
    (count / spanSeconds).toLocaleString('en-US', ONE_DIGIT);
  return [
    [`called key, ${SPANS[span]}`, 'limit', 'calls/s', ''],
    ...mostCalledKeys(called).map(({ key, sources, calls, error }) => [
      keyText(key),
      sources.map(causeText).join(', '),
      perSecond(calls),
      error === undefined ? '' : `± ${perSecond(error)}`,
    ]),
  ];
}

const keyText = (key: string): string => toPrintableLine(key) || '""';

function limitTable({ limits }: TopReport, columns: number): string[] {
  const rows = limits.map((limit) => {
    const total = callsPerSecond(limit);
    return [
      causeText({ limit: limit.name, ...(limit.shadow && { shadow: true }) }),
      limit.allowedPerSecond.toFixed(1),
      limit.deniedPerSecond.toFixed(1),
      total === 0 ? '-' : ((limit.deniedPerSecond / total) * 100).toFixed(0),
      limit.use === undefined ? '-' : (limit.use * 100).toFixed(0),
      limit.allowed.toLocaleString('en-US'),
      limit.denied.toLocaleString('en-US'),
    ];
  });
  return alignTable([LIMIT_HEADINGS, ...rows], columns, 1);
}

const MIN_NAME_COLUMNS = 8;

/** Cuts the first column so that the table fits, and then the lines. */
function alignTable(
  rows: readonly (readonly string[])[],
  columns: number,
  names: number,
): string[] {
  const lines = alignColumns(rows, '  ', names);
  const width = Math.max(...lines.map((line) => line.trimEnd().length));
  const first = Math.max(...rows.map(([name]) => name.length));
  const max = Math.max(MIN_NAME_COLUMNS, first - Math.max(0, width - columns));
  const fitting = rows.map(([name, ...rest]) => [cut(name, max), ...rest]);
  return alignColumns(fitting, '  ', names).map((line) => cut(line.trimEnd(), columns));
}
