/** The live scenarios as pictures: five small ones of an adaptive limit, two of a busy one. */

import { roundAxisEnd } from '../../dist/cli/chart/chart.js';
import { drawPanels } from '../../dist/cli/chart/panels.js';

/** The end of an axis that holds these values. */
const upTo = (values) => roundAxisEnd(values.filter((value) => value !== undefined));

/** A round-trip time holds until the next one, but not through a silence. */
function heldRtts(samples) {
  let last;
  return samples.map(({ t, rttMs }) => {
    if (rttMs !== undefined) last = { t, rttMs };
    const isFresh = last && t - last.t <= Math.max(0.2, (2 * last.rttMs) / 1000);
    return [t, isFresh ? last.rttMs : undefined];
  });
}

function adaptivePanel({ title, seen, samples, marks, seconds }) {
  const points = (of) => samples.map((sample) => [sample.t, of(sample)]);
  const counts = samples.flatMap(({ limit, inFlight }) => [limit, inFlight]);
  const rtts = heldRtts(samples);
  return {
    title,
    caption: seen,
    markers: marks,
    x: { label: 's', from: 0, to: seconds },
    rows: [
      {
        y: { label: 'calls', from: 0, to: upTo(counts) },
        series: [
          { name: 'in flight', style: 'bars', points: points(({ inFlight }) => inFlight) },
          { name: 'limit', style: 'line', points: points(({ limit }) => limit) },
        ],
      },
      {
        y: { label: 'ms', from: 0, to: upTo(rtts.map(([, rttMs]) => rttMs)) },
        series: [{ name: 'round-trip time', style: 'line', points: rtts }],
      },
    ],
  };
}

export const drawAdaptive = (results) =>
  drawPanels({
    title: 'An adaptive limit and five real servers it knows nothing about',
    panels: results.map(adaptivePanel),
    notes: [
      'One setting in all five: the most it may ever allow.',
      'Everything else it learns, from how long answers',
      'take and from those that say "too much".',
    ],
  });

/** More than this many calls a second is no limit to speak of. */
const TOP = 1000;

/** All runs on the same stretch of time, so that one sees which is back first. */
const busyPanel = (seconds) => (run) => {
  const points = (of) => run.perSecond.map((second) => [second.t, of(second)]);
  const ended = [run.perSecond.length, undefined];
  const limits = run.limits.map(({ t, limit }) => [t, Math.min(limit, TOP)]);
  return {
    title: `Busy for ${run.busyMs / 1000} s`,
    caption: `everything is sent again ${run.backAfter.toFixed(1)} s after it is over`,
    markers: [
      { at: run.busyFrom, name: 'busy' },
      { at: run.busyTo, name: 'well again' },
    ],
    x: { label: 's', from: 0, to: seconds },
    rows: [
      {
        height: 160,
        y: { label: 'calls/s', from: 0, to: TOP, scale: 'log' },
        series: [
          { name: 'offered', style: 'shade', points: [...points(({ offered }) => offered), ended] },
          { name: 'sent', style: 'bars', points: [...points(({ sent }) => sent), ended] },
          { name: 'limit', style: 'line', points: [...limits, [run.seconds, undefined]] },
        ],
      },
      {
        y: { label: 'replies/s', from: 0, to: 10 },
        series: [{ name: 'busy', style: 'line', points: [...points(({ busy }) => busy), ended] }],
      },
    ],
  };
};

export const drawBusy = ({ runs }) =>
  drawPanels({
    title: 'A real service says busy: traffic collapses, and a longer spell is felt for longer',
    panels: runs.map(busyPanel(Math.max(...runs.map(({ perSecond }) => perSecond.length)))),
    notes: [
      'What is offered and not sent is refused by the caller',
      'itself. A limit at the top edge is none; below one',
      'call a second it means a probe now and then.',
    ],
  });
