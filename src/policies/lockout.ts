/**
 * Lock-out: after so many failures a key is locked, for longer each time.
 *
 * For logins. Each check is an attempt, and counts as a failure until a success is reported: of a hundred attempts in
 * flight at once, only `after` are allowed, and an attempt that is never reported is not a free guess.
 *
 *     after = 3, lock = 1m, 5m
 *     ──✗──✗──✗━━━━━━━━1m━━━━━━━━┫──✗──✗──✗━━━━━━━━━━━━━━5m━━━━━━━━━━━━━━┫────── forget ──────▶ next lock: 1m
 *             locked             open again                              open again
 *
 * The attempt that completes `after` locks the key at once. If it succeeds, the lock ends, and the step is taken back. When
 * a lock ends, failures are counted from 0. Failures count until `within` after the first of them.
 *
 * With `on: 'refusal'` the other rules of its `all` refuse, and the lock-out counts these refusals: it takes nothing itself.
 */

import type { Millis } from '../core/clock.ts';
import { allow, type Decision, deny, NEVER } from '../core/decision.ts';
import { type Duration, parseDuration, suggestDuration } from '../core/duration.ts';
import { ConfigError } from '../core/errors.ts';
import { OptionReader } from '../core/options.ts';
import { requireCost } from './cost.ts';
import { wholeMsUntil } from './float-time.ts';
import { createFollower } from './lockout-copy.ts';
import {
  COUNT,
  createLockoutRule,
  isCounting,
  LEVEL,
  LOCK_END,
  type LockoutTerms,
  PENDING,
  pendingOf,
  SINCE,
  LOCKOUT_WIDTH as WIDTH,
} from './lockout-rule.ts';
import { createLockoutSharing } from './lockout-sharing.ts';
import {
  COUNTS_ONLY,
  type GroupPart,
  type Policy,
  type PoolPosition,
  type RuleSpec,
  type State,
} from './policy.ts';
import { asRule } from './rules.ts';

/** Lock-out: a key with too many failures is locked, for longer each time. */
export interface LockoutOptions {
  /** The failures that lock a key. */
  readonly after: number;
  /** How long failures count, from the first of them on. Default 15 minutes. */
  readonly within?: Duration | undefined;
  /** How long the key is locked: the first time, the second, and so on; the last one repeats. Default 1, 5 and 60 minutes. */
  readonly lock?: Duration | readonly Duration[] | undefined;
  /** A key that was not locked for this long begins with the first lock again. Default 1 day. */
  readonly forget?: Duration | undefined;
  /** What counts: attempts that do not succeed (default), or refusals by the other rules of an `all`. */
  readonly on?: LockoutTrigger | undefined;
  /** What a success does: forgets all failures (default), or returns only its own attempt. */
  readonly onSuccess?: 'reset' | 'return' | undefined;
}

/** What a lock-out counts. */
export type LockoutTrigger = 'failure' | 'refusal';

/** The most steps of `lock`. */
const MAX_LOCKS = 32;

const MINUTE_MS: Millis = 60_000;
const DEFAULT_LOCKS_MS: readonly Millis[] = [MINUTE_MS, 5 * MINUTE_MS, 60 * MINUTE_MS];

/** `remaining` of a rule that refuses nothing by itself. */
const UNBOUNDED = Number.MAX_SAFE_INTEGER;

export function lockout(options: LockoutOptions, path = 'lockout'): Policy {
  const reader = OptionReader.collecting(path, options);
  const terms: LockoutTerms = {
    after: reader.integer('after', 1),
    withinMs: reader.duration('within', 15 * MINUTE_MS),
    locksMs: reader.tryRead(() => readLocks(reader)) ?? [],
    forgetMs: reader.duration('forget', 1440 * MINUTE_MS),
    on: reader.oneOf('on', ['failure', 'refusal'] as const, 'failure'),
    isReset: reader.oneOf('onSuccess', ['reset', 'return'] as const, 'reset') === 'reset',
  };
  if (terms.forgetMs < terms.withinMs) reader.report('forget', 'at least as long as `within`');
  if (terms.on === 'refusal' && reader.has('onSuccess'))
    reader.report('onSuccess', 'left out with `on: refusal`, which has no successes');
  reader.finish();
  return lockoutAt(terms, 1);
}

function readLocks(reader: OptionReader): readonly Millis[] {
  const value = reader.get('lock');
  if (value === undefined) return DEFAULT_LOCKS_MS;
  const list: readonly unknown[] = Array.isArray(value) ? value : [value];
  const path = reader.pathOf('lock');
  if (list.length === 0 || list.length > MAX_LOCKS)
    throw new ConfigError(path, `a duration, or a list of 1 to ${MAX_LOCKS}`, value);
  return list.map((one, n) => {
    const ms = parseDuration(one);
    if (ms !== undefined && ms > 0 && ms < Infinity) return ms;
    const at = Array.isArray(value) ? `${path}[${n}]` : path;
    throw new ConfigError(at, 'a duration above 0, such as "5m"', one, [], suggestDuration(one));
  });
}

/** Floating-point error tolerated in a whole part. */
const EPSILON = 1e-9;

/** A group's part of the attempts; it locks by itself. Nothing is lent: an attempt that was lent would be a failure of the lender. */
function ofGroup(terms: LockoutTerms, fraction: number): GroupPart {
  const after = Math.floor(terms.after * fraction + EPSILON);
  const units = { units: after, wholeUnits: terms.after, option: 'lockout.after' };
  return { policy: lockoutAt({ ...terms, after }, 1), ...units, perMs: 0 };
}

/** Each member of a pool allows its part of the attempts, at least one, and locks by itself. */
function lockoutAt(terms: LockoutTerms, size: number): Policy {
  const { withinMs, locksMs, forgetMs, on, isReset } = terms;
  const after = Math.max(1, Math.floor(terms.after / size));
  const kind = 'lockout';
  const isOnRefusal = on === 'refusal';

  const rule = createLockoutRule(terms, after);
  const followServer = createFollower(rule, after, locksMs);
  const { lockedMs, countedUntil, countAt, forgottenAt, advance, add, unlock } = rule;

  /** Takes attempts off that did not happen, or did not fail. */
  const giveBack = (state: State, i: number, count: number, now: Millis): void => {
    advance(state, i, now);
    const returned = Math.min(count, pendingOf(state, i));
    state[i + PENDING] -= returned;
    state[i + COUNT] -= returned;
    if (returned > 0) unlock(state, i, now);
  };

  /** Attempts in flight count on. A success without one, of a password reset say, ends a lock but not its step. */
  const reset = (state: State, i: number, count: number, now: Millis): void => {
    advance(state, i, now);
    const wasPending = state[i + PENDING] > 0;
    state[i + PENDING] -= Math.min(count, pendingOf(state, i));
    state[i + COUNT] = Math.min(state[i + COUNT], pendingOf(state, i));
    if (wasPending) unlock(state, i, now);
    else state[i + LOCK_END] = Math.min(state[i + LOCK_END], now - state[i + SINCE]);
  };

  /** A failure of an attempt is counted already. */
  const fail = (state: State, i: number, count: number, now: Millis): void => {
    advance(state, i, now);
    const known = Math.min(count, pendingOf(state, i));
    state[i + PENDING] -= known;
    add(state, i, count - known, now);
  };

  const recordRefusal = (state: State, i: number, now: Millis): Millis => {
    advance(state, i, now);
    add(state, i, 1, now);
    return lockedMs(state, i, now);
  };

  const remainingAt = (state: State, i: number, now: Millis): number => {
    if (lockedMs(state, i, now) > 0) return 0;
    return isOnRefusal ? UNBOUNDED : Math.max(0, Math.floor(after - countAt(state, i, now)));
  };

  const spec: RuleSpec = {
    kind,
    params: [after, withinMs, forgetMs, +isReset, +isOnRefusal, ...locksMs],
  };
  const policy: Policy = asRule(spec, {
    kind,
    width: WIDTH,
    traits: { ...COUNTS_ONLY, takesReports: !isOnRefusal, instants: [SINCE] },

    init(state, i, now, freshAt = now) {
      state.fill(0, i, i + WIDTH);
      state[i + SINCE] = now;
      if (freshAt <= now) return;
      // The strictest of what may have been forgotten: locked or at the last step, with one attempt left.
      state[i + LEVEL] = locksMs.length;
      state[i + COUNT] = after - 1;
      state[i + SINCE] = Math.max(Math.min(now, freshAt - withinMs), freshAt - forgetMs);
      state[i + LOCK_END] = freshAt - forgetMs - state[i + SINCE];
    },

    check(state, i, cost, now): Decision {
      requireCost(cost);
      if (cost === 0) return allow(remainingAt(state, i, now));
      if (cost > after && !isOnRefusal) return deny(NEVER);
      const ms = lockedMs(state, i, now);
      if (ms > 0) return { verdict: 'deny', retryAfterMs: ms, reason: 'locked' };
      if (isOnRefusal) return allow(UNBOUNDED);
      if (countAt(state, i, now) + cost > after)
        return deny(Math.max(1, wholeMsUntil(countedUntil(state, i), now)));
      advance(state, i, now);
      state[i + PENDING] += cost;
      add(state, i, cost, now);
      return allow(Math.floor(after - state[i + COUNT]));
    },

    ...(isOnRefusal && { chain: { recordRefusal } }),

    available: remainingAt,

    /** Only an attempt that did not happen is returned here: how it ended is reported. */
    settle(state, i, { outcome, cost, used = cost }, now) {
      const unused = outcome === 'ignored' ? cost : cost - used;
      if (unused > 0 && !isOnRefusal) giveBack(state, i, unused, now);
    },

    update(state, i, feedback, now) {
      if ('lockedMs' in feedback || 'attemptsLeft' in feedback) {
        followServer(state, i, feedback, now);
      } else if (isOnRefusal) {
        if (!('report' in feedback && feedback.report === 'refusal')) return false;
        recordRefusal(state, i, now);
      } else if ('hits' in feedback) {
        advance(state, i, now);
        add(state, i, feedback.hits, now);
      } else if ('report' in feedback && feedback.report !== 'refusal') {
        const { report, count = 1 } = feedback;
        if (report === 'failure') fail(state, i, count, now);
        else (isReset ? reset : giveBack)(state, i, count, now);
      } else return false;
      return true;
    },

    share: createLockoutSharing(rule, after, locksMs),
    /** A key stays locked until its lock ends; the next one is a step of the new list. */
    convertFrom(from) {
      if (from.rules[0].spec?.params[4] !== +isOnRefusal) return undefined;
      return (state, i, source, j) => {
        for (let n = 0; n < WIDTH; n++) state[i + n] = source[j + n];
        state[i + LEVEL] = Math.min(state[i + LEVEL], locksMs.length);
      };
    },

    ...(!isOnRefusal && {
      divide: {
        ofPool: ({ size: members }: PoolPosition) => lockoutAt(terms, members),
        ofGroup: (fraction: number) => ofGroup(terms, fraction),
      },
    }),

    freshAt: (state, i) => lastCountsUntil(state, i),

    keyState(state, i, now) {
      const ms = lockedMs(state, i, now);
      return {
        remaining: remainingAt(state, i, now),
        failures: countAt(state, i, now),
        locks: now < forgottenAt(state, i) ? state[i + LEVEL] : 0,
        ...(ms > 0 && { lockedMs: ms }),
      };
    },

    ruleStatuses(state, i, now) {
      const remaining = remainingAt(state, i, now);
      const ms = lockedMs(state, i, now);
      const countsMs = countAt(state, i, now) > 0 ? wholeMsUntil(countedUntil(state, i), now) : 0;
      const quota = remaining === UNBOUNDED ? UNBOUNDED : after;
      const opensInMs = remaining > 0 ? 0 : ms || countsMs;
      const freshInMs = ms || countsMs;
      return [{ kind, quota, windowMs: withinMs, remaining, freshInMs, opensInMs }];
    },
  });

  const lastCountsUntil = (state: State, i: number): Millis =>
    Math.max(
      isCounting(state, i) ? countedUntil(state, i) : -Infinity,
      state[i + LEVEL] > 0 ? forgottenAt(state, i) : -Infinity,
    );
  return policy;
}
