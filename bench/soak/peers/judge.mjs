/**
 * What an act came to, beside what the fleet promises: the figures and the bound of the simulator (docs/accuracy.md),
 * fed with what was measured.
 *
 * The bound wants to know how long news takes. On a real machine that is the network, and two processes that may be
 * busy when they should speak and hear; how long they let others wait is seen from outside, as the time that answers
 * take. A machine that holds a process up for longer makes it a node whose clock stands still: whatever it
 * hears and tells comes so much later. That may happen to the one who tells, to the one who hears, and to
 * the one here who writes down when answers came.
 */

import { limiter } from 'sluice';
import {
  overshootBound,
  PeakCounter,
  propagationBoundMs,
} from '../../../dist/simulator/peers/bound.js';
import { AgeHistogram, figuresOf } from '../../../dist/simulator/peers/figures.js';
import { FLEET_DEFAULTS, PEERS } from '../../../dist/simulator/peers/fleet.js';

/** So many answers take no longer than is usual. */
const USUAL_PART = 0.99;

/** What one bucket that saw all calls would have let through, and when. */
export function centralOf(asked, { rate, burst }) {
  let at = 0;
  const bucket = { bucket: { rate, burst } };
  const oracle = limiter({ limit: bucket, clock: { now: () => at } });
  return asked.filter((own) => {
    at = own;
    return oracle.check('client').verdict === 'allow';
  });
}

export function judge(act, { load, watch, network, rule, central }) {
  const { name, fromMs, toMs, split, crashes = 0, loss = 0, before, after, seen } = act;
  const isWithin = (at) => at >= fromMs && at < toMs;
  const { nodes, rate, burst } = rule;
  const asked = load.asked.filter(isWithin);
  const admitted = load.admitted.filter(({ at }) => isWithin(at));
  const answers = load.answers.filter(({ at }) => isWithin(at));
  const sortedMs = answers.map(({ ms }) => ms).toSorted((a, b) => a - b);
  const usualMs = sortedMs[Math.floor(sortedMs.length * USUAL_PART)];
  const slowestMs = sortedMs.at(-1);
  const betweenMs = (1000 * nodes) / (rate * rule.load); // who is held up between two questions is not seen
  const spanMs = toMs - fromMs;
  const options = {
    ...FLEET_DEFAULTS,
    ...rule,
    spanMs,
    network: { delayMs: network.delayMs, jitterMs: 2 * usualMs, loss, ...(split && { split }) },
    clockStep: { node: 0, atMs: 0, byMs: -3 * (slowestMs + betweenMs) },
  };
  const withinMs = propagationBoundMs(options);
  const most = new PeakCounter(withinMs, 1);
  for (const at of asked) most.add(0, at);
  const figures = figuresOf(options, {
    startMs: fromMs,
    intervalMs: PEERS.intervalMs,
    admitted,
    calls: asked.length,
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
    bound: overshootBound(options, most.peak, crashes),
    disturbances: [],
  });
  const windows = Object.entries(figures.worst)
    .filter(([windowMs]) => windowMs >= 1000)
    .map(([windowMs, part]) => {
      const bucket = burst + (rate * windowMs) / 1000;
      const calls = Math.round(part * bucket);
      return { windowMs: Number(windowMs), calls, bucket, bound: bucket + figures.bound };
    });
  return {
    name,
    seen: seen?.(load),
    seconds: spanMs / 1000,
    asked: asked.length,
    unanswered: Math.max(0, asked.length - answers.length),
    admitted: admitted.length,
    windows,
    excess: figures.overshootCalls,
    bound: figures.bound,
    withinMs,
    usualMs,
    slowestMs,
    utilisation: figures.utilisation,
    fairNodes: figures.fairNodes,
    alikeAfterMs: watch.alikeAfter(act.overMs, toMs),
    differMedian: middleOf(watch.spreads(fromMs, toMs).filter(Number.isFinite)),
    repaired: after.repaired - before.repaired,
    lost: after.lost - before.lost,
    missing: after.missing,
    bytesPerSecond: figures.bytesPerSecond,
    datagramsPerSecond: figures.datagramsPerSecond,
    /** What is above what was stated. */
    broken: [
      ...windows
        .filter(({ calls, bound }) => calls > bound)
        .map(({ windowMs, calls, bound }) => ({
          what: `worst ${windowMs / 1000} s`,
          calls,
          bound,
        })),
      ...(figures.overshootCalls > figures.bound
        ? [{ what: 'excess', calls: figures.overshootCalls, bound: figures.bound }]
        : []),
    ],
  };
}

const middleOf = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)];

/** All acts as one: whatever lies across their borders. */
export function wholeOf(acts) {
  const [first, last] = [acts[0], acts.at(-1)];
  return {
    name: 'all of it',
    fromMs: first.fromMs,
    toMs: last.toMs,
    split: acts.find(({ split }) => split)?.split,
    crashes: acts.reduce((all, { crashes = 0 }) => all + crashes, 0),
    loss: Math.max(...acts.map(({ loss = 0 }) => loss)),
    overMs: last.overMs,
    before: first.before,
    after: last.after,
  };
}
