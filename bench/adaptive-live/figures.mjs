/** What a run shows: the calls that its clients saw answered, and the calls open at its server. */

import { jainIndex, mean } from '../../dist/simulator/statistics.js';
import { median } from '../report.mjs';

/** The calls in flight at the beginning of a hang are the mean of this time before it. */
const BEFORE_MS = 1000;
/** The goodput after a hang is measured in windows of 1 s that begin every 100 ms. */
const WINDOW_MS = 1000;
const STEP_MS = 100;
const ENOUGH = 0.9;

const within = (entries, { from, to }) => entries.filter(([at]) => at >= from && at < to);

/** The value at a share of all, as p99. Undefined if there is none. */
const quantile = (values, share) =>
  values.toSorted((a, b) => a - b)[Math.floor(share * values.length)];

/** `clients` are the answered calls of each client, as `[end, round trip]`. */
function phaseOf({ clients, samples }, phase) {
  const answered = clients.map((calls) => within(calls, phase));
  const all = answered.flat();
  return {
    goodput: (1000 * all.length) / (phase.to - phase.from),
    p99: quantile(
      all.map(([, ms]) => ms),
      0.99,
    ),
    inFlight: mean(within(samples, phase).map(([, open]) => open)),
    jain: jainIndex(answered.map(({ length }) => length)),
  };
}

/** The most calls in flight while the server hangs, and that number relative to the second before. */
function hangOf({ samples }, { from, to }) {
  const before = mean(within(samples, { from: from - BEFORE_MS, to: from }).map(([, n]) => n));
  const most = Math.max(...within(samples, { from, to }).map(([, open]) => open));
  return { most, growth: most / before };
}

/** Seconds until the goodput is 90 % of the steady one; Infinity if the phase is too short. */
function recoveryOf({ clients }, goodput, { from, to }) {
  const ends = within(clients.flat(), { from, to });
  const needed = ENOUGH * goodput * (WINDOW_MS / 1000);
  for (let at = from; at + WINDOW_MS <= to; at += STEP_MS)
    if (within(ends, { from: at, to: at + WINDOW_MS }).length >= needed) return (at - from) / 1000;
  return Infinity;
}

/** `phases` are the times of `steady`, `halved`, `restored`, `hung` and `back`. */
export function figuresOf(run, phases) {
  const steady = phaseOf(run, phases.steady);
  return {
    steady,
    halved: phaseOf(run, phases.halved),
    restored: phaseOf(run, phases.restored),
    hang: hangOf(run, phases.hung),
    back: { ...phaseOf(run, phases.back), recoveryS: recoveryOf(run, steady.goodput, phases.back) },
  };
}

/** Goodput and calls in flight in each whole second between two times. */
export function secondsOf(run, { from, to }) {
  return Array.from({ length: Math.floor((to - from) / 1000) }, (_, second) => {
    const at = from + 1000 * second;
    const { goodput, inFlight } = phaseOf(run, { from: at, to: at + 1000 });
    return { goodput, inFlight };
  });
}

/** The medians of equal structures: objects and arrays of numbers. What no run has is undefined. */
export function mediansOf(runs) {
  const [first] = runs;
  if (Array.isArray(first)) return first.map((_, n) => mediansOf(runs.map((run) => run[n])));
  if (typeof first !== 'object') return median(runs.filter((value) => value !== undefined));
  const names = Object.keys(first);
  return Object.fromEntries(names.map((name) => [name, mediansOf(runs.map((run) => run[name]))]));
}
