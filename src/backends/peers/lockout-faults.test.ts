import { describe, expect, test } from 'vitest';
import type { TestPeer } from '../../../test/support/fleet.ts';
import {
  fail,
  isAllowed,
  lockedMs,
  lockoutFleet,
  report,
  stateOf,
} from '../../../test/support/lockout-fleet.ts';
import { seededRandom } from '../../core/random.ts';
import { createPolicy, type Limit } from '../../policies/limit.ts';
import type { Backend } from '../backend.ts';
import { LocalBackend } from '../local/backend.ts';
import type { PeersBackend } from './backend.ts';

/** A lossy network that duplicates and reorders datagrams. */
const FAULTY = { loss: 0.2, duplication: 0.2, delayMs: [1, 40] } as const;
const SEEDS = [1, 2, 3, 4, 5, 6];

describe('peers: lock-out on a network that loses, repeats and reorders datagrams', () => {
  test.each(SEEDS)('seed %i: every node decides as one process would', async (seed) => {
    for (const onSuccess of ['reset', 'return'] as const) {
      const limit: Limit = {
        lockout: { after: 3, within: '122s', lock: ['17s', '42s'], onSuccess },
      };
      const { nodes, clock, pass } = await lockoutFleet(3, { limit, network: { ...FAULTY, seed } });
      const random = seededRandom(seed);
      const context = { clock, random, maxKeys: 100 };
      const oracle = new LocalBackend(createPolicy(limit, random), context);
      const someNode = (): PeersBackend => nodes[Math.floor(random() * nodes.length)].backend;
      for (let n = 0; n < 40; n++) {
        const decided = [someNode(), oracle].map((backend) => backend.check('alice', 1).verdict);
        expect(decided[0], `attempt ${n}`).toBe(decided[1]);
        await pass(REPAIRED_MS);
        if (decided[0] === 'allow' && random() < 0.9) {
          const outcome = random() < 0.7 ? 'failure' : 'success';
          for (const backend of [someNode(), oracle]) backend.update('alice', { report: outcome });
          await pass(REPAIRED_MS);
        }
        for (const { backend } of nodes) expectAlike(backend, oracle, 'alice');
      }
    }
  });

  test.each(SEEDS)(
    'seed %i: failures at any moment: nodes agree, and no node unlocks a key early',
    async (seed) => {
      const limit: Limit = { lockout: { after: 6, within: '122s', lock: ['17s', '42s'] } };
      const { nodes, clock, join, pass } = await lockoutFleet(4, {
        limit,
        network: { ...FAULTY, seed },
      });
      const random = seededRandom(seed);
      const lockedUntil = new Map<string, number>();
      const addresses = nodes.map((_, n) => n);
      for (let n = 0; n < 120; n++) {
        const at = Math.floor(random() * nodes.length);
        const key = `user ${Math.floor(random() * 3)}`;
        const until = lockedUntil.get(`${at} ${key}`) ?? 0;
        if (isAllowed(nodes[at], key)) {
          expect(clock.now(), `${key} on node ${at}`).toBeGreaterThanOrEqual(until);
          lockedUntil.set(`${at} ${key}`, clock.now() + lockedMs(nodes[at], key));
          if (random() < 0.8) report(nodes[at], 'failure', key);
        }
        await pass(random() < 0.9 ? random() * 60 : 6000);
      }
      await pass(REPAIRED_MS);
      const keys = [0, 1, 2].map((n) => `user ${n}`);
      for (const key of keys)
        for (const { backend } of nodes) expectAlike(backend, nodes[0].backend, key, 500);

      // A node that starts again is at least as strict: hits that are counted while it joins may count twice.
      const [last] = addresses.slice(-1);
      await nodes[last].node.close();
      nodes[last] = await join(`${last}`);
      await pass(REPAIRED_MS);
      for (const key of keys) {
        expect(lockedMs(nodes[last], key)).toBeGreaterThanOrEqual(lockedMs(nodes[0], key) - 500);
        expect(stateOf(nodes[last], key).failures).toBe(stateOf(nodes[0], key).failures);
      }
    },
  );

  test.each(SEEDS)(
    'seed %i: a success on any node leaves no failure and no lock on any node',
    async (seed) => {
      const { nodes, pass } = await lockoutFleet(4, { network: { ...FAULTY, seed } });
      const random = seededRandom(seed);
      const someNode = (): TestPeer => nodes[Math.floor(random() * nodes.length)];
      for (let round = 0; round < 10; round++) {
        for (let n = Math.floor(random() * 8); n > 0; n--) {
          fail(someNode());
          await pass(random() * 60);
        }
        await pass(REPAIRED_MS);
        report(someNode(), 'success');
        await pass(REPAIRED_MS);
        for (const node of nodes) expect(stateOf(node)).toMatchObject({ failures: 0, lockedMs: 0 });
      }
    },
  );
});

/** Time within which lost reports are detected and retransmitted at this loss. */
const REPAIRED_MS = 5000;

/** Expects equal states, up to the age of a report. */
function expectAlike(a: Backend, b: Backend, key: string, withinMs = REPAIRED_MS): void {
  const [one, other] = [a.inspect(key).state, b.inspect(key).state];
  const [oneMs, otherMs] = [one.lockedMs ?? 0, other.lockedMs ?? 0];
  expect(one.locks).toBe(other.locks);
  expect(Math.abs(oneMs - otherMs)).toBeLessThan(withinMs);
  if (oneMs > 0 === otherMs > 0) expect(one.failures).toBe(other.failures); // else one lock is about to end
}
