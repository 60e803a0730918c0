/**
 * Token bucket: a rate and a burst.
 *
 * A bucket holds `burst` tokens and gains them at `rate`. A call takes `cost` tokens; if there are too few
 * it is denied and takes none. There is no refill timer: what was spent shrinks with time, and is computed
 * at the next check.
 *
 *     spent(now) = max(0, spent - (now - at) × rate)         tokens(now) = burst - spent(now)
 *
 *      burst ┤‾‾‾\        Hits reported by other nodes may push `spent` beyond the burst:
 *            │    \___    the bucket is then in debt and refuses until the debt is refilled.
 *          0 ┼────────\───────/────▶ time      So a client gains nothing by spreading its
 *       debt ┤         \_____/                 burst over several nodes.
 *
 * The state is the amount spent and its instant, not the one instant of being full again: an instant
 * near 10^12 ms cannot hold an interval of a microsecond exactly, a difference of two can.
 *
 * An ignored call returns its cost. If later calls took tokens, the refill since then is lost: they may have
 * spent it, and tokens both refilled and returned would exceed burst + rate × time. A return leaves `at` as
 * it is, so that `at` is the instant of the last take.
 *
 * In a pool of `size` members each member counts its cost `size` times, and so gets its part of rate
 * and burst.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER } from '../core/decision.ts';
import type { Rate } from '../core/duration.ts';
import { MAX_AMOUNT, OptionReader } from '../core/options.ts';
import { requireCost } from './cost.ts';
import { addRoundingUp } from './float-time.ts';
import {
  COUNTS_ONLY,
  type GroupPart,
  type Policy,
  type PoolPosition,
  type RuleSpec,
  type State,
  timeToOpen,
  UNDIVIDED,
} from './policy.ts';
import { asRule } from './rules.ts';

/** Token bucket: a long-term rate, and a burst after a quiet period. */
export interface BucketOptions {
  /** Long-term rate: `'100/s'`, `'500/m'`, `'1/6s'`, or a number of calls a second. */
  readonly rate: Rate;
  /** Calls that may come at once after a quiet period. Default: the count in `rate`, at least 1. */
  readonly burst?: number | undefined;
  /** The most debt. Default: unbounded for hits on other nodes; by use beyond the cost, what an hour refills, at least a burst. */
  readonly maxDebt?: number | undefined;
}

/**
 * Tolerance for floating-point error: a microsecond, and at most a millionth of a token. Without it a
 * retry time would be a millisecond longer than needed.
 */
const EPSILON_MS = 0.001;
const EPSILON_TOKENS = 1e-6;

/** Floating-point error tolerated in whole seconds and whole tokens. */
const EPSILON = 1e-9;

/** Without `maxDebt`, a call that used more than its cost causes at most the debt that this time refills. */
const MAX_OVERUSE_MS: Millis = 3_600_000;

const OPEN_NOW = { opensInMs: 0 };

const SPENT = 0;
const UPDATED_AT = 1;
const WIDTH = 2;

interface BucketTerms {
  /** Tokens per millisecond. */
  readonly perMs: number;
  readonly burst: number;
  readonly maxDebt: number;
}

export function bucket(options: BucketOptions, path = 'bucket'): Policy {
  const reader = OptionReader.collecting(path, options);
  const rate = reader.rate('rate');
  const burst = reader.positive('burst', Math.max(1, rate.count));
  if (burst < 1 - EPSILON)
    reader.report('burst', 'at least 1: a call costs 1, and would never fit');
  const hasMaxDebt = reader.has('maxDebt') && reader.get('maxDebt') !== Infinity;
  const maxDebt = hasMaxDebt ? reader.number('maxDebt', { min: 0 }) : Infinity;
  reader.finish();
  return bucketAt({ perMs: rate.count / rate.periodMs, burst, maxDebt }, UNDIVIDED);
}

function bucketAt(terms: BucketTerms, position: PoolPosition): Policy {
  const { perMs, burst, maxDebt } = terms;
  const { size, rank, since } = position;
  const epsilon = Math.max(
    Math.min(EPSILON_MS * perMs, EPSILON_TOKENS),
    burst * 4 * Number.EPSILON, // at least the rounding error of sums of this size
  );
  /** The most debt by use beyond the cost: `used` comes from callers, who could lock a key for good. */
  const maxOveruse = maxDebt < Infinity ? maxDebt : Math.max(burst, perMs * MAX_OVERUSE_MS);
  const kind = 'bucket';
  const windowTerms = quotaOf(burst, perMs);

  const spentAt = (state: State, i: number, now: Millis): number => {
    const spent = state[i + SPENT];
    const elapsed = now - state[i + UPDATED_AT];
    return elapsed > 0 ? Math.max(0, spent - elapsed * perMs) : spent;
  };

  const write = (state: State, i: number, spent: number, now: Millis): void => {
    state[i + SPENT] = spent;
    if (now > state[i + UPDATED_AT]) state[i + UPDATED_AT] = now;
  };

  const fullAt = (state: State, i: number): Millis =>
    addRoundingUp(state[i + UPDATED_AT], state[i + SPENT] / perMs);

  const timeToFull = (state: State, i: number, now: Millis): Millis =>
    Math.max(0, state[i + SPENT] / perMs - Math.max(0, now - state[i + UPDATED_AT]));

  const isWhole = size === 1;
  // With more members than tokens, each has capacity for one, and `turnsPerSecond` of them have their turn.
  const capacity = isWhole ? burst : Math.max(burst, size);
  const turnsPerSecond = isWhole ? Infinity : Math.floor(burst);

  /** Time until this member's turn; 0 if it is now. */
  const turnIn = (now: Millis): Millis => {
    if (size <= turnsPerSecond) return 0;
    if (rank < 0) return 1000;
    const second = Math.floor(now / 1000);
    const turn = (rank + second) % size;
    return turn < turnsPerSecond ? 0 : Math.ceil((second + size - turn) * 1000 - now);
  };

  const tokensLeft = (spent: number): number => Math.floor((capacity - spent + epsilon) / size);

  /** What could be taken now: below 0 in debt, at most 0 out of turn. */
  const remainingAt = (state: State, i: number, now: Millis): number => {
    const tokens = tokensLeft(spentAt(state, i, now));
    return turnIn(now) > 0 ? Math.min(0, tokens) : tokens;
  };

  const isAllowed = (state: State, i: number, cost: number, now: Millis): boolean =>
    spentAt(state, i, now) + cost * size <= capacity + epsilon;

  /** Whole milliseconds until `cost` fits, corrected so that a retry at that time succeeds. */
  const retryAfter = (state: State, i: number, cost: number, now: Millis): Millis => {
    const missing = spentAt(state, i, now) + cost * size - capacity - epsilon;
    const behindMs = Math.max(0, state[i + UPDATED_AT] - now); // time that went backwards stands still
    const ms = Math.max(1, Math.ceil(behindMs + missing / perMs));
    return isAllowed(state, i, cost, now + ms) ? ms : ms + 1;
  };

  const spec: RuleSpec = { kind, params: [perMs, burst, maxDebt, epsilon] };
  const policy: Policy = asRule(spec, {
    kind,
    width: WIDTH,
    traits: { ...COUNTS_ONLY, refillMs: burst / perMs, instants: [UPDATED_AT] },

    init(state, i, now, freshAt = now) {
      state[i + SPENT] = Math.max(0, freshAt - now) * perMs;
      state[i + UPDATED_AT] = now;
    },

    check(state, i, cost, now) {
      const spent = spentAt(state, i, now);
      const after = spent + cost * size;
      if (after <= capacity + epsilon && turnIn(now) === 0) {
        if (cost > 0) write(state, i, after, now);
        else requireCost(cost);
        return allow(Math.max(0, tokensLeft(after)));
      }
      requireCost(cost);
      if (cost * size > capacity + epsilon) return deny(NEVER);
      if (cost === 0) return allow(0); // a cost of 0 is never refused, not even in debt or out of turn
      return deny(Math.max(retryAfter(state, i, cost, now), turnIn(now)));
    },

    available: (state, i, now) => Math.max(0, remainingAt(state, i, now)),

    /** Returns what was not used; what was used beyond the cost becomes debt, within its bound. */
    settle(state, i, { outcome, cost, used = cost, dueAt }, now) {
      const isIgnored = outcome === 'ignored';
      const unused = isIgnored ? cost : cost - used;
      if (unused === 0) return;
      const spent = spentAt(state, i, now);
      if (unused < 0) {
        const most = Math.max(spent, capacity + maxOveruse);
        return write(state, i, Math.min(spent - unused * size, most), now);
      }
      const unitCost = dueAt < since ? 1 : size; // never more than was taken for it
      const isRefillLost = isIgnored && dueAt < state[i + UPDATED_AT];
      const refilled = isRefillLost ? Math.max(0, now - dueAt) * perMs : 0;
      const returned = Math.max(0, unused * unitCost - refilled);
      state[i + SPENT] -= Math.min(returned, spent);
    },

    /** What was spent stays spent. A smaller burst may leave a bucket in debt: a larger one later grants nothing twice. */
    convertFrom(from) {
      const [oldPerMs] = from.rules[0].spec?.params ?? [];
      return (state, i, source, j, at) => {
        const elapsed = Math.max(0, at - source[j + UPDATED_AT]);
        const spent = Math.max(0, source[j + SPENT] - elapsed * oldPerMs);
        state[i + SPENT] = Math.min(spent, burst + maxDebt);
        state[i + UPDATED_AT] = Math.max(at, source[j + UPDATED_AT]);
      };
    },

    share: {
      figureCount: 1,
      isAdditive: maxDebt === Infinity,
      capacity,
      maxDebt: maxOveruse,
      level: spentAt,
      figures: (state, i, now) => [timeToFull(state, i, now)],
      /** The debt stays within `maxDebt`, and finite, whatever time the replica reports. */
      raise(state, i, [fullInMs], hits, now) {
        const raised = Math.min(fullInMs * perMs + hits, burst + Math.min(maxDebt, MAX_AMOUNT));
        if (timeToFull(state, i, now) * perMs < raised) write(state, i, raised, now);
      },
    },

    divide: {
      ofPool: (next) => bucketAt(terms, next),
      ofGroup: (fraction) => ofGroup(terms, fraction),
      credit(state, i, tokens, upTo, now) {
        const spent = spentAt(state, i, now);
        const least = Math.min(spent, Math.max(0, capacity - upTo)); // it may be above `upTo` already
        write(state, i, Math.max(least, spent - tokens), now);
      },
      ratePerSecond: () => (perMs * 1000) / size,
    },

    queue: {
      drainMs: (units) => (units * size) / perMs,
      timeToGrantMs: (state, i, units, now) =>
        Math.max(0, (spentAt(state, i, now) + units * size - capacity - epsilon) / perMs),
    },

    update(state, i, feedback, now) {
      if ('remaining' in feedback) {
        // The server's count may lower ours, never raise it.
        write(state, i, Math.max(spentAt(state, i, now), burst - feedback.remaining), now);
        return true;
      }
      if (!('hits' in feedback)) return false;
      const spent = spentAt(state, i, now);
      write(state, i, Math.max(spent, Math.min(spent + feedback.hits, burst + maxDebt)), now);
      return true;
    },

    freshAt: fullAt,

    keyState: (state, i, now) => ({ remaining: remainingAt(state, i, now) }),

    ruleStatuses(state, i, now) {
      const spent = spentAt(state, i, now);
      const remaining = turnIn(now) > 0 ? 0 : Math.max(0, tokensLeft(spent));
      const freshInMs = spent > epsilon ? Math.ceil(Math.max(0, fullAt(state, i) - now)) : 0;
      const quota = Math.floor(windowTerms.quota / size);
      const { opensInMs = 0 } = remaining >= 1 ? OPEN_NOW : timeToOpen(policy, state, i, now);
      return [{ kind, quota, windowMs: windowTerms.windowMs, remaining, freshInMs, opensInMs }];
    },
  });
  return policy;
}

/** A group's fraction of rate, burst and debt. */
function ofGroup({ perMs, burst, maxDebt }: BucketTerms, fraction: number): GroupPart {
  const rate = perMs * 1000 * fraction;
  const part = { perMs: rate / 1000, burst: burst * fraction, maxDebt: maxDebt * fraction };
  const units = { units: part.burst, wholeUnits: burst, option: 'bucket.burst' };
  return { policy: bucketAt(part, UNDIVIDED), ...units, perMs: perMs * fraction };
}

/** A bucket in the terms of a window: in whole seconds, and never more than it lets through. Below a burst of 1, no call. */
function quotaOf(burst: number, perMs: number): { quota: number; windowMs: Millis } {
  const seconds = Math.max(1, Math.ceil(burst / perMs / 1000 - EPSILON));
  return {
    quota: burst < 1 ? 0 : Math.floor(Math.max(burst, perMs * seconds * 1000) + EPSILON),
    windowMs: seconds * 1000,
  };
}
