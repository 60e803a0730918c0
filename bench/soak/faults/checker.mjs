/**
 * Judges what workers wrote down, by brute force; shares no code with Sluice or with the workers.
 *
 * The instant at which a call was decided is not known, only that it lies between the call and its reply:
 *
 *     calledAt ├────────── decided ──────────┤ grantedAt        settledAt
 *                                            ├── in flight ─────┤
 *
 * A call therefore counts in a span only if call and reply lie in it, and is in flight only from its reply to its
 * settlement. So everything found is certain: a slow machine hides violations but never invents one.
 */

import { readFileSync } from 'node:fs';

/** Rounding error of instants in milliseconds since 1970. */
const EPSILON_MS = 0.001;

/** Wall clocks are read in whole milliseconds. */
const WALL_CLOCK_MS = 1;

/** A caller that was refused checks again within this time; its demand is not interrupted. */
const RETRY_WITHIN_MS = 30;

/** All calls of several files; `from` is the index of the file. */
export function readCalls(files) {
  return files.flatMap((file, from) => {
    const calls = new Map();
    const lines = readFileSync(file, 'utf8').split('\n').slice(0, -1); // the last one may be incomplete
    for (const line of lines) {
      const { n, type, at, wall, ...more } = JSON.parse(line);
      if (type === 'call') calls.set(n, { from, n, calledAt: at, calledWall: wall, returned: 0 });
      const call = calls.get(n);
      if (type === 'grant') Object.assign(call, { ...more, grantedAt: at, grantedWall: wall });
      if (type === 'refuse') call.refusedAt = at;
      if (type === 'settle') call.settledAt = at;
      if (type === 'end') call.endedAt = at;
      if (type === 'back') {
        call.returned += more.cost;
        call.returnedAt = at;
      }
    }
    return [...calls.values()];
  });
}

export const permitsOf = (calls) => calls.filter(({ grantedAt }) => grantedAt !== undefined);

/** What was really used: the cost without what was given back. */
const usedOf = ({ cost, returned }) => cost - returned;
export const totalUsed = (calls) =>
  permitsOf(calls).reduce((sum, permit) => sum + usedOf(permit), 0);

/** The most that was used beyond burst + rate × span, over all spans from a call to a reply. */
export function overshootOf(calls, { burst, perSecond }) {
  const permits = permitsOf(calls).toSorted((a, b) => a.grantedAt - b.grantedAt);
  let worst = 0;
  for (const { calledAt: from } of permits) {
    let used = 0;
    for (const permit of permits) {
      if (permit.calledAt < from) continue;
      used += usedOf(permit);
      const fits = burst + ((permit.grantedAt - from) * perSecond) / 1000;
      worst = Math.max(worst, used - fits);
    }
  }
  return worst;
}

/** The largest sum of costs in flight at one instant. A permit without settlement is in flight until the end. */
export function peakInFlight(calls) {
  const permits = permitsOf(calls);
  const at = ({ grantedAt }) =>
    permits
      .filter((other) => other.grantedAt <= grantedAt && endOf(other) > grantedAt)
      .reduce((sum, { cost }) => sum + cost, 0);
  return Math.max(0, ...permits.map(at));
}
const endOf = ({ settledAt, returnedAt }) => settledAt ?? returnedAt ?? Infinity;

/**
 * The longest time up to `until` for which a call waited although less than `most` were in flight throughout.
 *
 * Between two events nothing changes, so it is enough to look at each piece between them.
 */
export function longestIdle(calls, most, until) {
  const permits = permitsOf(calls);
  const waits = waitsOf(calls);
  const flights = permits.map((permit) => [permit.grantedAt, endOf(permit)]);
  const instants = [...new Set([...waits, ...flights].flat()), until]
    .filter((at) => at <= until)
    .toSorted((a, b) => a - b);
  let [longest, since] = [0, undefined];
  for (const at of instants) {
    if (since !== undefined) longest = Math.max(longest, at - since);
    const isIdle = covering(waits, at) > 0 && covering(flights, at) < most;
    since = isIdle ? (since ?? at) : undefined;
  }
  return longest;
}

/** From when to when each call waits. */
const waitsOf = (calls) =>
  calls.map(({ calledAt, grantedAt, refusedAt = Infinity }) => [
    calledAt,
    grantedAt ?? refusedAt + RETRY_WITHIN_MS,
  ]);

const covering = (pieces, at) => pieces.filter(([from, to]) => from <= at && at < to).length;

/** The longest time up to `until` without a grant although a call waited and the budget had a token; in steps of 1 ms. */
export function longestStall(calls, { burst, perSecond }, until) {
  const permits = permitsOf(calls).toSorted((a, b) => a.grantedAt - b.grantedAt);
  const waits = waitsOf(calls);
  let [longest, stalledMs, tokens, next] = [0, 0, burst, 0];
  for (let at = Math.min(...waits.flat()); at < until; at++) {
    tokens = Math.min(burst, tokens + perSecond / 1000);
    stalledMs = tokens >= 1 && covering(waits, at) > 0 ? stalledMs + 1 : 0;
    longest = Math.max(longest, stalledMs);
    for (; permits[next]?.grantedAt <= at; next++) {
      tokens -= permits[next].cost;
      stalledMs = 0;
    }
  }
  return longest;
}

/** The largest sum of costs within one second of the wall clock. */
export function peakPerSecond(calls) {
  const sums = new Map();
  for (const permit of permitsOf(calls)) {
    const second = Math.floor(permit.grantedWall / 1000);
    if (Math.floor(permit.calledWall / 1000) !== second) continue; // it may belong to either second
    sums.set(second, (sums.get(second) ?? 0) + usedOf(permit));
  }
  return Math.max(0, ...sums.values());
}

/**
 * Of permits of a spacing: how many came too close after another, how many were handed out before they were due, and
 * which share of the places stayed unused.
 */
export function spacingOf(calls, everyMs) {
  const permits = permitsOf(calls);
  const times = permits.map(({ dueAt }) => dueAt).toSorted((a, b) => a - b);
  const gaps = times.slice(1).map((at, n) => at - times[n]);
  const spanMs = times.at(-1) - times[0];
  return {
    tooClose: gaps.filter((ms) => ms < everyMs - EPSILON_MS).length,
    early: permits.filter(({ dueAt, grantedWall }) => !(grantedWall + WALL_CLOCK_MS >= dueAt))
      .length,
    unused: times.length < 2 ? 1 : 1 - ((times.length - 1) * everyMs) / spanMs,
  };
}

/** Pairs of permits of which the later one, by call and reply, has not the higher fencing token, or one has none. */
export function tokensOutOfOrder(calls) {
  const permits = permitsOf(calls);
  const isOutOfOrder = (one, other) =>
    one.grantedAt < other.calledAt && !(one.fencingToken < other.fencingToken);
  const pairs = permits.flatMap((one) => permits.filter((other) => isOutOfOrder(one, other)));
  return pairs.length;
}

/** The longest time from a call to its reply; Infinity if a reply is missing. */
export const slowestDecision = (calls) =>
  Math.max(
    0,
    ...calls.map(
      ({ calledAt, grantedAt, refusedAt }) => (grantedAt ?? refusedAt ?? Infinity) - calledAt,
    ),
  );
