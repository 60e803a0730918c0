/**
 * Back-pressure: a client-side rate limit that halves on busy replies and recovers by a factor.
 *
 * For a client of a service that replies *busy* on overload, as in TChannel: ÷ 2 for a busy reply, × 4 a second. Without
 * busy replies there is no limit. Live, busy replies come a round trip later and many at once: their number depends on
 * the rate and the round trip, not on the length of the overload. So halving only stops the traffic. The length of
 * the overload decides where recovery starts:
 *
 *     calls/s
 *      5000 ┤──────┐                               ╱────────   4. × 4 a second while good replies come
 *           │      │ 1. halve                    ╱
 *        78 ┤      │                     3. ┌──╱               after 10 s: 5000 / 4^(2 + log10 10)
 *         2 ┤      └──┬─────┬─────┬─────┬───┘                  2. a probe every 600 ms
 *           └──────┴────────────────────┴───────────── time
 *                  busy                 healthy
 *
 * 1. Each busy reply halves the limit, at first the rate that is really sent. But good replies within a second after a
 *    busy one are evidence: the limit is at least twice their rate. So are calls that run for longer than refusals
 *    take. So random busy replies cut nothing, and a service that takes a part of the traffic gets at most twice it.
 * 2. One call passes every 600 ms in any case: at most two a second into a service that is busy throughout.
 * 3. The first good reply after an overload of S seconds restores the rate before it, divided by 4^(2 + log10 S).
 *    After a tenfold overload recovery takes a second longer.
 * 4. The limit grows while good replies come. Without replies it grows at each turn of a second: from one second after
 *    the last reply if no call was sent since, else from ten seconds after it.
 *
 * Below its maximum the limit is spread evenly over each second. It is a real number and never zero.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER, UNLIMITED } from '../core/decision.ts';
import { OptionReader } from '../core/options.ts';
import { requireCost } from './cost.ts';
import { COUNTS_ONLY, type Policy, type State, timeToOpen } from './policy.ts';
import { asRule } from './rules.ts';

/** Backs off on busy replies, and recovers. */
export interface BusyOptions {
  /** Recovery per second, as a multiple of the limit that is added to it. Default 3. */
  readonly recoverRate?: number | undefined;
  /** Or: recovery per second, in calls a second. */
  readonly recoverValue?: number | undefined;
  /** The limit without busy replies, in calls a second. Default 9,999,999: unlimited in practice. */
  readonly max?: number | undefined;
}

/** TChannel's model: the most halvings within a second. */
const MAX_HALVINGS = 20;

/** Lower bound of the limit, in calls a second. */
const MIN_LIMIT = 2 ** -20;

/** A call passes this long after the last one, whatever the limit: at most two a second. */
const PROBE_MS: Millis = 600;

/** Below its maximum the limit is spread evenly, but calls may come in bursts of this time. */
const BURST_MS: Millis = 100;

/** Good replies are evidence for this time after a first busy reply. */
const EVIDENCE_MS: Millis = 1000;

/** The limit may be this many times the rate of good replies. */
const GOOD_FACTOR = 2;

/** Without replies the limit grows after this time, without and with calls in flight: some are never settled. */
const IDLE_MS: Millis = 1000;
const SILENT_MS: Millis = 10_000;

/** A reply to a call sent this long ago says nothing about the present. */
const STALE_MS: Millis = 60_000;

/** Floating-point error tolerated in powers of the recovery factor and in sums of instants. */
const EPSILON = 1e-9;

/** How the limit moves, without time: the simulator's model of TChannel uses the same steps. */
export interface BusyRule {
  readonly max: number;
  /** The limit after so many seconds of recovery. */
  grow(limit: number, seconds?: number): number;
  halve(limit: number, busy: number): number;
  /** Seconds of recovery from `limit` to `goal`, which is at most `max`. */
  secondsToReach(limit: number, goal: number): number;
  /** The limit at the first good reply after an overload of so many seconds. */
  restart(rateBefore: number, seconds: number): number;
}

export function busyRule(options: BusyOptions, path = 'busy'): BusyRule {
  const reader = OptionReader.collecting(path, options);
  const value = reader.has('recoverValue') ? reader.positive('recoverValue') : undefined;
  if (value !== undefined && reader.has('recoverRate')) {
    reader.report('recoverRate', 'left out when `recoverValue` is given');
  }
  const rate = reader.positive('recoverRate', 3);
  const max = reader.number('max', { min: 1 }, UNLIMITED);
  reader.finish();
  const halve = (limit: number, busy: number) =>
    Math.min(max, limit / 2 ** Math.min(busy, MAX_HALVINGS));

  if (value !== undefined) {
    return {
      max,
      halve,
      grow: (limit, seconds = 1) => limit + value * seconds,
      secondsToReach: (limit, goal) => Math.max(0, Math.ceil((goal - limit) / value - EPSILON)),
      restart: () => 1,
    };
  }
  return {
    max,
    halve,
    // One second is computed as TChannel does, so that its published figures come out to the digit.
    grow: (limit, seconds = 1) =>
      seconds === 1 ? limit + limit * rate : limit * (1 + rate) ** seconds,
    secondsToReach: (limit, goal) =>
      Math.max(0, Math.ceil(Math.log(goal / limit) / Math.log1p(rate) - EPSILON)),
    restart: (rateBefore, seconds) =>
      Math.max(1, rateBefore / 4 ** Math.max(0, 2 + Math.log10(seconds))),
  };
}

const LATEST_AT = 0; //     the latest instant seen: time does not go back
const SENT = 1; //          in this second
const PREVIOUS_SENT = 2; // in the second before
const SENT_AT = 3; //       the last call
const PACED_AT = 4; //      when the next call is due below the maximum
const LIMIT = 5; //         calls a second, as of LIMIT_AT
const LIMIT_AT = 6; //      in the future for a key that was evicted too early
const HEARD_AT = 7; //      the last reply while the limit is below its maximum
const EVIDENCE_AT = 8; //   the busy reply that opened the evidence
const EVIDENCE_DUE = 9; //  when the call of that reply was sent
const LIMIT_BEFORE = 10; // the limit when the evidence was opened
const GOOD = 11; //         cost of the good replies of the evidence
const SPELL_AT = 12; //     the beginning of the overload
const CUT_AT = 13; //       the last cut
const RATE_BEFORE = 14; //  sent a second before the overload
const REFUSED = 15; //      cost of the busy replies of the evidence
const REFUSAL_MS = 16; //   the slowest of them
const SENT_BEFORE = 17; //  sent in the second of the evidence before it was opened
const WIDTH = 18;

const CALL_INSTANTS = [LATEST_AT, SENT_AT, PACED_AT, LIMIT_AT, HEARD_AT];
const INSTANTS = [...CALL_INSTANTS, EVIDENCE_AT, EVIDENCE_DUE, SPELL_AT, CUT_AT];

const secondOf = (at: Millis): number => Math.floor(at / 1000);

export function busy(options: BusyOptions, path = 'busy'): Policy {
  const rule = busyRule(options, path);
  const { max } = rule;
  const wholeMax = Math.floor(max);

  const advance = (state: State, i: number, now: Millis): void => {
    if (now <= state[i + LATEST_AT]) return;
    const gap = secondOf(now) - secondOf(state[i + LATEST_AT]);
    state[i + LATEST_AT] = now;
    if (gap === 0) return;
    state[i + PREVIOUS_SENT] = gap === 1 ? state[i + SENT] : 0;
    state[i + SENT] = 0;
  };

  /** Sent in the last 1000 ms: in this second, and the part of the second before within the window. */
  const sendRate = (state: State, i: number): number => {
    const intoSecond = state[i + LATEST_AT] / 1000 - secondOf(state[i + LATEST_AT]);
    const sent = state[i + SENT] + state[i + PREVIOUS_SENT] * (1 - intoSecond);
    return Math.min(max, Math.max(1, sent));
  };

  /** The limit at the first good reply (step 3). */
  const restartOf = (state: State, i: number): number => {
    const seconds = (state[i + CUT_AT] - state[i + SPELL_AT]) / 1000;
    return Math.min(max, rule.restart(state[i + RATE_BEFORE], seconds));
  };

  /** The second after which the limit grows without replies (step 4). */
  const growsAfter = (state: State, i: number, quietMs: Millis): number =>
    secondOf(Math.max(state[i + LIMIT_AT], state[i + HEARD_AT] + quietMs));

  const quietMsOf = (state: State, i: number): Millis =>
    state[i + SENT_AT] >= state[i + HEARD_AT] ? SILENT_MS : IDLE_MS;

  const limitAt = (state: State, i: number, at: Millis): number => {
    if (at < state[i + LIMIT_AT]) return MIN_LIMIT;
    if (state[i + LIMIT] >= max) return max;
    const steps = secondOf(at) - growsAfter(state, i, quietMsOf(state, i));
    if (steps <= 0) return state[i + LIMIT];
    return Math.min(max, rule.grow(Math.max(state[i + LIMIT], restartOf(state, i)), steps));
  };

  /** What a call may cost now: up to a second's worth when the next call is due, or a probe. */
  const remainingAt = (state: State, i: number, at: Millis, limit: number): number => {
    const latest = state[i + LATEST_AT];
    const isThisSecond = at === latest || secondOf(at) === secondOf(latest);
    const left = isThisSecond ? Math.max(0, wholeMax - state[i + SENT]) : wholeMax;
    const whole = Math.floor(limit + EPSILON);
    if (whole >= 1 && at >= state[i + PACED_AT] - EPSILON) return Math.min(left, whole);
    return at >= state[i + SENT_AT] + PROBE_MS - EPSILON ? Math.min(left, 1) : 0;
  };

  /** When a call that was just refused fits, if there are no replies until then. */
  const opensAt = (state: State, i: number, cost: number, limit: number): Millis => {
    const nextSecond = (secondOf(state[i + LATEST_AT]) + 1) * 1000;
    let at = state[i + PACED_AT];
    if (cost > Math.floor(limit + EPSILON)) {
      const start = Math.max(state[i + LIMIT], restartOf(state, i));
      const steps = Math.max(1, rule.secondsToReach(start, Math.ceil(cost)));
      const grownAt = (growsAfter(state, i, quietMsOf(state, i)) + steps) * 1000;
      at = Math.max(at, state[i + LIMIT] >= max ? state[i + LIMIT_AT] : grownAt);
    }
    if (cost <= 1) at = Math.min(at, state[i + SENT_AT] + PROBE_MS);
    return state[i + SENT] + cost > wholeMax ? Math.max(at, nextSecond) : at;
  };

  const hasEvidence = (state: State, i: number): boolean =>
    state[i + LATEST_AT] - state[i + EVIDENCE_AT] < EVIDENCE_MS;

  /** Calls sent since the evidence was opened that would be refused by now: they run, and are as good as a good reply. */
  const runningOf = (state: State, i: number): number => {
    const elapsedMs = state[i + LATEST_AT] - state[i + EVIDENCE_AT];
    if (elapsedMs <= state[i + REFUSAL_MS]) return 0;
    const isThisSecond = secondOf(state[i + EVIDENCE_AT]) === secondOf(state[i + LATEST_AT]);
    const sent = state[i + SENT] + (isThisSecond ? 0 : state[i + PREVIOUS_SENT]);
    const decided = (sent - state[i + SENT_BEFORE]) * (1 - state[i + REFUSAL_MS] / elapsedMs);
    return Math.max(0, decided - state[i + REFUSED]);
  };

  /** The limit that the good replies of the evidence justify, or the calls that were not refused. */
  const justifiedBy = (state: State, i: number): number => {
    const seconds = (state[i + LATEST_AT] - state[i + EVIDENCE_AT]) / 1000;
    const good = Math.max(state[i + GOOD], runningOf(state, i));
    return good > 0 ? (GOOD_FACTOR * good) / seconds : 0;
  };

  const setLimit = (state: State, i: number, limit: number): void => {
    state[i + LIMIT] = Math.min(max, limit);
    state[i + LIMIT_AT] = state[i + HEARD_AT] = state[i + LATEST_AT];
  };

  const settleBusy = (state: State, i: number, cost: number, dueAt: Millis): void => {
    const now = state[i + LATEST_AT];
    const limit = limitAt(state, i, now);
    if (!hasEvidence(state, i)) {
      state[i + EVIDENCE_AT] = now;
      state[i + EVIDENCE_DUE] = dueAt;
      state[i + LIMIT_BEFORE] = limit;
      state[i + GOOD] = state[i + REFUSED] = state[i + REFUSAL_MS] = 0;
      state[i + SENT_BEFORE] = state[i + SENT];
    }
    state[i + REFUSED] += cost;
    state[i + REFUSAL_MS] = Math.max(state[i + REFUSAL_MS], now - dueAt);
    const rate = sendRate(state, i);
    const from = Math.min(limit, rate);
    const justified = justifiedBy(state, i);
    if (justified >= from) {
      settleNeutral(state, i);
      return;
    }
    if (limit >= state[i + RATE_BEFORE] && now - state[i + CUT_AT] >= EVIDENCE_MS) {
      state[i + SPELL_AT] = state[i + EVIDENCE_AT];
      state[i + RATE_BEFORE] = rate;
    }
    state[i + CUT_AT] = now;
    setLimit(state, i, Math.max(MIN_LIMIT, justified, rule.halve(from, 1)));
  };

  const settleGood = (state: State, i: number, cost: number, dueAt: Millis): void => {
    if (dueAt < state[i + EVIDENCE_DUE]) {
      settleEarlier(state, i);
      return;
    }
    const now = state[i + LATEST_AT];
    const isOpen = hasEvidence(state, i);
    if (isOpen) state[i + GOOD] += cost;
    if (state[i + LIMIT] >= max || now < state[i + LIMIT_AT]) return;
    const limit = limitAt(state, i, now);
    const restart = restartOf(state, i);
    const justified = isOpen ? justifiedBy(state, i) : Infinity;
    const isHeld = justified < limit || limit > state[i + LIMIT]; // by busy replies, or grown by time already
    const seconds = isHeld ? 0 : Math.min(1, (now - state[i + LIMIT_AT]) / 1000);
    let grown = rule.grow(limit, seconds);
    if (isOpen) {
      const isNoise = justified >= sendRate(state, i);
      grown = Math.max(grown, Math.min(state[i + LIMIT_BEFORE], isNoise ? max : justified));
    }
    if (restart > grown) state[i + EVIDENCE_AT] = -Infinity; // busy replies of the overload count no more
    setLimit(state, i, Math.max(restart, grown));
  };

  /**
   * A good reply to a call that was sent before the service was busy says nothing by itself. But if since then more
   * calls run than were refused, the busy replies were few.
   */
  const settleEarlier = (state: State, i: number): void => {
    if (!hasEvidence(state, i) || runningOf(state, i) < state[i + REFUSED]) return;
    const limit = limitAt(state, i, state[i + LATEST_AT]);
    if (limit < state[i + LIMIT_BEFORE]) setLimit(state, i, state[i + LIMIT_BEFORE]);
  };

  /** A reply that says neither: the limit neither grows nor falls. */
  const settleNeutral = (state: State, i: number): void => {
    const now = state[i + LATEST_AT];
    if (state[i + LIMIT] < max && now >= state[i + LIMIT_AT])
      setLimit(state, i, limitAt(state, i, now));
  };

  const kind = 'busy';
  const policy: Policy = asRule(undefined, {
    kind,
    width: WIDTH,
    traits: { ...COUNTS_ONLY, needsOutcome: true, protectsServer: true },

    init(state, i, now, freshAt = now) {
      state.fill(0, i, i + WIDTH);
      state.fill(-Infinity, i + SENT_AT, i + EVIDENCE_DUE + 1);
      state[i + CUT_AT] = -Infinity;
      state[i + LATEST_AT] = now;
      state[i + LIMIT] = max;
      if (freshAt <= now) return;
      // Evicted too early: probes only until then, and none in this second.
      state[i + LIMIT_AT] = Math.ceil(freshAt / 1000) * 1000;
      state[i + SENT_AT] = Math.max(now, (secondOf(now) + 1) * 1000 - PROBE_MS);
    },

    check(state, i, cost, now) {
      requireCost(cost);
      advance(state, i, now);
      if (cost > wholeMax) return deny(NEVER);
      const at = state[i + LATEST_AT];
      if (state[i + LIMIT] >= max && at >= state[i + LIMIT_AT] && at >= state[i + PACED_AT]) {
        const left = wholeMax - state[i + SENT] - cost; // the usual case: no overload
        if (left >= 0) {
          state[i + SENT] += cost;
          if (cost > 0) state[i + SENT_AT] = at;
          return allow(left);
        }
      }
      const limit = limitAt(state, i, at);
      const remaining = remainingAt(state, i, at, limit);
      if (cost === 0) return allow(remaining);
      if (cost > remaining) return deny(Math.ceil(opensAt(state, i, cost, limit) - now));
      if (limit > state[i + LIMIT]) {
        state[i + LIMIT] = limit;
        state[i + LIMIT_AT] = at;
      }
      state[i + SENT] += cost;
      state[i + SENT_AT] = at;
      if (limit >= 1 && limit < max)
        state[i + PACED_AT] = Math.max(state[i + PACED_AT], at - BURST_MS) + (cost / limit) * 1000;
      return allow(remainingAt(state, i, at, limit));
    },

    available(state, i, now) {
      advance(state, i, now);
      const at = state[i + LATEST_AT];
      return remainingAt(state, i, at, limitAt(state, i, at));
    },

    settle(state, i, { outcome, cost, dueAt }, now) {
      advance(state, i, now);
      if (outcome === 'ignored') {
        if (secondOf(dueAt) !== secondOf(state[i + LATEST_AT])) return;
        state[i + SENT] = Math.max(0, state[i + SENT] - cost);
        if (dueAt < state[i + SENT_AT]) return;
        state[i + SENT_AT] = dueAt - PROBE_MS; // the last call, perhaps a probe, was not sent
        state[i + PACED_AT] = Math.min(state[i + PACED_AT], state[i + LATEST_AT]);
        return;
      }
      if (state[i + LATEST_AT] - dueAt > STALE_MS) return;
      if (outcome === 'busy') settleBusy(state, i, cost, dueAt);
      else if (outcome === 'timeout') settleNeutral(state, i);
      else if (state[i + LIMIT] < max || hasEvidence(state, i)) settleGood(state, i, cost, dueAt);
    },

    update: () => false,

    /** What was learnt from busy replies is kept; a limit at its maximum is at the new one. */
    convertFrom(from) {
      const newKey = new Float64Array(WIDTH);
      from.init(newKey, 0, 0);
      return (state, i, source, j) => {
        for (let n = 0; n < WIDTH; n++) state[i + n] = source[j + n];
        const isUnlimited = state[i + LIMIT] >= newKey[LIMIT];
        state[i + LIMIT] = isUnlimited ? max : Math.min(max, state[i + LIMIT]);
      };
    },

    chain: {
      advance,
      /** By whole seconds, rounded down: what was sent counts by the calendar second. */
      setBack(state, i, byMs) {
        const back = Math.floor(byMs / 1000) * 1000;
        for (const index of INSTANTS) state[i + index] -= back;
      },
    },

    freshAt: recoveredAt,

    keyState(state, i, now) {
      const at = Math.max(state[i + LATEST_AT], now);
      const limit = limitAt(state, i, at);
      return { remaining: remainingAt(state, i, at, limit), limit };
    },

    ruleStatuses(state, i, now) {
      advance(state, i, now);
      const at = state[i + LATEST_AT];
      const limit = limitAt(state, i, at);
      const remaining = remainingAt(state, i, at, limit);
      const terms = { quota: Math.max(1, Math.floor(limit + EPSILON)), windowMs: 1000 };
      const freshInMs = Math.ceil((secondOf(at) + 1) * 1000 - now);
      const opens = timeToOpen(policy, state, i, now);
      return [{ kind, ...terms, remaining, freshInMs, ...opens, isCapacity: true }];
    },
  });
  return policy;

  /** What was sent counts into the send rate for two seconds. Calls in flight may never be settled. */
  function recoveredAt(state: State, i: number): Millis {
    const unsentAt = (secondOf(state[i + LATEST_AT]) + 2) * 1000;
    if (state[i + LIMIT] >= max) return Math.max(unsentAt, state[i + LIMIT_AT]);
    const start = Math.max(state[i + LIMIT], restartOf(state, i));
    const steps = Math.max(1, rule.secondsToReach(start, max));
    // One second more: the last call before may have been due a second before the next.
    return Math.max(unsentAt, (growsAfter(state, i, SILENT_MS) + steps + 1) * 1000);
  }
}
