import { describe, expect, test } from 'vitest';
import { createTestPeer } from '../../../test/support/fleet.ts';
import {
  check,
  fail,
  isAllowed,
  KEY,
  LIMIT,
  lockedMs,
  lockoutFleet,
  report,
  stateOf,
} from '../../../test/support/lockout-fleet.ts';
import { seededRandom } from '../../core/random.ts';
import { createPolicy, type Limit } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/index.ts';
import { MemoryHub } from './memory-transport.ts';

const [SECOND, MINUTE] = [1000, 60_000];

describe('peers: lock-out', () => {
  test('failures of all nodes add up, and the lock holds on all nodes after one delay', async () => {
    const { nodes, pass } = await lockoutFleet(3);
    const [a, b, c] = nodes;
    for (const node of [a, b, c, a]) {
      expect(fail(node)).toBe(true);
      await pass(150);
    }
    expect(nodes.map((node) => stateOf(node).failures)).toEqual([4, 4, 4]);
    expect(isAllowed(b)).toBe(true); // completes the count
    expect(lockedMs(b)).toBe(10 * SECOND);
    await pass(4); // a delay of the network
    for (const node of nodes) {
      expect(check(node)).toMatchObject({ verdict: 'deny', reason: 'locked' });
      expect(lockedMs(node)).toBeGreaterThanOrEqual(lockedMs(b));
      expect(lockedMs(node)).toBeLessThanOrEqual(lockedMs(b) + 4);
    }
  });

  test('guesses at the same moment: `after` on each node at most, then locked for all of them', async () => {
    const { nodes, pass } = await lockoutFleet(4);
    let guesses = 0;
    for (const node of nodes) for (let n = 0; n < 20; n++) guesses += isAllowed(node) ? 1 : 0;
    expect(guesses).toBe(4 * 5);
    await pass(150);
    expect(nodes.map((node) => stateOf(node).failures)).toEqual([20, 20, 20, 20]);
    expect(nodes.map((node) => stateOf(node).locks)).toEqual([1, 1, 1, 1]);
  });

  test('locks escalate for the fleet, whichever node the failures are on', async () => {
    const { nodes, pass } = await lockoutFleet(3);
    const expected = [10 * SECOND, 30 * SECOND, MINUTE, MINUTE];
    for (const [round, lockMs] of expected.entries()) {
      for (let n = 0; n < 5; n++) {
        expect(fail(nodes[(round + n) % 3])).toBe(true);
        await pass(150);
      }
      for (const node of nodes) {
        expect(isAllowed(node)).toBe(false);
        expect(lockedMs(node)).toBeGreaterThan(lockMs - 200);
        expect(lockedMs(node)).toBeLessThanOrEqual(lockMs);
      }
      await pass(lockMs);
    }
  });

  test('a success on one node clears the failures of all nodes', async () => {
    const { nodes, pass } = await lockoutFleet(3);
    for (const node of [...nodes, nodes[0]]) fail(node);
    await pass(150);
    expect(isAllowed(nodes[1])).toBe(true); // locks, for the moment
    await pass(150);
    expect(nodes.map((node) => stateOf(node).locks)).toEqual([1, 1, 1]);
    report(nodes[1], 'success');
    await pass(150);
    for (const node of nodes) expect(stateOf(node)).toEqual({ failures: 0, locks: 0, lockedMs: 0 }); // the step is taken back
  });

  test('a success without an attempt ends a lock on all nodes, and its step stays', async () => {
    const { nodes, pass } = await lockoutFleet(3);
    for (let n = 0; n < 5; n++) fail(nodes[0]);
    await pass(1000);
    report(nodes[2], 'success');
    await pass(150);
    for (const node of nodes) expect(stateOf(node)).toEqual({ failures: 0, locks: 1, lockedMs: 0 });
  });

  test('an attempt that is checked on one node can be reported on another', async () => {
    const { nodes, pass } = await lockoutFleet(2);
    const [a, b] = nodes;
    isAllowed(a);
    await pass(150);
    report(b, 'failure');
    await pass(150);
    expect(nodes.map((node) => stateOf(node).failures)).toEqual([1, 1]);
    isAllowed(a);
    await pass(150);
    report(b, 'success');
    await pass(150);
    expect(nodes.map((node) => stateOf(node).failures)).toEqual([0, 0]);
  });

  test('onSuccess: return takes back one attempt on all nodes; so does an ignored one', async () => {
    const limit: Limit = { lockout: { after: 5, onSuccess: 'return' } };
    const { nodes, pass } = await lockoutFleet(3, { limit });
    const [a, b, c] = nodes;
    for (const node of [a, b]) fail(node);
    for (const node of [a, b, c]) isAllowed(node); // five attempts on each node's count by now
    await pass(150);
    expect(nodes.map((node) => lockedMs(node) > 0)).toEqual([true, true, true]);
    report(c, 'success');
    await pass(150);
    for (const node of nodes) expect(stateOf(node)).toEqual({ failures: 4, locks: 0, lockedMs: 0 });
    a.backend.settle('alice', { outcome: 'ignored', cost: 1, dueAt: 0 });
    await pass(150);
    expect(nodes.map((node) => stateOf(node).failures)).toEqual([3, 3, 3]);
  });

  test('refusals of `all` on any node add up; hits of the other rules count there alone', async () => {
    const limit: Limit = {
      all: [
        { bucket: { rate: '1/h', burst: 4 } },
        { lockout: { on: 'refusal', after: 6, within: '10s', lock: '1m' } },
      ],
    };
    const { nodes, pass } = await lockoutFleet(2, { limit });
    const [a, b] = nodes;
    expect([isAllowed(a), isAllowed(b), isAllowed(a), isAllowed(b)]).toEqual(Array(4).fill(true));
    await pass(150);
    for (const node of [a, b, a, b, a]) {
      expect(check(node)).toMatchObject({ verdict: 'deny', rule: 'bucket' });
      await pass(150);
    }
    expect(nodes.map((node) => stateOf(node).failures)).toEqual([5, 5]);
    expect(check(b)).toMatchObject({ verdict: 'deny', rule: 'bucket' }); // the longer time
    await pass(150);
    for (const node of nodes) expect(lockedMs(node)).toBeGreaterThan(MINUTE - 200);
  });

  test('several lock-outs of one limit are shared each for itself', async () => {
    const limit: Limit = {
      all: [
        { lockout: { after: 3, lock: '10s' } },
        { window: { limit: 4, per: '1h' } },
        { lockout: { on: 'refusal', after: 2, lock: '1m' } },
      ],
    };
    const { nodes, pass } = await lockoutFleet(2, { limit });
    const [a, b] = nodes;
    for (const [node, key] of [
      [a, 'alice'],
      [b, 'alice'],
      [a, 'alice'],
    ] as const) {
      expect(fail(node, key)).toBe(true);
      await pass(150);
    }
    // Locked by the first; its refusals count for the other.
    expect(check(b)).toMatchObject({ verdict: 'deny', rule: 'lockout', reason: 'locked' });
    await pass(150);
    expect(check(a)).toMatchObject({ verdict: 'deny', rule: 'lockout-2', reason: 'locked' });
    await pass(150);
    for (const node of nodes) {
      expect(lockedMs(node)).toBeGreaterThan(MINUTE - 500);
      const [failures, calls] = node.backend.inspect('alice').rules;
      expect([failures.opensInMs, calls.remaining]).toEqual([expect.any(Number), 1]);
      expect(failures.opensInMs).toBeLessThan(10 * SECOND);
    }
  });

  test('periodic exchange: the lock is known after one interval', async () => {
    const peers = { exchange: 'periodic', intervalMs: 500 } as const;
    const { nodes, pass } = await lockoutFleet(3, { peers });
    for (let n = 0; n < 5; n++) fail(nodes[0]);
    await pass(500 + 3);
    for (const node of nodes) expect(isAllowed(node)).toBe(false);
  });

  test('a node that starts later, or again, learns counts, locks and steps', async () => {
    const { nodes, join, pass } = await lockoutFleet(2);
    const [a, b] = nodes;
    for (let n = 0; n < 5; n++) fail(a, 'locked');
    for (let n = 0; n < 3; n++) fail(a, 'failed');
    await pass(2000);
    await b.node.close();
    const again = await join('1');
    const late = await join('2');
    await pass(3000);
    for (const node of [again, late]) {
      expect(check(node, 'locked')).toMatchObject({ verdict: 'deny', reason: 'locked' });
      expect(Math.abs(lockedMs(node, 'locked') - lockedMs(a, 'locked'))).toBeLessThanOrEqual(5);
      expect(stateOf(node, 'failed').failures).toBe(3);
    }
    await pass(10 * SECOND);
    for (let n = 0; n < 5; n++) fail(late, 'locked');
    await pass(150);
    expect(lockedMs(a, 'locked')).toBeGreaterThan(29 * SECOND); // the second step
  });

  test('a node that was cut off gets lost failures by retransmission, as of when they were', async () => {
    const { nodes, pass } = await lockoutFleet(3);
    const [a, , c] = nodes;
    c.transport.isPartitioned = true;
    for (let n = 0; n < 5; n++) fail(a);
    await pass(4000);
    expect(isAllowed(c)).toBe(true); // alone it cannot know
    c.transport.isPartitioned = false;
    await pass(3000);
    expect(isAllowed(c)).toBe(false);
    expect(lockedMs(c)).toBeGreaterThanOrEqual(lockedMs(a));
    expect(lockedMs(c)).toBeLessThan(lockedMs(a) + 100);
  });

  test('a node that was cut off for longer than reports are kept learns the lock by state transfer', async () => {
    const limit: Limit = { lockout: { after: 5, lock: '1h' } };
    const { nodes, pass } = await lockoutFleet(3, { limit });
    const [a, , c] = nodes;
    c.transport.isPartitioned = true;
    for (let n = 0; n < 5; n++) fail(a);
    await pass(90_000);
    expect(lockedMs(c)).toBe(0);
    c.transport.isPartitioned = false;
    await pass(10_000);
    expect(lockedMs(c)).toBeGreaterThan(58 * MINUTE);
  });

  test('a node that misses failures of another is locked by the node that locked the key', async () => {
    const { nodes, pass } = await lockoutFleet(3);
    const [a, b, c] = nodes;
    await pass(300); // between two heartbeats
    c.transport.isPartitioned = true;
    for (let n = 0; n < 4; n++) fail(b);
    await pass(30);
    c.transport.isPartitioned = false;
    expect(fail(a)).toBe(true); // completes the count, and c knows of no failure
    await pass(4); // a delay of the network; the next datagram of b, by which c notices, is a heartbeat
    expect(stateOf(c).failures).toBeLessThan(5);
    expect(check(c)).toMatchObject({ verdict: 'deny', reason: 'locked' });
  });

  test('a late message about a lock that a success has ended does not lock the key again', async () => {
    const { nodes, pass } = await lockoutFleet(3);
    const [a, b, c] = nodes;
    for (let n = 0; n < 4; n++) fail(b);
    await pass(150);
    c.transport.isPartitioned = true;
    isAllowed(a); // locks; its report is lost
    await pass(150);
    c.transport.isPartitioned = false;
    report(a, 'success');
    await pass(5); // the success arrives first
    await pass(2000);
    for (const node of nodes) expect(stateOf(node)).toEqual({ failures: 0, locks: 0, lockedMs: 0 });
  });

  test('two successes at once take the same failures back: no further attempts are given', async () => {
    const { nodes, pass } = await lockoutFleet(2);
    for (let n = 0; n < 4; n++) fail(nodes[0]);
    await pass(150);
    for (const node of nodes) report(node, 'success');
    await pass(10_000);
    let guesses = 0;
    for (let n = 0; n < 20; n++) if (fail(nodes[n % 2])) guesses++;
    expect(guesses).toBeLessThanOrEqual(2 * 5); // `after` on each node, at the same moment
    await pass(150);
    expect(nodes.map((node) => stateOf(node).failures)).toEqual([guesses, guesses]);
  });

  test('a reset acts on its node alone: daemons share it as a control', async () => {
    const { nodes, pass } = await lockoutFleet(2);
    const [a, b] = nodes;
    for (let n = 0; n < 5; n++) fail(a);
    await pass(150);
    b.backend.forget('alice');
    await pass(500);
    expect(stateOf(b)).toEqual({ failures: 0, locks: 0, lockedMs: 0 });
    expect(stateOf(a)).toMatchObject({ failures: 5, locks: 1 });
    expect(fail(b)).toBe(true); // adds up with what the others count
    await pass(150);
    expect(stateOf(b).failures).toBe(1);
  });

  test('a node without the limit ignores what is reported of it, and counts it as unknown', async () => {
    const clock = new VirtualClock(1_000_000);
    const hub = new MemoryHub({ clock, delayMs: [1, 3], isLoopback: false });
    const bucket: Limit = { bucket: { rate: '1/h', burst: 9 } };
    const [a, b, other] = await Promise.all(
      [LIMIT, LIMIT, bucket].map((limit, n) =>
        createTestPeer(hub.transport(`${n}`), { clock, key: KEY, limit }),
      ),
    );
    await clock.advanceAsync(3000);
    for (let n = 0; n < 5; n++) fail(a);
    await clock.advanceAsync(500);
    expect(isAllowed(b)).toBe(false);
    const { unknownLimits, protocolErrors } = other.node.view().counts;
    expect(unknownLimits).toBeGreaterThan(0);
    expect(protocolErrors).toBe(0);
    expect(other.backend.inspect('alice').state.remaining).toBe(9);
  });

  test('a changed limit keeps its locks, and shares under its new rule', async () => {
    const { nodes, pass } = await lockoutFleet(2);
    for (let n = 0; n < 5; n++) fail(nodes[0]);
    await pass(150);
    const policy = createPolicy({ lockout: { after: 2, lock: '10m' } }, seededRandom(1));
    for (const { backend } of nodes) backend.prepareChange(policy)?.();
    for (const node of nodes) expect(isAllowed(node)).toBe(false);
    fail(nodes[0], 'bob');
    await pass(150);
    fail(nodes[1], 'bob');
    await pass(150);
    for (const node of nodes) expect(lockedMs(node, 'bob')).toBeGreaterThan(9 * MINUTE);
  });

  test('after `detach` a node goes on alone', async () => {
    const { nodes, pass } = await lockoutFleet(2);
    const [a, b] = nodes;
    b.backend.detach();
    for (let n = 0; n < 5; n++) fail(a);
    await pass(150);
    expect(fail(b)).toBe(true);
    await pass(150);
    expect(stateOf(a).failures).toBe(5);
  });
});
