/** Chart of admitted calls per second against the limit, with the phases. */

import { roundAxisEnd } from '../../../dist/cli/chart/chart.js';
import { drawSvg } from '../../../dist/cli/chart/svg.js';

export const drawRuns = (runs) =>
  drawSvg({
    title: `${runs[0].rule.nodes} daemons share one limit under faults`,
    charts: runs.map(chartOf),
  });

function chartOf({ name, rule, phases, load }) {
  const startMs = phases[0].fromMs;
  const end = (phases.at(-1).toMs - startMs) / 1000;
  const counts = Array(Math.floor(end)).fill(0);
  for (const { at } of load.admitted) {
    const second = Math.floor((at - startMs) / 1000);
    if (second >= 0 && second < counts.length) counts[second]++;
  }
  return {
    title: name,
    x: { label: 'time, in seconds', from: 0, to: end },
    y: { label: 'calls/s', from: 0, to: roundAxisEnd([...counts, 2 * rule.rate]) },
    series: [
      {
        name: 'admitted by all nodes',
        style: 'bars',
        points: [...counts.map((count, second) => [second, count]), [counts.length, undefined]],
      },
      {
        name: `limit ${rule.rate}/s`,
        style: 'line',
        points: [
          [0, rule.rate],
          [end, undefined],
        ],
      },
    ],
    phases: phases.map((phase) => ({
      name: phase.short,
      from: (phase.fromMs - startMs) / 1000,
      to: (phase.toMs - startMs) / 1000,
    })),
  };
}
