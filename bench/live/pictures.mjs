/** The live scenarios as pictures: five small ones of an adaptive limit, two of a busy one. */

import { roundTop } from '../../dist/cli/draw/chart.js';
import { drawPanels } from '../../dist/cli/draw/panels.js';
import { drawSvg } from '../../dist/cli/draw/svg.js';

/** The end of an axis that holds these values. */
const upTo = (values) => roundTop(values.filter((value) => value !== undefined));

function panelOf({ title, seen, samples, marks, seconds }) {
  const points = (of) => samples.map((sample) => [sample.t, of(sample)]);
  const calls = [
    { name: 'in flight', look: 'bars', points: points(({ inFlight }) => inFlight) },
    { name: 'limit', look: 'line', points: points(({ limit }) => limit) },
  ];
  const rtt = [{ name: 'round trip', look: 'line', points: points(({ rttMs }) => rttMs) }];
  const counts = samples.flatMap(({ limit, inFlight }) => [limit, inFlight]);
  return {
    title,
    note: seen,
    marks,
    x: { label: 's', from: 0, to: seconds },
    rows: [
      { y: { label: 'calls', from: 0, to: upTo(counts) }, series: calls },
      { y: { label: 'ms', from: 0, to: upTo(samples.map(({ rttMs }) => rttMs)) }, series: rtt },
    ],
  };
}

export function drawAdaptive(results) {
  return drawPanels({
    title: 'An adaptive limit and five real servers it knows nothing about',
    panels: results.map(panelOf),
    notes: [
      'One setting in all five: the most it may ever allow.',
      'Everything else it learns from how long answers take',
      'and from those that say "too much".',
    ],
  });
}

/** From 0 on everything is in view, and the limit's deep end too: below one call a second is a probe now and then. */
const calls = (top) => ({ label: 'calls/s', from: 0, to: top, scale: 'log' });

function chartOf({ busyMs, busyFrom, busyTo, backAfter, perSecond, limits }) {
  const top = 1000;
  const points = (of) => perSecond.map((second) => [second.t, of(second)]);
  const end = perSecond.length;
  return {
    title: `Busy for ${busyMs / 1000} s: everything is sent again ${backAfter.toFixed(1)} s later`,
    x: { label: 'time, in seconds', from: 0, to: end },
    y: calls(top),
    series: [
      { name: 'offered', look: 'shade', points: points(({ offered }) => offered) },
      { name: 'sent', look: 'bars', points: points(({ sent }) => sent) },
      {
        name: 'limit',
        look: 'line',
        points: limits.map(({ t, limit }) => [t, Math.min(limit, top)]),
      },
      { name: 'busy replies', look: 'line', points: points(({ busy }) => busy) },
    ],
    phases: [{ name: 'server busy', from: busyFrom, to: busyTo }],
  };
}

export function drawBusy({ runs }) {
  return drawSvg({
    title: 'A service says busy: traffic collapses, and comes back later after a longer spell',
    charts: runs.map(chartOf),
  });
}
