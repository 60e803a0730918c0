/** Names of registers in etcd, and ids of clocks. */

import { cryptoRandom } from '../../core/random.ts';
import type { Policy } from '../../policies/policy.ts';
import type { RemoteBackendContext } from '../remote-backend.ts';
import { limitIdOf, randomId } from '../remote-limit.ts';

/**
 * `prefix` `limit/kind/key`, the limit's id encoded so that it holds no slash. The kind is part of the name because limits
 * of different kinds cannot read each other's state.
 */
export function createEtcdKeyMapper(
  prefix: string,
  context: RemoteBackendContext,
  policy: Policy,
): (key: string) => string {
  const start = `${prefix}${encodeURIComponent(limitIdOf(context, policy))}/${policy.kind}/`;
  return (key) => start + key;
}

/** Never from a seeded source: a process that took another's clock for its own would start permits too early. */
export const randomClockId = (): string => randomId(cryptoRandom);
