/**
 * Bucket: a rate and a burst.
 *
 * A bucket holds `burst` tokens and gains them at `rate`. A call takes `cost` of them; one that
 * would find too few is denied and takes none. Nothing drips in the background: what was spent
 * shrinks with time, and is worked out when somebody asks.
 *
 *     spent(now) = max(0, spent - (now - at) × rate)         tokens(now) = burst - spent(now)
 *
 *      burst ┤‾‾‾\        hits heard from another node may push `spent` beyond the burst:
 *            │    \___    the bucket is then in debt, and stays closed until the debt has
 *          0 ┼────────\───────/────▶ time              been slept off, so a client gains
 *       debt ┤         \_____/                         nothing by spreading its burst.
 *
 * The state is how much was spent and when that was true, not one instant of being full again: an
 * instant near 10^12 ms cannot hold an interval of a microsecond exactly, a difference of two can.
 */

import type { Millis } from '../core/clock.ts';
import { allow, deny, NEVER } from '../core/decision.ts';
import type { Rate } from '../core/duration.ts';
import { OptionReader } from '../core/options.ts';
import { requireCost } from './cost.ts';
import { addRoundingUp } from './float-time.ts';
import { type Policy, type State, timeToOpen } from './policy.ts';

/** A rate in the long run, and a burst after a quiet spell. */
export interface BucketOptions {
  /** Calls in the long run: `'100/s'`, `'500/m'`, `'1/6s'`, or a number of calls a second. */
  readonly rate: Rate;
  /** Calls that may come at once after a quiet spell. Default: the count in `rate`, at least 1. */
  readonly burst?: number;
  /** The most debt that hits heard from others can cause. Default: no bound. */
  readonly maxDebt?: number;
}

/**
 * A microsecond of grace, and no more than a millionth of a token. Sums of fractions carry
 * floating-point dust: without this a caller would be told to come a millisecond later than needed.
 */
const EPSILON_MS = 0.001;
const EPSILON_TOKENS = 1e-6;

/** What part of a second or a token may be floating-point dust. */
const EPSILON = 1e-9;

const OPEN_NOW = { opensInMs: 0 };

const SPENT = 0;
const UPDATED_AT = 1;
const WIDTH = 2;

export function bucket(options: BucketOptions, path = 'bucket'): Policy {
  const reader = OptionReader.collecting(path, options);
  const rate = reader.rate('rate');
  const burst = reader.positive('burst', Math.max(1, rate.count));
  const maxDebt = reader.has('maxDebt') ? reader.number('maxDebt', { min: 0 }) : Infinity;
  reader.finish();

  const perMs = rate.count / rate.periodMs;
  const grace = Math.max(
    Math.min(EPSILON_MS * perMs, EPSILON_TOKENS),
    burst * 4 * Number.EPSILON, // never less than the dust that sums of this size gather
  );

  /** How many share it: each counts what it spends for all of them, and so gets its part of rate and burst. */
  let size = 1;
  let sizeAt: Millis = -Infinity;
  /** With more of them than tokens, each has room for one, and as many as there are tokens have their turn. */
  let room = burst;
  let turns = Infinity;
  let rank = -1;

  /** How long until it is this one's turn; 0 if it is. */
  const turnIn = (now: Millis): Millis => {
    if (size <= turns) return 0;
    if (rank < 0) return 1000;
    const second = Math.floor(now / 1000);
    const turn = (rank + second) % size;
    return turn < turns ? 0 : Math.ceil((second + size - turn) * 1000 - now);
  };

  const spentAt = (state: State, i: number, now: Millis): number => {
    const spent = state[i + SPENT];
    const elapsed = now - state[i + UPDATED_AT];
    return elapsed > 0 ? Math.max(0, spent - elapsed * perMs) : spent;
  };

  const write = (state: State, i: number, spent: number, now: Millis): void => {
    state[i + SPENT] = spent;
    if (now > state[i + UPDATED_AT]) state[i + UPDATED_AT] = now;
  };

  const tokensLeft = (spent: number): number => Math.floor((room - spent + grace) / size);

  /** What could be taken now, below 0 in a debt: out of turn nothing. */
  const leftAt = (state: State, i: number, now: Millis): number => {
    const left = tokensLeft(spentAt(state, i, now));
    return turnIn(now) > 0 ? Math.min(0, left) : left;
  };

  const isAllowed = (state: State, i: number, cost: number, now: Millis): boolean =>
    spentAt(state, i, now) + cost * size <= room + grace;

  /** Whole milliseconds until `cost` fits; what it says must then be true. */
  const retryAfter = (state: State, i: number, cost: number, now: Millis): Millis => {
    const missing = spentAt(state, i, now) + cost * size - room - grace;
    const behindMs = Math.max(0, state[i + UPDATED_AT] - now); // time that went backwards stands still
    const ms = Math.max(1, Math.ceil(behindMs + missing / perMs));
    return isAllowed(state, i, cost, now + ms) ? ms : ms + 1;
  };

  const fullAt = (state: State, i: number): Millis =>
    addRoundingUp(state[i + UPDATED_AT], state[i + SPENT] / perMs);

  const kind = 'bucket';
  const terms = quotaOf(burst, perMs);

  const policy: Policy = {
    kind,
    width: WIDTH,
    needsExactTime: false,
    needsOutcome: false,
    canReserve: false,
    expireMs: Infinity,
    specs: [{ kind, params: [perMs, burst, maxDebt, grace] }],

    init(state, i, now, freshAt = now) {
      state[i + SPENT] = Math.max(0, freshAt - now) * perMs;
      state[i + UPDATED_AT] = now;
    },

    check(state, i, cost, now) {
      const spent = spentAt(state, i, now);
      const after = spent + cost * size;
      if (after <= room + grace && turnIn(now) === 0) {
        if (cost > 0) write(state, i, after, now);
        else requireCost(cost);
        return allow(Math.max(0, tokensLeft(after)));
      }
      requireCost(cost);
      if (cost * size > room + grace) return deny(NEVER);
      if (cost === 0) return allow(0); // a look never refuses, not even into a debt or out of turn
      return deny(Math.max(retryAfter(state, i, cost, now), turnIn(now)));
    },

    available: (state, i, now) => Math.max(0, leftAt(state, i, now)),

    /** What was not used after all is given back; what was used beyond the cost is owed. */
    settle(state, i, { outcome, cost, used = cost, dueAt }, now) {
      const unused = outcome === 'ignored' ? cost : cost - used;
      if (unused === 0) return;
      const price = unused > 0 && dueAt < sizeAt ? 1 : size; // never more than was taken for it
      write(state, i, Math.max(0, spentAt(state, i, now) - unused * price), now);
    },

    divide(part, now) {
      if (part.size !== size) sizeAt = now;
      size = part.size;
      rank = part.rank;
      room = Math.max(burst, size);
      turns = Math.floor(burst);
    },
    ratePerSecond: () => (perMs * 1000) / size,
    refillMs: burst / perMs,

    update(state, i, news, now) {
      if ('remaining' in news) {
        // Who counts on the other side knows better, but never that there is more than we know of.
        write(state, i, Math.max(spentAt(state, i, now), burst - news.remaining), now);
        return true;
      }
      if (!('hits' in news)) return false;
      const spent = spentAt(state, i, now);
      write(state, i, Math.max(spent, Math.min(spent + news.hits, burst + maxDebt)), now);
      return true;
    },

    credit(state, i, units, upTo, now) {
      const spent = spentAt(state, i, now);
      const least = Math.min(spent, Math.max(0, burst - upTo)); // it may be above already
      write(state, i, Math.max(least, spent - units), now);
    },

    removableAt: fullAt,
    evictableAt: fullAt,

    keyState: (state, i, now) => ({ remaining: leftAt(state, i, now) }),

    ruleStatuses(state, i, now) {
      const spent = spentAt(state, i, now);
      const remaining = turnIn(now) > 0 ? 0 : Math.max(0, tokensLeft(spent));
      const freshInMs = spent > grace ? Math.ceil(Math.max(0, fullAt(state, i) - now)) : 0;
      const quota = Math.floor(terms.quota / size);
      const { opensInMs = 0 } = remaining >= 1 ? OPEN_NOW : timeToOpen(policy, state, i, now);
      return [{ kind, quota, windowMs: terms.windowMs, remaining, freshInMs, opensInMs }];
    },
  };
  return policy;
}

/** The numbers of a bucket's formula that say how it stands: tokens a millisecond, and its burst. */
type BucketParams = readonly number[];

/**
 * How far the fullest of several buckets, side by side in one state, is from empty, told as what is spent
 * of the largest: a hit more is one more, whichever of them binds.
 */
export function bindingLevel(
  buckets: readonly BucketParams[],
  state: State,
  i: number,
  now: Millis,
): number {
  let level = -Infinity;
  let largest = 0;
  for (let n = 0; n < buckets.length; n++) {
    const [perMs, burst] = buckets[n];
    const at = i + n * WIDTH;
    const elapsed = Math.max(0, now - state[at + UPDATED_AT]);
    level = Math.max(level, Math.max(0, state[at + SPENT] - elapsed * perMs) - burst);
    largest = Math.max(largest, burst);
  }
  return level + largest;
}

/** How long until each of several buckets, side by side in one state, is full. */
export function timeToFull(
  buckets: readonly BucketParams[],
  state: State,
  i: number,
  now: Millis,
): readonly Millis[] {
  return buckets.map(([perMs], n) => {
    const at = i + n * WIDTH;
    return Math.max(0, state[at + SPENT] / perMs - Math.max(0, now - state[at + UPDATED_AT]));
  });
}

/** Sees to it that each of them is full no sooner than it is elsewhere, where so many hits have yet to count. */
export function raiseLevels(
  buckets: readonly BucketParams[],
  state: State,
  i: number,
  now: Millis,
  spansMs: readonly Millis[],
  hits: number,
): void {
  const own = timeToFull(buckets, state, i, now);
  for (let n = 0; n < buckets.length; n++) {
    const [perMs] = buckets[n];
    const spent = spansMs[n] * perMs + hits;
    if (own[n] * perMs >= spent) continue;
    const at = i + n * WIDTH;
    state[at + SPENT] = spent;
    state[at + UPDATED_AT] = Math.max(now, state[at + UPDATED_AT]);
  }
}

/** A bucket in the words of a window: in whole seconds, and never more than it lets through. */
function quotaOf(burst: number, perMs: number): { quota: number; windowMs: Millis } {
  const seconds = Math.max(1, Math.ceil(burst / perMs / 1000 - EPSILON));
  return {
    quota: Math.floor(Math.max(burst, perMs * seconds * 1000) + EPSILON),
    windowMs: seconds * 1000,
  };
}
