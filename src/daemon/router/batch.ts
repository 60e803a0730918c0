/**
 * A batch: as many units as all limits on a route have, up to a maximum. For clients that read up to n records, and
 * give back what they did not use.
 *
 *     takeBatch ──▶ local limits, together ──▶ remote limits, one after the other ──▶ the smallest number
 *                          └──────── what one took beyond that is given back ◀────────┘
 */

import type { Clock, Millis } from '../../core/clock.ts';
import { ConfigError } from '../../core/errors.ts';
import type { AsyncLimiter } from '../../limiter/async-limiter.ts';
import { internalsOf } from '../../limiter/internals.ts';
import type { PermitResult } from '../../limiter/permit.ts';
import { SyncLimiter } from '../../limiter/sync-limiter.ts';
import { type AppliedLimit, limiterKeyOf, type Route } from './route.ts';

/** Called with a limit in shadow mode that has nothing left. */
type OnShadowDenial = (applied: AppliedLimit) => void;

/** After this time nothing can be given back: all units count as used. */
const BATCH_TIMEOUT_MS: Millis = 600_000;

/** A limiter, or all local ones together. */
type Taker = Pick<SyncLimiter | AsyncLimiter, 'settle' | 'giveBack'>;

/** Units taken from one limiter, or from all local ones together. */
interface Part {
  readonly count: number;
  readonly taker: Taker;
  /** The key in that limiter. */
  readonly key: string;
}

/** Units that were taken; settled once, with what was really used. */
export class Batch {
  /** The units taken from every limit. */
  readonly cost: number;
  readonly #parts: readonly Part[];
  readonly #clock: Clock | undefined;
  readonly #takenAt: Millis;
  #isSettled = false;

  constructor(cost: number, parts: readonly Part[], clock: Clock | undefined, takenAt: Millis) {
    this.cost = cost;
    this.#parts = parts;
    this.#clock = clock;
    this.#takenAt = takenAt;
  }

  /** True if nothing can be given back: it is settled or too old, or no limit applies. */
  get isSettled(): boolean {
    const isLate = (this.#clock?.now() ?? Infinity) > this.#takenAt + BATCH_TIMEOUT_MS;
    return this.#isSettled || this.#parts.length === 0 || isLate;
  }

  /** Gives unused units back as of when they were taken: a bucket subtracts its refill since, which may be spent. */
  settle({ used = Infinity, ...result }: PermitResult = {}): void {
    if (this.isSettled) return;
    this.#isSettled = true;
    const isIgnored = result.outcome === 'ignored';
    for (const { count, taker, key } of this.#parts) {
      const cost = isIgnored ? 0 : Math.min(Math.ceil(used), count);
      if (cost < count) void taker.giveBack(key, count - cost, this.#takenAt);
      if (!isIgnored || result.retryAfterMs !== undefined)
        void taker.settle(key, { ...result, cost });
    }
  }
}

/** @throws {ConfigError} if a limit counts calls in flight: a batch does not say how many calls it becomes */
export function takeBatch(
  route: Route,
  key: string,
  max: number,
  onShadowDenial: OnShadowDenial = () => {},
): Batch | Promise<Batch> {
  requireNoneInFlight(route);
  if (route.staticVerdict && !route.staticVerdict.isAllowed) max = 0;
  const { local, remote } = route;
  const clock = route.applied.length > 0 ? internalsOf(route.applied[0].limiter).clock : undefined;
  const takenAt = clock?.now() ?? 0;
  const parts: Part[] = [];
  const taken = local ? local.takeUpTo(key, max) : max;
  if (local && taken > 0) parts.push({ count: taken, taker: local, key });
  if (remote.length > 0 && taken > 0) {
    const batch = takeRemote(remote, key, taken, parts, takenAt).then((count) => {
      takeInShadow(route, key, max, parts, onShadowDenial);
      return new Batch(count, parts, clock, takenAt);
    });
    for (const { pending } of remote) pending.add(batch);
    return batch;
  }
  takeInShadow(route, key, max, parts, onShadowDenial);
  return new Batch(taken, parts, clock, takenAt);
}

/** Adds the parts of the remote limits, all of one size; returns that size. */
async function takeRemote(
  remote: readonly AppliedLimit[],
  key: string,
  most: number,
  parts: Part[],
  takenAt: Millis,
): Promise<number> {
  let granted = most;
  for (const applied of remote) {
    const limiterKey = limiterKeyOf(applied, key);
    const count = await applied.limiter.takeUpTo(limiterKey, granted);
    parts.push({ count, taker: applied.limiter, key: limiterKey });
    granted = count;
    if (granted === 0) break;
  }
  for (const [n, part] of parts.entries()) {
    if (part.count > granted) await part.taker.giveBack(part.key, part.count - granted, takenAt);
    parts[n] = { ...part, count: granted };
  }
  if (granted === 0) parts.length = 0;
  return granted;
}

/** Shadow mode: a limit takes what it has, which only shows in its own counters. */
function takeInShadow(
  { shadowLimits }: Route,
  key: string,
  max: number,
  parts: Part[],
  onShadowDenial: OnShadowDenial,
): void {
  for (const applied of shadowLimits) {
    const { limiter, pending } = applied;
    const limiterKey = limiterKeyOf(applied, key);
    const add = (count: number): void => {
      if (count > 0) parts.push({ count, taker: limiter, key: limiterKey });
      else if (max > 0) onShadowDenial(applied);
    };
    if (limiter instanceof SyncLimiter) add(limiter.takeUpTo(limiterKey, max));
    else pending.add(limiter.takeUpTo(limiterKey, max).then(add));
  }
}

/** The first limit of a route that counts calls in flight, and so has no batches. */
export function inFlightLimitOf({ concurrencyLimits, remote }: Route): AppliedLimit | undefined {
  const countsInFlight = ({ limiter }: AppliedLimit): boolean =>
    (limiter as AsyncLimiter).countsInFlight;
  return concurrencyLimits[0] ?? remote.find(countsInFlight);
}

function requireNoneInFlight(route: Route): void {
  const found = inFlightLimitOf(route);
  if (found)
    throw new ConfigError(
      'limit',
      'one that does not count calls in flight: use check',
      found.name,
    );
}
