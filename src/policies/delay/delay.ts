/**
 * The delay rule of adaptive concurrency: a limit on calls in flight, learnt from how long calls wait.
 *
 * As Vegas and FAST TCP do, it keeps a small number of calls waiting in the queue of the server, whatever its capacity.
 *
 *     start ──▶ hold ◀──▶ drain, test        a successful call moves it: learn.ts
 *       ▲        │
 *       └────────┴── refusals, lost calls, silence, no demand: complaints.ts
 *
 * - start: doubles the limit while calls are no slower.
 * - hold: the queue is what the quickest calls take longer than their floor. The limit is the knee plus a headroom.
 * - test: every 10 s half as many calls, for three round trips. This measures the floor anew, and tells a slower server from a queue.
 * - join: calls that become quicker by themselves are the test of another client. This client tests too, so that both
 *   see the server without a queue. Nothing is exchanged, and no clocks have to agree.
 */

import type { Millis } from '../../core/clock.ts';
import { allow, type Decision, deny, NEVER, WHEN_SETTLED } from '../../core/decision.ts';
import type { Random } from '../../core/random.ts';
import { requireCost } from '../cost.ts';
import type { InFlightPolicy } from '../partitions.ts';
import {
  COUNTS_ONLY,
  type LimitCause,
  type PoolPosition,
  type State,
  timeToOpen,
} from '../policy.ts';
import { asRule } from '../rules.ts';
import {
  checkDemand,
  countTime,
  demandedLimit,
  endSilence,
  halve,
  isPaced,
  noticeSilence,
  paceAt,
  patience,
  recordComplaint,
  recordSuccess,
  takePace,
} from './complaints.ts';
import { C, STALE_MS } from './constants.ts';
import {
  DRAIN,
  HOLD,
  headroom,
  type Part,
  START,
  stepDrain,
  stepHold,
  stepStart,
  stepTest,
} from './learn.ts';
import { createView, type Key, keyAt, WIDTH } from './record.ts';
import { addCall, openWindow, wholeIn, wholeOf } from './window.ts';

export interface DelayTerms {
  readonly initial: number;
  readonly max: number;
  readonly jitter: number;
}

/** Why the limit last changed, by `Key.cause`; 0: it has not. */
const CAUSES: readonly LimitCause[] = ['start', 'start', 'test', 'rate', 'refusal', 'silence'];

/** The most by which an urgent call may start ahead of the pace: what lower priorities then wait longer for. */
const MAX_AHEAD_CALLS = 5;
const MAX_AHEAD_MS = 100;

export function delay(
  terms: DelayTerms,
  { size, rank }: PoolPosition,
  random: Random,
): InFlightPolicy {
  const even = Math.floor(terms.max / size);
  /** Upper bound of this member's part. */
  const cap = even + (rank >= 0 && rank < terms.max - even * size ? 1 : 0);
  const part: Part = {
    initial: Math.max(1, Math.min(terms.initial, cap)),
    max: Math.max(1, cap),
    jitter: () => (terms.jitter > 0 ? terms.jitter * random() : 0),
  };
  const view = createView();

  /** Slots that priorities keep free come on top: the rule learns from the calls that are really in flight. */
  const limitOf = (k: Key): number => Math.min(wholeOf(k) + k.kept + k.lost, cap);

  const step = (k: Key, now: Millis): void => {
    if (k.mode === HOLD) stepHold(k, part, now);
    else if (k.mode === START) stepStart(k, part, now);
    else if (k.mode === DRAIN) stepDrain(k, part, now);
    else stepTest(k, part, now);
  };

  /** In silence: time until the next probe; undefined now. */
  const untilProbe = (k: Key, now: Millis): Millis | undefined => {
    if (k.inFlight >= k.most) return WHEN_SETTLED;
    const ms = Math.ceil(k.quietFrom + patience(k) - now);
    return ms > 0 ? ms : undefined;
  };

  /** What a check would allow now. */
  const freeSlots = (k: Key, now: Millis): number => {
    if (isPaced(k, now)) return 0;
    if (k.most > 0) return untilProbe(k, now) === undefined ? 1 : 0;
    const isSilent = k.inFlight > k.lost && now - k.quietFrom > patience(k);
    if (isSilent) return 0;
    const demanded = demandedLimit(k, part, now);
    const isLower = demanded < k.limit; // a check opens a window
    const limit = isLower
      ? Math.min(cap, wholeIn(demanded, now) + Math.max(0, k.kept - 1) + k.lost)
      : limitOf(k);
    return Math.max(0, Math.floor(limit - k.inFlight));
  };

  /** Time until a call may start; undefined now. The pace lets it start `aheadMs` early. */
  const waitFor = (k: Key, cost: number, now: Millis, aheadMs: Millis): Millis | undefined => {
    checkDemand(k, part, now);
    if (noticeSilence(k, part, now)) {
      k.peak = Infinity;
      return untilProbe(k, now);
    }
    // Alone, any cost may start: otherwise a cost above the limit would wait for ever.
    if (k.inFlight > 0 && k.inFlight + cost > limitOf(k)) {
      k.denied++;
      k.peak = Infinity;
      return WHEN_SETTLED;
    }
    if (!isPaced(k, now + aheadMs)) return undefined;
    k.peak = Infinity;
    return Math.ceil(k.nextAt - aheadMs - now);
  };

  const begin = (k: Key, cost: number, now: Millis): void => {
    if (k.most > 0 || k.inFlight <= k.lost) k.quietFrom = now;
    countTime(k, now);
    k.inFlight += cost;
    k.peak = Math.max(k.peak, k.inFlight);
    takePace(k, cost, now);
  };

  const decide = (
    state: State,
    i: number,
    cost: number,
    now: Millis,
    aheadMs: Millis,
  ): Decision => {
    requireCost(cost);
    const k = keyAt(view, state, i);
    if (cost > 0) {
      if (cost > cap) return deny(cap === terms.max ? NEVER : WHEN_SETTLED);
      const waitMs = waitFor(k, cost, now, aheadMs);
      if (waitMs !== undefined) return deny(waitMs);
      begin(k, cost, now);
    }
    return allow(freeSlots(k, now));
  };

  const policy: InFlightPolicy = asRule(undefined, {
    kind: 'adaptive',
    width: WIDTH,
    traits: {
      ...COUNTS_ONLY,
      needsExactTime: true, // round-trip times are measured with the same clock
      needsOutcome: true,
      protectsServer: true,
      mayOpenEarlier: true, // a call that settles may end a silence
    },

    init(state, i, now, freshAt = now) {
      state.fill(0, i, i + WIDTH);
      const k = keyAt(view, state, i);
      k.limit = freshAt > now ? 1 : part.initial;
      k.most = freshAt > now ? 1 : 0; // it was evicted in a pace or in silence: the first call waits, as in silence
      k.openedAt = k.countedAt = k.quietFrom = k.peakAt = now;
      k.floor = k.base = k.lowAverage = Number.NaN;
      k.tolerated = C.tolerated;
      k.pace = Infinity;
      k.cutAt = -Infinity;
    },

    check: (state, i, cost, now) => decide(state, i, cost, now, 0),
    checkUrgent: (state, i, cost, now) =>
      decide(
        state,
        i,
        cost,
        now,
        Math.min(MAX_AHEAD_MS, MAX_AHEAD_CALLS / keyAt(view, state, i).pace),
      ),

    available: (state, i, now) => freeSlots(keyAt(view, state, i), now),

    settle(state, i, { outcome, cost, rttMs, dueAt }, now) {
      const k = keyAt(view, state, i);
      const took = rttMs ?? Math.max(0, now - dueAt);
      const sentAt = now - took;
      if (outcome === 'timeout') noticeSilence(k, part, now);
      else if (outcome !== 'ignored') endSilence(k, part, now);
      countTime(k, now);
      k.inFlight = Math.max(0, k.inFlight - cost);
      if (sentAt < k.cutAt) k.lost = Math.max(0, k.lost - cost);
      k.lost = Math.min(k.lost, k.inFlight);
      const isSkipped = k.skip > 0;
      if (isSkipped) k.skip = Math.max(0, k.skip - cost);
      if (isSkipped && k.skip === 0) openWindow(k, now);
      if (outcome === 'busy') recordComplaint(k, part, true, sentAt, now);
      else if (outcome === 'timeout') {
        if (k.most > 0) halve(k, part, sentAt, now);
        else recordComplaint(k, part, false, sentAt, now);
      } else if (outcome === 'ok') {
        recordSuccess(k, sentAt, now);
        if (!isSkipped && sentAt >= k.cutAt) addCall(k, took);
        if (k.calls > 0 || k.mode === DRAIN) step(k, now);
      }
    },

    noteKept(state, i, kept) {
      const k = keyAt(view, state, i);
      k.kept = Math.min(2 * k.limit, Math.max(k.kept, Math.ceil(kept)));
      k.denied++;
      k.peak = Infinity;
    },

    /** Calls stay in flight, and what was learnt is kept, up to the new bound. */
    convertFrom: (from) =>
      from.width !== WIDTH
        ? undefined
        : (state, i, source, j) => {
            for (let n = 0; n < WIDTH; n++) state[i + n] = source[j + n];
            const k = keyAt(view, state, i);
            k.limit = Math.min(part.max, k.limit);
            k.anchor = Math.min(part.max, k.anchor);
            k.back = Math.min(part.max, k.back);
          },

    divide: { ofPool: (next) => delay(terms, next, random) },
    limitOf: (state, i) => limitOf(keyAt(view, state, i)),
    inFlightOf: (state, i) => keyAt(view, state, i).inFlight,
    meanRttOf: (state, i) => keyAt(view, state, i).mean,

    update: () => false, // load from other clients shows in the round-trip times

    // What was learnt is kept, and a call in flight must find its count when it settles.
    freshAt(state, i, isLenient) {
      const k = keyAt(view, state, i);
      const isNew = k.mean === 0 && k.calls + k.inFlight + k.denied + k.no + k.most === 0;
      if (!isLenient) return isNew && k.limit === part.initial ? -Infinity : Infinity;
      if (k.inFlight > 0) return Infinity;
      const isAsNew = k.limit >= part.initial && k.pace === Infinity && k.most === 0;
      return isAsNew ? -Infinity : k.countedAt + STALE_MS;
    },

    keyState(state, i, now) {
      const remaining = policy.available(state, i, now);
      const k = keyAt(view, state, i);
      const above = headroom(k.limit);
      return {
        remaining,
        limit: limitOf(k),
        inFlight: k.inFlight,
        ...(k.mean > 0 && { rttMs: k.mean }),
        ...(k.base > 0 && {
          baseRttMs: k.base,
          ratePerSecond: (1000 * k.limit) / k.mean,
          knee: k.limit - above,
          headroom: above,
        }),
        ...(k.pace < Infinity && { pacePerSecond: 1000 * paceAt(k, now) }),
        ...(k.cause > 0 && { cause: CAUSES[k.cause] }),
      };
    },

    ruleStatuses(state, i, now) {
      const remaining = policy.available(state, i, now);
      const quota = limitOf(keyAt(view, state, i));
      const opens = timeToOpen(policy, state, i, now);
      return [{ kind: policy.kind, quota, remaining, ...opens, isCapacity: true }];
    },
  });
  return policy;
}
