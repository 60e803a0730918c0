import { escapeHtml, figureBoxes, htmlPage, htmlTable } from '../chart/html-page.ts';
import { drawSvg } from '../chart/svg.ts';
import { limitTitle } from './deciders.ts';
import { REPORT_STEPS, type ReplayReport } from './report.ts';
import type { CallTally } from './tally.ts';
import { formatCount, formatShare, shortTime, spanLine, summaryRows } from './text-report.ts';
import { timeChart } from './time-chart.ts';

export function replayHtml(
  heading: string,
  logs: readonly string[],
  report: ReplayReport,
  calls: CallTally,
  notes: readonly string[],
): string {
  const chart = timeChart(calls.timeline, calls.zoneMinutes, '', 'denied', REPORT_STEPS);
  const svg = drawSvg({ title: 'Calls and denied calls over time', charts: [chart] });
  return htmlPage(
    `Replay: ${heading}`,
    `<h1>${escapeHtml(heading)}</h1>
<p>${escapeHtml(spanLine(calls, report.keys))}</p>
<p class="muted">${escapeHtml(logs.join(', '))}</p>
${figureBoxes(summaryRows(report))}
<h2>When</h2>
${calls.total === 0 ? '<p>No calls.</p>' : `<div class="wide">${svg}</div>`}
${limitSection(report)}
<h2>Who</h2>
${keySection(report)}
${noteSection(notes)}`,
  );
}

function limitSection({ limits = [] }: ReplayReport): string {
  if (limits.length === 0) return '';
  const rows = limits.map((limit) => [
    limitTitle(limit),
    formatCount(limit.allowed),
    formatCount(limit.denied),
    formatShare(limit.denied, limit.allowed + limit.denied),
  ]);
  return `<h2>Limits</h2>\n${htmlTable(['limit', 'allowed', 'denied', 'share'], rows)}`;
}

function keySection({ top, deniedKeys }: ReplayReport): string {
  if (top.length === 0) return '<p>No key was denied.</p>';
  const rows = top.map(({ key, calls, denied, share, firstDenied, lastDenied }) => [
    key || '""',
    formatCount(calls),
    formatCount(denied),
    formatShare(denied, calls),
    { html: shareBar(share) },
    shortTime(firstDenied),
    shortTime(lastDenied),
  ]);
  const head = ['denied key', 'calls', 'denied', 'share', '', 'first denied', 'last denied'];
  const hidden = deniedKeys - top.length;
  const more =
    hidden > 0 ? `<p class="muted">and ${formatCount(hidden)} more; --top shows more</p>` : '';
  return htmlTable(head, rows) + more;
}

const BAR_WIDTH = 80;

const shareBar = (share: number): string =>
  `<svg width="${BAR_WIDTH}" height="10" aria-hidden="true"><rect class="bar" width="${BAR_WIDTH}" height="10"/><rect width="${Math.round(share * BAR_WIDTH)}" height="10"/></svg>`;

const noteSection = (notes: readonly string[]): string =>
  notes.length === 0
    ? ''
    : `<h2>Notes</h2>\n<ul>${notes.map((note) => `<li>${escapeHtml(note)}</li>`).join('\n')}</ul>`;
