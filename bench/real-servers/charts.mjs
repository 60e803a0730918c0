/** Draws the scenarios with real servers: five panels of an adaptive limit, two of a busy limit. */

import { roundAxisEnd } from '../../dist/cli/chart/chart.js';
import { drawPanels } from './panels.mjs';

/** The end of an axis that contains these values. */
const upTo = (values) => roundAxisEnd(values.filter((value) => value !== undefined));

/** A round-trip time holds until the next one, but not during an outage. */
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
    title: 'An adaptive limit against five real servers of unknown capacity',
    panels: results.map(adaptivePanel),
    notes: [
      'The only option is the maximum of the limit.',
      'Everything else is learnt from round-trip times',
      'and back-pressure.',
    ],
  });

/** Higher limits are drawn at this value: they have no effect here. */
const TOP = 1000;

/** All runs on the same time axis, so that recoveries can be compared. */
const busyPanel = (seconds) => (run) => {
  const points = (of) => run.perSecond.map((second) => [second.t, of(second)]);
  const ended = [run.perSecond.length, undefined];
  const limits = run.limits.map(({ t, limit }) => [t, Math.min(limit, TOP)]);
  return {
    title: `Busy for ${run.busyMs / 1000} s`,
    caption: `full recovery ${run.recoveryS.toFixed(1)} s after the overload`,
    markers: [
      { at: run.busyFrom, name: 'busy' },
      { at: run.busyTo, name: 'healthy' },
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
    title: 'A busy limit against a real service: back-off and recovery',
    panels: runs.map(busyPanel(Math.max(...runs.map(({ perSecond }) => perSecond.length)))),
    notes: [
      'Offered calls that are not sent are refused by the',
      'client. A limit at the top has no effect; below 1',
      'call per second it allows single probes.',
    ],
  });
