/** What registers are called, and what processes call themselves. */

import { secretRandom } from '../../core/random.ts';
import type { Policy } from '../../policies/policy.ts';
import type { RemoteSetting } from '../remote-backend.ts';

/**
 * `prefix` `name/kind/key`, the name spelt so that it holds no slash. Of its kind, because limits of different kinds could
 * not read each other's numbers. A limit that nobody named goes by its figures, lest it share a count with a stranger.
 */
export function keysOf(
  prefix: string,
  { name, isNamed }: RemoteSetting,
  { kind, formulas = [] }: Policy,
): (key: string) => string {
  const figures = formulas.map(({ numbers }) => numbers.join(' ')).join();
  const start = `${prefix}${encodeURIComponent(isNamed ? name : figures)}/${kind}/`;
  return (key) => start + key;
}

/** One that nobody else has: whoever took another's clock for its own would be too early. */
export const ownName = (): string =>
  [secretRandom(), secretRandom()].map((part) => (part * 2 ** 52).toString(36)).join('');
