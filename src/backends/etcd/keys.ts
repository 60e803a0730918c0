/** What registers are called, and what processes call themselves. */

import { cryptoRandom } from '../../core/random.ts';
import type { Policy } from '../../policies/policy.ts';
import type { RemoteBackendContext } from '../remote-backend.ts';

/**
 * `prefix` `name/kind/key`, the name spelt so that it holds no slash. Of its kind, because limits of different kinds could
 * not read each other's numbers. A limit that nobody named goes by its figures, lest it share a count with a stranger.
 */
export function createEtcdKeyMapper(
  prefix: string,
  { name, hasExplicitName }: RemoteBackendContext,
  { kind, specs = [] }: Policy,
): (key: string) => string {
  const figures = specs.map(({ params }) => params.join(' ')).join();
  const start = `${prefix}${encodeURIComponent(hasExplicitName ? name : figures)}/${kind}/`;
  return (key) => start + key;
}

/** One that nobody else has: whoever took another's clock for its own would be too early. */
export const randomClockId = (): string =>
  [cryptoRandom(), cryptoRandom()].map((part) => (part * 2 ** 52).toString(36)).join('');
