/**
 * Static pool size, without a store: the number of members is configured.
 *
 *     pool(fixedPool(5))                                  a fifth of each limit
 *     pool(fixedPool(5, 2))                               and the third turn at the remainder
 *     pool(poolFromEnvironment('PODS', 'POD_NAME'))       PODS=5, POD_NAME=worker-2, as in a StatefulSet
 *
 * There is no agreement: while members run with different sizes, their parts may add up to more than the limit
 * (overshoot). Seconds are those of each system clock.
 */

import { type Clock, isClock, systemClock } from '../../core/clock.ts';
import { isNonEmptyString } from '../../core/config-helpers.ts';
import { ConfigError } from '../../core/errors.ts';
import { requireNumber } from '../../core/options.ts';
import type { Claim } from './agreement.ts';
import type { PoolStore } from './store.ts';

/** Nine digits: more than any pool has, and exact as a number. */
const MAX_SIZE = 999_999_999;

/** A store with a fixed size. @throws {ConfigError} unless `size` is a whole number from 1, and `rank` one below it. */
export function fixedPool(size: number, rank = -1, clock: Clock = systemClock): PoolStore {
  requireNumber('size', size, { min: 1, max: MAX_SIZE, integer: true });
  requireNumber('rank', rank, { min: -1, max: size - 1, integer: true });
  if (!isClock(clock)) throw new ConfigError('clock', 'a clock', clock);
  return staticStore('fixed', clock, async () => ({ size, rank, round: 0 }));
}

/** Variables by name, such as `process.env`. */
export type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Creates a store with the size in a variable. `rankVariable` contains a number from 0, or a name that ends in one.
 * @throws {ConfigError} if a variable is missing or invalid.
 */
export function poolFromEnvironment(
  sizeVariable: string,
  rankVariable?: string,
  environment: Environment = process.env,
): PoolStore {
  if (!isNonEmptyString(sizeVariable))
    throw new ConfigError('sizeVariable', VARIABLE_NAME_EXPECTED, sizeVariable);
  const sizeText = environment[sizeVariable];
  const size = /^\d{1,9}$/.test(sizeText ?? '') ? Number(sizeText) : 0;
  if (size === 0) throw new ConfigError(sizeVariable, 'a whole number from 1 on', sizeText);
  if (rankVariable === undefined) return fixedPool(size);
  if (!isNonEmptyString(rankVariable))
    throw new ConfigError('rankVariable', VARIABLE_NAME_EXPECTED, rankVariable);
  const rankText = environment[rankVariable];
  const rank = Number(/(?:^|-)(\d{1,9})$/.exec(rankText ?? '')?.[1] ?? Number.NaN);
  if (rank < size) return fixedPool(size, rank);
  const expected = `a number from 0 to ${size - 1}, or a name such as worker-0 that ends in one`;
  throw new ConfigError(rankVariable, expected, rankText);
}

const VARIABLE_NAME_EXPECTED = 'the name of a variable';

/** A store whose members use the claim of `find` at once. */
export function staticStore(name: string, clock: Clock, find: () => Promise<Claim>): PoolStore {
  return {
    name,
    isStatic: true,
    async sync() {
      const claim = await find();
      return { claim, effectiveAt: 0, active: claim.size, isAgreed: true, now: clock.now() };
    },
    async leave() {},
    async saveCheckpoint() {},
    loadCheckpoint: async () => undefined,
    members: async () => [],
    async close() {},
  };
}
