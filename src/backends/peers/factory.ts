import { createHasher } from '../../core/hash.ts';
import type { Policy } from '../../policies/policy.ts';
import type { BackendContext, BackendFactory } from '../backend.ts';
import { type PeerNetwork, PeersBackend } from './backend.ts';
import { LockoutPeersBackend } from './lockout-backend.ts';

/** Creates the backend of a policy. @throws {ConfigError} if peers cannot share the policy. */
export function createPeersBackend(
  policy: Policy,
  context: BackendContext,
  network: PeerNetwork,
): PeersBackend {
  const hasLockout = policy.rules.some(({ policy: rule }) => rule.share?.events);
  const Backend = hasLockout ? LockoutPeersBackend : PeersBackend;
  return new Backend(policy, context, network);
}

export const peersFactory = (network: PeerNetwork): BackendFactory => ({
  isRemote: false,
  create: (policy, context) => createPeersBackend(policy, context, network),
});

/** Peers without a network, for validating a policy. */
export const dryRunPeers = peersFactory({
  hasher: createHasher([0, 0]),
  addLimit() {},
  removeLimit() {},
  recordHits() {},
  retractHits() {},
  msUntilReleased: () => Infinity,
  isCatchingUp: () => false,
});
