import { describe, expect, test } from 'vitest';
import { shareContract } from '../../../test/support/share-contract.ts';
import { hasher } from '../../core/hash.ts';
import { seededRandom } from '../../core/random.ts';
import { policyOf } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { PeersShare } from './backend.ts';
import { ALL } from './messages.ts';
import { PeerEngine } from './protocol.ts';
import { PEER_DEFAULTS } from './settings.ts';

const LIMIT = { bucket: { rate: 1, burst: 10 } };

/** Nodes that hear each other at once, whenever somebody says so. */
function fleetOf(count: number, clock = new VirtualClock(1_000_000), keysMax = 1000) {
  const mail: (() => void)[] = [];
  const nodes: { engine: PeerEngine; share: PeersShare }[] = [];
  for (let n = 0; n < count; n++) {
    const random = seededRandom(n + 1);
    const send = (to: number, bytes: Uint8Array): void => {
      for (const { engine: other } of nodes) {
        if (other !== engine && (to === ALL || to === other.id)) {
          mail.push(() => other.receive(bytes, clock.now()));
        }
      }
    };
    const options = { ...PEER_DEFAULTS, exchange: 'interval' as const, intervalMs: 5000 };
    const engine = new PeerEngine(options, random, send, clock.now());
    const fleet = {
      hasher: hasher([1, 2]),
      join: engine.join.bind(engine),
      leave: engine.leave.bind(engine),
      served: engine.served.bind(engine),
      unserved: engine.unserved.bind(engine),
    };
    const setting = { name: 'api', clock, random, keysMax };
    nodes.push({ engine, share: new PeersShare(policyOf(LIMIT, random), setting, fleet) });
  }
  /** Lets time pass in small steps, and everybody do what is due. */
  const pass = (ms: number): void => {
    for (const until = clock.now() + ms; clock.now() < until; ) {
      clock.advance(Math.min(10, until - clock.now()));
      for (const { engine } of nodes)
        if (engine.wakeAt(clock.now()) <= clock.now()) engine.tick(clock.now());
      for (let act = mail.shift(); act; act = mail.shift()) act();
    }
  };
  for (const { engine } of nodes) engine.startAlone();
  return { clock, nodes, pass };
}

shareContract(
  'peers',
  ({ policy, clock, keysMax }) => {
    const { nodes } = fleetOf(1, clock);
    const fleet = {
      hasher: hasher([1, 2]),
      join: nodes[0].engine.join.bind(nodes[0].engine),
      leave: () => {},
      served: () => {},
      unserved: () => {},
    };
    return new PeersShare(policy, { name: 'x', clock, random: seededRandom(7), keysMax }, fleet);
  },
  true,
);

describe('two nodes and one client', () => {
  test('the story of the two onlines: seventeen at once, paid back until the ninth second', () => {
    const { nodes, pass, clock } = fleetOf(2);
    pass(4900); // they know each other, and the next reports are 0.1 s away
    pass(100);
    const start = clock.now();
    const [a, b] = nodes.map(({ share }) => share);
    const buckets = (): number[] => [a, b].map((own) => own.inspect('C').view.remaining);
    const ask = (share: PeersShare, times: number): number =>
      Array.from({ length: times }, () => share.ask('C', 1)).filter(
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
    const [a, b] = nodes.map(({ share }) => share);
    for (let n = 0; n < 100; n++) a.ask('C', 1);
    pass(4000);
    expect(b.inspect('C').view.remaining).toBe(0); // ten were served, whoever asked how often
  });

  test('what did not happen after all is not told', () => {
    const { nodes, pass } = fleetOf(2);
    pass(1000);
    const [a, b] = nodes.map(({ share }) => share);
    a.ask('C', 4);
    a.settle('C', { outcome: 'ignored', cost: 4, dueAt: 0 });
    pass(5000);
    expect(b.inspect('C').view.remaining).toBe(10);
  });

  test('what was let through is told, whichever way it was asked for', () => {
    const { nodes, pass, clock } = fleetOf(2);
    pass(1000);
    const [a, b] = nodes.map(({ share }) => share);
    const own = hasher([1, 2]);
    a.askNow('C', 1, clock.now());
    a.take('C', 2);
    own.hash('C');
    a.askHashed(own.low, own.high, 3);
    a.askHashed(own.low, own.high, 30); // refused
    a.settle('C', { outcome: 'ok', cost: 3, used: 4, dueAt: 0 });
    expect(a.take('C', Infinity)).toBe(3);
    expect(a.take('C', Infinity)).toBe(0);
    pass(4000);
    expect(b.inspect('C').view.remaining).toBe(0); // all ten
  });

  test('what came to one of them from elsewhere is its own: calls it pays for with that are not told', () => {
    const { nodes, pass } = fleetOf(2);
    pass(4900);
    const [a, b] = nodes.map(({ share }) => share);
    const left = (share: PeersShare): number[] =>
      ['C', 'D', 'E'].map((key) => share.inspect(key).view.remaining);
    a.ask('C', 8);
    a.gain('C', 20, 5); // it has two, and three more fit
    a.ask('D', 4);
    a.gain('D', 20, 5); // it has more than that
    a.ask('E', 9);
    a.leave();
    a.gain('E', 2, 5);
    expect(left(a)).toEqual([5, 6, 3]);
    pass(100);
    expect(left(b)).toEqual([2, 6, 1]);
  });

  test('and of more calls than that, the rest is told', () => {
    const { nodes, pass } = fleetOf(2);
    pass(4900);
    const [a, b] = nodes.map(({ share }) => share);
    a.ask('C', 8);
    a.gain('C', 3, 5);
    pass(100);
    a.ask('C', 2);
    a.ask('C', 2);
    expect(a.inspect('C').view.remaining).toBe(1);
    pass(5000);
    expect(b.inspect('C').view.remaining).toBe(a.inspect('C').view.remaining);
  });

  test('one that leaves goes on alone; what it served before is told', () => {
    const { nodes, pass } = fleetOf(2);
    pass(1000);
    const [a, b] = nodes.map(({ share }) => share);
    a.ask('C', 4);
    a.leave();
    expect(a.ask('C', 5).verdict).toBe('allow');
    b.ask('D', 3);
    pass(4000); // to the next report
    expect(b.inspect('C').view.remaining).toBe(6);
    expect(a.inspect('D').view.remaining).toBe(10);
  });

  test('limits of another rule are kept apart', () => {
    const make = (): PeersShare => {
      const random = seededRandom(1);
      const fleet = {
        hasher: hasher([1, 2]),
        join: () => {},
        leave: () => {},
        served: () => {},
        unserved: () => {},
      };
      const setting = { name: 'api', clock: new VirtualClock(0), random, keysMax: 10 };
      return new PeersShare(policyOf({ spacing: { every: 10 } }, random), setting, fleet);
    };
    expect(make).toThrow(/`limit` to be made of buckets when peers share it, got "spacing"/);
  });
});
