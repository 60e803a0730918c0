import type { Chart } from '../chart/chart.ts';
import { escapeHtml, figureBoxes, htmlPage, htmlTable } from '../chart/html-page.ts';
import { drawSvg } from '../chart/svg.ts';
import {
  clientRows,
  expectationText,
  headOf,
  limitText,
  type ScenarioReport,
  summaryRows,
} from './scenario-report.ts';

export function scenarioHtml(reports: readonly ScenarioReport[], charts: readonly Chart[]): string {
  const title = reports.map(({ run }) => run.scenario.name).join(' and ');
  const [head, ...rows] = clientRows(reports);
  const summary = summaryRows(reports);
  const boxes = summary.map(([name, ...values]) => [name, values.join(' and ')] as const);
  return htmlPage(
    `Scenario: ${title}`,
    `<h1>${escapeHtml(title)}</h1>
${reports
  .map(
    (report) =>
      `<p>${escapeHtml(headOf(report))}</p>\n<p class="muted">${escapeHtml(limitText(report))}</p>`,
  )
  .join('\n')}
${summary.length > 0 ? figureBoxes(boxes) : ''}
<h2>Clients</h2>
${htmlTable(head, rows)}
<h2>Over time</h2>
<div class="wide">${drawSvg({ title, charts })}</div>
${reports.map((report) => expectationSection(report, reports.length > 1)).join('\n')}`,
  );
}

function expectationSection({ expectations, run }: ScenarioReport, isNamed: boolean): string {
  if (expectations.length === 0) return '';
  const rows = expectations.map((one) => [expectationText(one), one.isMet ? 'met' : 'MISSED']);
  const of = isNamed ? ` of ${run.scenario.name}` : '';
  return `<h2>Expectations${escapeHtml(of)}</h2>\n${htmlTable(['expectation', 'result'], rows)}`;
}
