/**
 * Concurrency limit: a fixed number of calls in flight.
 *
 * A call is admitted while fewer than `limit` are in flight, and counts until it settles. Round-trip times
 * are measured as by an adaptive limit, for inspection and for partitions, but never move the limit.
 * Because nothing is learnt, a server can count the calls of all processes: a semaphore in Redis or etcd.
 */

import { ConfigError } from '../core/errors.ts';
import { MAX_AMOUNT, OptionReader } from '../core/options.ts';
import type { Random } from '../core/random.ts';
import { type AimdPolicy, measuredConcurrency } from './aimd.ts';
import { readCallClasses } from './priorities.ts';

/** Concurrency limit: so many calls in flight. */
export interface ConcurrencyOptions {
  /** Calls allowed in flight. */
  readonly limit: number;
  /** Guaranteed parts of the limit: `{ live: 0.9, batch: 0.1 }`. Unused parts are lent to other partitions. */
  readonly partitions?: Readonly<Record<string, number>> | undefined;
  /** Levels of calls, the most important first: `['user', 'prefetch']`. Lower levels are refused first. */
  readonly priorities?: readonly string[] | undefined;
}

/** A number is short for `{ limit: n }`. */
export function concurrency(
  options: number | ConcurrencyOptions,
  random: Random,
  path = 'concurrency',
): AimdPolicy {
  const { limit, withClasses } = readOptions(options, path);
  const policy = measuredConcurrency(limit, random);
  return withClasses?.(policy) ?? policy;
}

function readOptions(
  options: unknown,
  path: string,
): { limit: number; withClasses?: ReturnType<typeof readCallClasses> } {
  if (typeof options === 'number' && Number.isInteger(options) && options >= 1) {
    if (options > MAX_AMOUNT) throw new ConfigError(path, `at most ${MAX_AMOUNT}`, options);
    return { limit: options };
  }
  const expected = 'a whole number of at least 1, or an object with `limit`';
  const reader = OptionReader.collecting(path, options, expected);
  const limit = reader.integer('limit', 1);
  const withClasses = readCallClasses(reader);
  reader.finish();
  return { limit, withClasses };
}
