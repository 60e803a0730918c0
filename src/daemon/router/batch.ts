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
import type { CallResult } from '../../limiter/validate.ts';
import { type AppliedLimit, limiterKeyOf, type Route } from './routes.ts';

/** From then on nothing can be given back: all of it counts as used. */
const BATCH_TIMEOUT_MS: Millis = 600_000;

/** What was taken from one limiter, or from all local ones together. */
interface Part {
  readonly count: number;
  settle(result: CallResult): unknown;
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

  settle(result: PermitResult = {}): void {
    if (this.isSettled) return;
    this.#isSettled = true;
    for (const { count: cost, settle } of this.#parts) {
      const used = result.used === undefined ? {} : { used: Math.min(result.used, cost) };
      void settle({ ...result, ...used, cost });
    }
  }
}

/** @throws {ConfigError} if a limit counts calls in flight: a batch does not say how many calls it becomes */
export function takeBatch(route: Route, key: string, max: number): Batch | Promise<Batch> {
  requireNoneInFlight(route);
  if (route.staticVerdict && !route.staticVerdict.isAllowed) max = 0;
  const { local, remote } = route;
  const clock = route.applied.length > 0 ? internalsOf(route.applied[0].limiter).clock : undefined;
  const takenAt = clock?.now() ?? 0;
  const parts: Part[] = [];
  const taken = local ? local.takeUpTo(key, max) : max;
  if (local && taken > 0) {
    const settle = (result: CallResult) => local.settle(key, { ...result, dueAt: takenAt });
    parts.push({ count: taken, settle });
  }
  if (remote.length > 0 && taken > 0) {
    const batch = takeRemote(remote, key, taken, parts).then((count) => {
      takeInShadow(route, key, max, parts, takenAt);
      return new Batch(count, parts, clock, takenAt);
    });
    for (const { pending } of remote) pending.add(batch);
    return batch;
  }
  takeInShadow(route, key, max, parts, takenAt);
  return new Batch(taken, parts, clock, takenAt);
}

/** Adds the parts of the remote limits, all of one size; returns that size. */
async function takeRemote(
  remote: readonly AppliedLimit[],
  key: string,
  most: number,
  parts: Part[],
): Promise<number> {
  let granted = most;
  for (const applied of remote) {
    const limiterKey = limiterKeyOf(applied, key);
    const count = await applied.limiter.takeUpTo(limiterKey, granted);
    parts.push({ count, settle: (result) => applied.limiter.settle(limiterKey, result) });
    granted = count;
    if (granted === 0) break;
  }
  for (const [n, { count, settle }] of parts.entries()) {
    if (count > granted) await settle({ outcome: 'ignored', cost: count - granted });
    parts[n] = { count: granted, settle };
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
  dueAt: Millis,
): void {
  for (const applied of shadowLimits) {
    const { limiter, pending } = applied;
    const limiterKey = limiterKeyOf(applied, key);
    if (limiter instanceof SyncLimiter) {
      const count = limiter.takeUpTo(limiterKey, max);
      const settle = (result: CallResult) => limiter.settle(limiterKey, { ...result, dueAt });
      if (count > 0) parts.push({ count, settle });
    } else {
      const add = (count: number) =>
        parts.push({ count, settle: (result) => limiter.settle(limiterKey, result) });
      pending.add(limiter.takeUpTo(limiterKey, max).then((count) => count > 0 && add(count)));
    }
  }
}

function requireNoneInFlight({ concurrencyLimits, remote }: Route): void {
  const countsInFlight = ({ limiter }: AppliedLimit): boolean =>
    (limiter as AsyncLimiter).countsInFlight;
  const found = concurrencyLimits[0] ?? remote.find(countsInFlight);
  if (found)
    throw new ConfigError(
      'limit',
      'one that does not count calls in flight: use check',
      found.name,
    );
}
