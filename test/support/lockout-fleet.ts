/** A fleet on virtual time that shares one lock-out, and what its tests do and read. */

import type { PeerOptions } from '../../src/backends/peers/context.ts';
import { MemoryHub, type MemoryHubOptions } from '../../src/backends/peers/memory-transport.ts';
import type { Limit } from '../../src/policies/limit.ts';
import { VirtualClock } from '../../src/testing/index.ts';
import { createTestPeer, type TestPeer } from './fleet.ts';

export const LIMIT: Limit = { lockout: { after: 5, lock: ['10s', '30s', '1m'] } };
export const KEY = 'a key for the tests';

interface Setup {
  readonly limit?: Limit;
  readonly network?: Partial<MemoryHubOptions>;
  readonly peers?: Partial<PeerOptions>;
}

export async function lockoutFleet(
  count: number,
  { limit = LIMIT, network, peers = {} }: Setup = {},
) {
  const clock = new VirtualClock(1_000_000);
  const hub = new MemoryHub({ clock, seed: 1, delayMs: [1, 3], isLoopback: false, ...network });
  const join = (address: string): Promise<TestPeer> =>
    createTestPeer(hub.transport(address), { clock, key: KEY, limit, peers });
  const pass = async (ms: number): Promise<void> => {
    await new Promise((done) => setImmediate(done)); // the tick in which a node sends an early report
    await clock.advanceAsync(ms);
  };
  const nodes: TestPeer[] = [];
  for (let n = 0; n < count; n++) nodes.push(await join(`${n}`));
  await pass(3000);
  return { clock, nodes, join, pass };
}

export const check = ({ backend }: TestPeer, key = 'alice', cost = 1) => backend.check(key, cost);
export const isAllowed = (node: TestPeer, key?: string): boolean =>
  check(node, key).verdict === 'allow';
export const report = (
  { backend }: TestPeer,
  outcome: 'success' | 'failure',
  key = 'alice',
): boolean => backend.update(key, { report: outcome });
export const fail = (node: TestPeer, key?: string): boolean =>
  isAllowed(node, key) && report(node, 'failure', key);
export const stateOf = ({ backend }: TestPeer, key = 'alice') => {
  const { failures, locks, lockedMs = 0 } = backend.inspect(key).state;
  return { failures, locks, lockedMs };
};
export const lockedMs = (node: TestPeer, key?: string): number => stateOf(node, key).lockedMs;
