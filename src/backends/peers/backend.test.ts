import { describe, expect, test } from 'vitest';
import { backendContract } from '../../../test/support/backend-contract.ts';
import { createHasher } from '../../core/hash.ts';
import { seededRandom } from '../../core/random.ts';
import { createPolicy } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { PeersBackend } from './backend.ts';
import { BROADCAST } from './messages.ts';
import { PeerProtocol } from './protocol.ts';
import { PEER_DEFAULTS } from './settings.ts';

const LIMIT = { bucket: { rate: 1, burst: 10 } };

/** Nodes that hear each other at once, whenever somebody says so. */
function fleetOf(count: number, clock = new VirtualClock(1_000_000), maxKeys = 1000) {
  const mail: (() => void)[] = [];
  const nodes: { protocol: PeerProtocol; backend: PeersBackend }[] = [];
  for (let n = 0; n < count; n++) {
    const random = seededRandom(n + 1);
    const send = (to: number, bytes: Uint8Array): void => {
      for (const { protocol: other } of nodes) {
        if (other !== protocol && (to === BROADCAST || to === other.id)) {
          mail.push(() => other.receive(bytes, clock.now()));
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
    };
    const context = { name: 'api', clock, random, maxKeys };
    nodes.push({
      protocol,
      backend: new PeersBackend(createPolicy(LIMIT, random), context, network),
    });
  }
  /** Lets time pass in small steps, and everybody do what is due. */
  const pass = (ms: number): void => {
    for (const until = clock.now() + ms; clock.now() < until; ) {
      clock.advance(Math.min(10, until - clock.now()));
      for (const { protocol } of nodes)
        if (protocol.wakeAt(clock.now()) <= clock.now()) protocol.tick(clock.now());
      for (let act = mail.shift(); act; act = mail.shift()) act();
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
    };
    return new PeersBackend(
      policy,
      { name: 'x', clock, random: seededRandom(7), maxKeys },
      network,
    );
  },
  true,
);

describe('two nodes and one client', () => {
  test('the story of the two onlines: seventeen at once, paid back until the ninth second', () => {
    const { nodes, pass, clock } = fleetOf(2);
    pass(4900); // they know each other, and the next reports are 0.1 s away
    pass(100);
    const start = clock.now();
    const [a, b] = nodes.map(({ backend }) => backend);
    const buckets = (): number[] => [a, b].map((own) => own.inspect('C').state.remaining);
    const ask = (backend: PeersBackend, times: number): number =>
      Array.from({ length: times }, () => backend.check('C', 1)).filter(
        (own) => own.verdict === 'allow',
      ).length;
    const until = (s: number): void => pass(start + s * 1000 - clock.now());

    expect(buckets()).toEqual([10, 10]);
    until(0.1);
    expect([ask(a, 9), ask(b, 8)]).toEqual([9, 8]);
    expect(buckets()).toEqual([1, 2]);
    until(0.2);
    expect(ask(a, 2)).toBe(1);
    expect(buckets()).toEqual([0, 2]);
    until(5.1);
    expect(buckets()).toEqual([-3, -3]);
    expect([ask(a, 1), ask(b, 1)]).toEqual([0, 0]);
    const seen = [6.1, 7.1, 8.1, 9.1].map((s) => {
      until(s);
      return buckets();
    });
    expect(seen).toEqual([
      [-2, -2],
      [-1, -1],
      [0, 0],
      [1, 1],
    ]);
    expect(ask(b, 2)).toBe(1);
  });

  test('what was refused is nobody else’s business', () => {
    const { nodes, pass } = fleetOf(2);
    pass(1000);
    const [a, b] = nodes.map(({ backend }) => backend);
    for (let n = 0; n < 100; n++) a.check('C', 1);
    pass(4000);
    expect(b.inspect('C').state.remaining).toBe(0); // ten were served, whoever asked how often
  });

  test('what did not happen after all is not told', () => {
    const { nodes, pass } = fleetOf(2);
    pass(1000);
    const [a, b] = nodes.map(({ backend }) => backend);
    a.check('C', 4);
    a.settle('C', { outcome: 'ignored', cost: 4, dueAt: 0 });
    pass(5000);
    expect(b.inspect('C').state.remaining).toBe(10);
  });

  test('what was let through is told, whichever way it was asked for', () => {
    const { nodes, pass, clock } = fleetOf(2);
    pass(1000);
    const [a, b] = nodes.map(({ backend }) => backend);
    const own = createHasher([1, 2]);
    a.checkNow('C', 1, clock.now());
    a.takeUpTo('C', 2);
    own.hash('C');
    a.checkHashed(own.low, own.high, 3);
    a.checkHashed(own.low, own.high, 30); // refused
    a.settle('C', { outcome: 'ok', cost: 3, used: 4, dueAt: 0 });
    expect(a.takeUpTo('C', Infinity)).toBe(3);
    expect(a.takeUpTo('C', Infinity)).toBe(0);
    pass(4000);
    expect(b.inspect('C').state.remaining).toBe(0); // all ten
  });

  test('what came to one of them from elsewhere is its own: calls it pays for with that are not told', () => {
    const { nodes, pass } = fleetOf(2);
    pass(4900);
    const [a, b] = nodes.map(({ backend }) => backend);
    const left = (backend: PeersBackend): number[] =>
      ['C', 'D', 'E'].map((key) => backend.inspect(key).state.remaining);
    a.check('C', 8);
    a.credit('C', 20, 5); // it has two, and three more fit
    a.check('D', 4);
    a.credit('D', 20, 5); // it has more than that
    a.check('E', 9);
    a.detach();
    a.credit('E', 2, 5);
    expect(left(a)).toEqual([5, 6, 3]);
    pass(100);
    expect(left(b)).toEqual([2, 6, 1]);
  });

  test('and of more calls than that, the rest is told', () => {
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

  test('one that leaves goes on alone; what it served before is told', () => {
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

  test('limits of another rule are kept apart', () => {
    const make = (): PeersBackend => {
      const random = seededRandom(1);
      const network = {
        hasher: createHasher([1, 2]),
        addLimit: () => {},
        removeLimit: () => {},
        recordHits: () => {},
        retractHits: () => {},
      };
      const context = { name: 'api', clock: new VirtualClock(0), random, maxKeys: 10 };
      return new PeersBackend(createPolicy({ spacing: { every: 10 } }, random), context, network);
    };
    expect(make).toThrow(/`limit` to be made of buckets when peers share it, got "spacing"/);
  });
});
