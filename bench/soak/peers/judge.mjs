/**
 * Compares a phase with the stated bound: the figures and the overshoot bound of the simulator (docs/explanation/accuracy-of-peers.md), fed
 * with measurements.
 *
 * The bound depends on the propagation time of reports. On a real machine that is the network, plus two processes that may
 * be busy; how busy is measured from outside, as the reply time of calls. A process that the machine delays for longer is
 * like a node whose clock stands still: everything it sends and receives is late by that much. This may happen to the
 * sender, to the receiver, and to the load generator here that records replies.
 */

import { limiter } from 'sluice';
import {
  overshootBound,
  PeakCounter,
  propagationBoundMs,
} from '../../../dist/simulator/peers/bound.js';
import { AgeHistogram, figuresOf } from '../../../dist/simulator/peers/figures.js';
import { FLEET_DEFAULTS, PEER_DEFAULTS } from '../../../dist/simulator/peers/fleet.js';

/** This fraction of the replies takes no longer than usual. */
const USUAL_FRACTION = 0.99;

/** The calls that one central bucket would have admitted. */
export function centralOf(calls, { rate, burst }) {
  let at = 0;
  const bucket = { bucket: { rate, burst } };
  const oracle = limiter({ limit: bucket, clock: { now: () => at } });
  return calls.filter((callAt) => {
    at = callAt;
    return oracle.check('client').verdict === 'allow';
  });
}

export function judge(phase, { load, monitor, network, rule, central }) {
  const { name, fromMs, toMs, split, crashes = 0, loss = 0, before, after, observe } = phase;
  const isWithin = (at) => at >= fromMs && at < toMs;
  const { nodes, rate, burst } = rule;
  const calls = load.calls.filter(isWithin);
  const admitted = load.admitted.filter(({ at }) => isWithin(at));
  const replies = load.replies.filter(({ at }) => isWithin(at));
  const sortedMs = replies.map(({ ms }) => ms).toSorted((a, b) => a - b);
  const usualMs = sortedMs[Math.floor(sortedMs.length * USUAL_FRACTION)];
  const slowestMs = sortedMs.at(-1);
  const betweenMs = (1000 * nodes) / (rate * rule.load); // a delay between two calls is not visible
  const spanMs = toMs - fromMs;
  const options = {
    ...FLEET_DEFAULTS,
    ...rule,
    spanMs,
    network: { delayMs: network.delayMs, jitterMs: 2 * usualMs, loss, ...(split && { split }) },
    clockStep: { node: 0, atMs: 0, byMs: -3 * (slowestMs + betweenMs) },
  };
  const withinMs = propagationBoundMs(options);
  const peak = new PeakCounter(withinMs, 1);
  for (const at of calls) peak.add(0, at);
  const figures = figuresOf(options, {
    startMs: fromMs,
    intervalMs: PEER_DEFAULTS.intervalMs,
    admitted,
    calls: calls.length,
    oracleAdmitted: central.filter(isWithin).length,
    falseAllows: 0,
    falseDenials: 0,
    servedBy: Array.from(
      { length: nodes },
      (_, n) => admitted.filter(({ node }) => node === n).length,
    ),
    sent: after.datagrams - before.datagrams,
    sentBytes: after.sentBytes - before.sentBytes,
    ages: new AgeHistogram(),
    bound: overshootBound(options, peak.peak, crashes),
    disturbances: [],
  });
  const windows = Object.entries(figures.worst)
    .filter(([windowMs]) => windowMs >= 1000)
    .map(([windowMs, ratio]) => {
      const bucket = burst + (rate * windowMs) / 1000;
      const inWindow = Math.round(ratio * bucket);
      return { windowMs: Number(windowMs), calls: inWindow, bucket, bound: bucket + figures.bound };
    });
  return {
    name,
    observation: observe?.(load),
    seconds: spanMs / 1000,
    calls: calls.length,
    unanswered: Math.max(0, calls.length - replies.length),
    admitted: admitted.length,
    windows,
    overshoot: figures.overshootCalls,
    bound: figures.bound,
    withinMs,
    usualMs,
    slowestMs,
    utilisation: figures.utilisation,
    fairNodes: figures.fairNodes,
    convergedAfterMs: monitor.convergedAfter(phase.overMs, toMs),
    medianSpread: medianOf(monitor.spreads(fromMs, toMs).filter(Number.isFinite)),
    repaired: after.repaired - before.repaired,
    lost: after.lost - before.lost,
    missing: after.missing,
    bytesPerSecond: figures.bytesPerSecond,
    datagramsPerSecond: figures.datagramsPerSecond,
    /** Figures above the stated bound. */
    broken: [
      ...windows
        .filter(({ calls, bound }) => calls > bound)
        .map(({ windowMs, calls, bound }) => ({
          what: `peak ${windowMs / 1000} s`,
          calls,
          bound,
        })),
      ...(figures.overshootCalls > figures.bound
        ? [{ what: 'overshoot', calls: figures.overshootCalls, bound: figures.bound }]
        : []),
    ],
  };
}

const medianOf = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

/** All phases as one, for windows across their borders. */
export function wholeRunOf(phases) {
  const [first, last] = [phases[0], phases.at(-1)];
  return {
    name: 'whole run',
    fromMs: first.fromMs,
    toMs: last.toMs,
    split: phases.find(({ split }) => split)?.split,
    crashes: phases.reduce((sum, { crashes = 0 }) => sum + crashes, 0),
    loss: Math.max(...phases.map(({ loss = 0 }) => loss)),
    overMs: last.overMs,
    before: first.before,
    after: last.after,
  };
}
