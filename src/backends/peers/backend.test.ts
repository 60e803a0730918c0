import { describe, expect, test } from 'vitest';
import { backendContract } from '../../../test/support/backend-contract.ts';
import { createHasher } from '../../core/hash.ts';
import { seededRandom } from '../../core/random.ts';
import { createPolicy } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { PeersBackend } from './backend.ts';
import { decode } from './codec.ts';
import { PEER_DEFAULTS } from './context.ts';
import { BROADCAST } from './messages.ts';
import { PeerProtocol } from './protocol.ts';

const LIMIT = { bucket: { rate: 1, burst: 10 } };

/** Nodes with a lossless network: messages are delivered when `pass` advances the clock. */
function fleetOf(count: number, clock = new VirtualClock(1_000_000), maxKeys = 1000) {
  const queue: (() => void)[] = [];
  const nodes: { protocol: PeerProtocol; backend: PeersBackend }[] = [];
  for (let n = 0; n < count; n++) {
    const random = seededRandom(n + 1);
    const send = (to: number, bytes: Uint8Array): void => {
      for (const { protocol: other } of nodes) {
        if (other !== protocol && (to === BROADCAST || to === other.id)) {
          queue.push(() => other.receive(decode(bytes), clock.now()));
        }
      }
    };
    const options = { ...PEER_DEFAULTS, exchange: 'periodic' as const, intervalMs: 5000 };
    const protocol = new PeerProtocol(options, random, send, clock.now());
    const network = {
      hasher: createHasher([1, 2]),
      addLimit: protocol.addLimit.bind(protocol),
      removeLimit: protocol.removeLimit.bind(protocol),
      recordHits: protocol.recordHits.bind(protocol),
      retractHits: protocol.retractHits.bind(protocol),
      msUntilReleased: () => Infinity,
      isCatchingUp: () => false,
    };
    const context = { name: 'api', clock, random, maxKeys };
    nodes.push({
      protocol,
      backend: new PeersBackend(createPolicy(LIMIT, random), context, network),
    });
  }
  /** Advances time in small steps, ticks the nodes and delivers messages. */
  const pass = (ms: number): void => {
    for (const until = clock.now() + ms; clock.now() < until; ) {
      clock.advance(Math.min(10, until - clock.now()));
      for (const { protocol } of nodes)
        if (protocol.wakeAt(clock.now()) <= clock.now()) protocol.tick(clock.now());
      for (let deliver = queue.shift(); deliver; deliver = queue.shift()) deliver();
    }
  };
  for (const { protocol } of nodes) protocol.startWithoutPeers();
  return { clock, nodes, pass };
}

backendContract(
  'peers',
  ({ policy, clock, maxKeys }) => {
    const { nodes } = fleetOf(1, clock);
    const network = {
      hasher: createHasher([1, 2]),
      addLimit: nodes[0].protocol.addLimit.bind(nodes[0].protocol),
      removeLimit: () => {},
      recordHits: () => {},
      retractHits: () => {},
      msUntilReleased: () => Infinity,
      isCatchingUp: () => false,
    };
    return new PeersBackend(
      policy,
      { name: 'x', clock, random: seededRandom(7), maxKeys },
      network,
    );
  },
  true,
);

describe('peers: two nodes, one key', () => {
  test('overshoot between reports becomes debt: 18 calls of a burst of 10, then denied until 9.1 s', () => {
    const { nodes, pass, clock } = fleetOf(2);
    pass(4900); // the nodes are peers, and the next reports are 0.1 s away
    pass(100);
    const start = clock.now();
    const [a, b] = nodes.map(({ backend }) => backend);
    const remaining = (): number[] => [a, b].map((node) => node.inspect('C').state.remaining);
    const allowed = (backend: PeersBackend, times: number): number =>
      Array.from({ length: times }, () => backend.check('C', 1)).filter(
        ({ verdict }) => verdict === 'allow',
      ).length;
    const until = (s: number): void => pass(start + s * 1000 - clock.now());

    expect(remaining()).toEqual([10, 10]);
    until(0.1);
    expect([allowed(a, 9), allowed(b, 8)]).toEqual([9, 8]);
    expect(remaining()).toEqual([1, 2]);
    until(0.2);
    expect(allowed(a, 2)).toBe(1);
    expect(remaining()).toEqual([0, 2]);
    until(5.1);
    expect(remaining()).toEqual([-3, -3]);
    expect([allowed(a, 1), allowed(b, 1)]).toEqual([0, 0]);
    const refilled = [6.1, 7.1, 8.1, 9.1].map((s) => {
      until(s);
      return remaining();
    });
    expect(refilled).toEqual([
      [-2, -2],
      [-1, -1],
      [0, 0],
      [1, 1],
    ]);
    expect(allowed(b, 2)).toBe(1);
  });

  test('denied calls are not reported', () => {
    const { nodes, pass } = fleetOf(2);
    pass(1000);
    const [a, b] = nodes.map(({ backend }) => backend);
    for (let n = 0; n < 100; n++) a.check('C', 1);
    pass(4000);
    expect(b.inspect('C').state.remaining).toBe(0); // ten calls were allowed, and ten were reported
  });

  test('a call that is settled as ignored is not reported', () => {
    const { nodes, pass } = fleetOf(2);
    pass(1000);
    const [a, b] = nodes.map(({ backend }) => backend);
    a.check('C', 4);
    a.settle('C', { outcome: 'ignored', cost: 4, dueAt: 0 });
    pass(5000);
    expect(b.inspect('C').state.remaining).toBe(10);
  });

  test('use beyond the cost is reported up to the debt that it causes, however large', () => {
    const { nodes, pass } = fleetOf(3);
    pass(1000);
    const backends = nodes.map(({ backend }) => backend);
    for (let n = 0; n < 9; n++) {
      backends[0].check('C', 1);
      backends[0].settle('C', { outcome: 'ok', cost: 1, used: 1e15, dueAt: 0 });
    }
    backends[0].check('D', 1);
    backends[0].settle('D', { outcome: 'ok', cost: 1, used: 4, dueAt: 0 });
    pass(5000);
    for (const backend of backends) {
      const { remaining } = backend.inspect('C').state;
      expect(remaining).toBeGreaterThanOrEqual(-3_600);
      expect(remaining).toBeLessThan(-3_500);
      expect(backend.inspect('D').state.remaining).toBeGreaterThanOrEqual(6);
    }
    pass(10_000);
    expect(backends[2].inspect('D').state.remaining).toBe(10);
  });

  test('allowed calls are reported by every method that allows them', () => {
    const { nodes, pass, clock } = fleetOf(2);
    pass(1000);
    const [a, b] = nodes.map(({ backend }) => backend);
    const hasher = createHasher([1, 2]);
    a.checkNow('C', 1, clock.now());
    a.takeUpTo('C', 2);
    hasher.hash('C');
    a.checkHashed(hasher.low, hasher.high, 3);
    a.checkHashed(hasher.low, hasher.high, 30); // denied
    a.settle('C', { outcome: 'ok', cost: 3, used: 4, dueAt: 0 });
    expect(a.takeUpTo('C', Infinity)).toBe(3);
    expect(a.takeUpTo('C', Infinity)).toBe(0);
    pass(4000);
    expect(b.inspect('C').state.remaining).toBe(0); // all ten
  });

  test('calls covered by imported credits are not reported', () => {
    const { nodes, pass } = fleetOf(2);
    pass(4900);
    const [a, b] = nodes.map(({ backend }) => backend);
    const remaining = (backend: PeersBackend): number[] =>
      ['C', 'D', 'E'].map((key) => backend.inspect(key).state.remaining);
    a.check('C', 8);
    a.credit('C', 20, 5); // 2 tokens remain, and 3 more fit
    a.check('D', 4);
    a.credit('D', 20, 5); // 6 tokens remain: nothing fits
    a.check('E', 9);
    a.detach();
    a.credit('E', 2, 5);
    expect(remaining(a)).toEqual([5, 6, 3]);
    pass(100);
    expect(remaining(b)).toEqual([2, 6, 1]);
  });

  test('calls beyond the imported credits are reported', () => {
    const { nodes, pass } = fleetOf(2);
    pass(4900);
    const [a, b] = nodes.map(({ backend }) => backend);
    a.check('C', 8);
    a.credit('C', 3, 5);
    pass(100);
    a.check('C', 2);
    a.check('C', 2);
    expect(a.inspect('C').state.remaining).toBe(1);
    pass(5000);
    expect(b.inspect('C').state.remaining).toBe(a.inspect('C').state.remaining);
  });

  test('a detached backend continues alone; its earlier calls are reported', () => {
    const { nodes, pass } = fleetOf(2);
    pass(1000);
    const [a, b] = nodes.map(({ backend }) => backend);
    a.check('C', 4);
    a.detach();
    expect(a.check('C', 5).verdict).toBe('allow');
    b.check('D', 3);
    pass(4000); // to the next report
    expect(b.inspect('C').state.remaining).toBe(6);
    expect(a.inspect('D').state.remaining).toBe(10);
  });

  test.each([
    [
      { spacing: { every: 10 } },
      /`limit` to be made of bucket, window or lockout when `peers` shares it: .*Redis, etcd or a pool.*, got "spacing"/,
    ],
    [
      { all: Array(22).fill({ lockout: { after: 3 } }) },
      /`limit` to be fewer rules when `peers` shares it: a lockout counts as 6 of them, got "132 numbers/,
    ],
  ])('a limit that peers cannot share is refused: %j', (limit, message) => {
    const make = (): PeersBackend => {
      const random = seededRandom(1);
      const network = {
        hasher: createHasher([1, 2]),
        addLimit: () => {},
        removeLimit: () => {},
        recordHits: () => {},
        retractHits: () => {},
        msUntilReleased: () => Infinity,
        isCatchingUp: () => false,
      };
      const context = { name: 'api', clock: new VirtualClock(0), random, maxKeys: 10 };
      return new PeersBackend(createPolicy(limit, random), context, network);
    };
    expect(make).toThrow(message);
  });
});
