/**
 *     title
 *     ┌ chart title                              legend ┐
 *     │ y label                                         │
 *     │  ┤▒▒▒▒▒▒▒▒▒▒▒▒┆                                 │   phases are bands behind the plot,
 *     │  ┤▒▒ busy ▒▒▒▒┆  recovering                     │   with their names on top
 *     │  └────────────────────────────────────── x label│
 *     └ … the next chart
 *
 * The SVG refers to no external resource.
 */

import type { Chart, Phase, Series } from './chart.ts';
import {
  BAND_COLOUR,
  type Box,
  coloursOf,
  drawSeries,
  formatPixels,
  MUTED_CENTRED,
  MUTED_FILL,
  svgDocument,
  textElement,
  xAxis,
  xOf,
} from './plot.ts';

export interface Picture {
  readonly title: string;
  readonly charts: readonly Chart[];
}

const WIDTH = 860;
const MARGIN = { left: 64, right: 24 };
const TITLE_HEIGHT = 48;

/** Title, legend and y label above a plot, x labels below it. */
const HEAD_HEIGHT = 58;
const FOOT_HEIGHT = 54;

/** A single chart is tall; several are low, so that all fit on one screen. */
const SINGLE_PLOT_HEIGHT = 320;
const PLOT_HEIGHT = 150;

export function drawSvg({ title, charts }: Picture): string {
  const plotHeight = charts.length > 1 ? PLOT_HEIGHT : SINGLE_PLOT_HEIGHT;
  const chartHeight = HEAD_HEIGHT + plotHeight + FOOT_HEIGHT;
  const height = TITLE_HEIGHT + charts.length * chartHeight;
  const plots = charts.flatMap((chart, n) => {
    const top = TITLE_HEIGHT + n * chartHeight + HEAD_HEIGHT;
    const width = WIDTH - MARGIN.left - MARGIN.right;
    return drawPlot(chart, { left: MARGIN.left, top, width, height: plotHeight });
  });
  return svgDocument(title, WIDTH, height, plots);
}

function drawPlot(chart: Chart, box: Box): string[] {
  const colours = coloursOf(chart.series);
  return [
    textElement(20, box.top - 36, chart.title, 'font-size="14" font-weight="600"'),
    textElement(20, box.top - 14, chart.y.label, MUTED_FILL),
    ...legend(chart.series, colours, box),
    ...(chart.phases ?? []).map((phase) => phaseBand(phase, chart, box)),
    ...drawSeries(chart.series, colours, chart, box, box.height > PLOT_HEIGHT ? 7 : 5),
    ...(chart.phases ?? []).map((phase) => phaseLabel(phase, chart, box)),
    ...xAxis(chart.x, box, 12),
    textElement(box.left + box.width / 2, box.top + box.height + 37, chart.x.label, MUTED_CENTRED),
  ];
}

function phaseBand({ from, to }: Phase, { x }: Chart, box: Box): string {
  const [left, right] = [xOf(from, x, box), xOf(to, x, box)];
  const size = `width="${formatPixels(right - left)}" height="${box.height}"`;
  return `<rect x="${formatPixels(left)}" y="${box.top}" ${size} fill="${BAND_COLOUR}"/>`;
}

function phaseLabel({ name, from, to }: Phase, { x }: Chart, box: Box): string {
  const middle = (xOf(from, x, box) + xOf(to, x, box)) / 2;
  return textElement(middle, box.top - 6, name, MUTED_CENTRED);
}

/** From right to left. The width of a text is estimated from its number of characters. */
function legend(series: readonly Series[], colours: Map<Series, string>, box: Box): string[] {
  let right = box.left + box.width;
  return [...series].reverse().map((one) => {
    const left = right - one.name.length * 7 - 22;
    right = left - 18;
    const tall = one.style === 'line' || one.style === 'curve' ? 3 : 12;
    const swatch = `<rect x="${left}" y="${box.top - 40 - tall / 2}" width="16" height="${tall}" fill="${colours.get(one)}"/>`;
    return swatch + textElement(left + 22, box.top - 36, one.name);
  });
}
