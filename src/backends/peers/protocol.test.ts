import { describe, expect, test } from 'vitest';
import { createHasher } from '../../core/hash.ts';
import { seededRandom } from '../../core/random.ts';
import type { BucketOptions } from '../../policies/bucket.ts';
import { createPolicy } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { PeersBackend } from './backend.ts';
import { decode } from './codec.ts';
import { PEER_DEFAULTS, type PeerOptions } from './context.ts';
import type { PeerLimit } from './limits.ts';
import { BROADCAST, type Message } from './messages.ts';
import { PeerProtocol } from './protocol.ts';

const BUCKET: BucketOptions = { rate: 1, burst: 1000 };

interface Node {
  readonly protocol: PeerProtocol;
  readonly backend: PeersBackend;
}

/** Nodes on one network: `isCarried` selects the datagrams that arrive, `seen` has all datagrams that were sent. */
function network() {
  const clock = new VirtualClock(1_000_000);
  const nodes: Node[] = [];
  const queue: (() => void)[] = [];
  const seen: { message: Message; bytes: Uint8Array }[] = [];
  const rules = { isCarried: (_message: Message): boolean => true };
  /** Suspended nodes, and the datagrams that wait for them. */
  const suspendedNodes = new Map<PeerProtocol, (() => void)[]>();
  const start = (options: Partial<PeerOptions> = {}, bucket: BucketOptions = BUCKET) => {
    const random = seededRandom(nodes.length + 1);
    const send = (to: number, bytes: Uint8Array): void => {
      const message = decode(bytes);
      if (message) seen.push({ message, bytes });
      if (!message || !rules.isCarried(message)) return;
      for (const { protocol: other } of nodes) {
        if (other !== protocol && (to === BROADCAST || to === other.id)) {
          const arrive = (): unknown => other.receive(message, clock.now());
          queue.push(() => suspendedNodes.get(other)?.push(arrive) ?? arrive());
        }
      }
    };
    const protocol = new PeerProtocol({ ...PEER_DEFAULTS, ...options }, random, send, clock.now());
    const peerNetwork = {
      hasher: createHasher([1, 2]),
      addLimit: protocol.addLimit.bind(protocol),
      removeLimit: protocol.removeLimit.bind(protocol),
      recordHits: protocol.recordHits.bind(protocol),
      retractHits: protocol.retractHits.bind(protocol),
      msUntilReleased: () => Infinity,
      isCatchingUp: () => protocol.isCatchingUp(clock.now()),
    };
    const policy = createPolicy({ bucket }, random);
    const node = {
      protocol,
      backend: new PeersBackend(policy, { name: 'api', clock, random, maxKeys: 2000 }, peerNetwork),
    };
    nodes.push(node);
    return node;
  };
  const pass = (ms: number): void => {
    for (let n = 0; n < ms; n++) {
      clock.advance(1);
      for (const { protocol } of nodes) {
        if (suspendedNodes.has(protocol)) continue;
        if (protocol.wakeAt(clock.now()) <= clock.now()) protocol.tick(clock.now());
      }
      for (let deliver = queue.shift(); deliver; deliver = queue.shift()) deliver();
    }
  };
  const suspend = ({ protocol }: Node): unknown => suspendedNodes.set(protocol, []);
  const resume = ({ protocol }: Node): void => {
    const late = suspendedNodes.get(protocol) ?? [];
    suspendedNodes.delete(protocol);
    for (const arrive of late) arrive();
  };
  return { clock, nodes, start, pass, seen, rules, suspend, resume };
}

const spent = ({ backend }: { backend: PeersBackend }): number =>
  1000 - backend.inspect('C').state.remaining;

describe('anti-entropy: nodes with different levels', () => {
  /** Two peers, one of which has counted a hundred hits that were never reported. */
  function apart() {
    const world = network();
    const [a, b] = [world.start(), world.start()];
    world.pass(1000);
    b.backend.update('C', { hits: 100 });
    a.backend.check('C', 20);
    return { ...world, a, b };
  }

  test('converge to the average', () => {
    const { a, b, pass } = apart();
    expect([spent(a), spent(b)]).toEqual([20, 100]);
    for (let n = 0; n < 12; n++) {
      pass(1000);
      a.backend.check('C', 1); // only recently used keys are compared
    }
    pass(50);
    expect(Math.abs(spent(a) - spent(b))).toBeLessThanOrEqual(1);
  });

  test('a replayed or unrequested reply changes nothing', () => {
    const { a, b, pass, seen, clock, rules } = apart();
    for (let n = 0; n < 4; n++) {
      pass(1000);
      a.backend.check('C', 1);
    }
    rules.isCarried = () => false; // from here on only replayed datagrams arrive
    const levels = seen.filter(({ message }) => message.kind === 'levels');
    expect(levels.length).toBeGreaterThan(2);
    b.backend.update('C', { hits: 50 });
    a.backend.check('C', 1);
    pass(1100); // a request is open, without reply
    expect(seen.at(-1)?.message.kind).toBe('heartbeat');
    a.backend.check('C', 1);
    for (let n = 0; n < 1000 && seen.at(-1)?.message.kind !== 'levels-request'; n++) pass(1);
    expect(seen.at(-1)?.message).toMatchObject({ kind: 'levels-request', from: a.protocol.id });
    const before = [spent(a), spent(b)];
    for (const { message } of levels) {
      a.protocol.receive(message, clock.now());
      b.protocol.receive(message, clock.now());
    }
    expect([spent(a), spent(b)]).toEqual(before);
  });
});

describe('anti-entropy: after a network partition', () => {
  test('nodes with a large gap neither request nor reply', () => {
    const { start, pass, rules } = network();
    const [a, b, c] = [start(), start(), start()];
    pass(1000);
    const isWithC = ({ from, to }: Message): boolean => [from, to].includes(c.protocol.id);
    rules.isCarried = (message) => !isWithC(message);
    for (let n = 0; n < 50; n++) {
      c.backend.check('C', 4);
      pass(20);
    }
    expect([spent(a), spent(c)]).toEqual([0, 199]); // one token was refilled
    // The partition heals, but the second node does not get the missing reports yet.
    const isAgain = ({ kind, to }: Message): boolean => kind === 'nack' && to === c.protocol.id;
    rules.isCarried = (message) => !(isAgain(message) && message.from === b.protocol.id);
    const busy = (ms: number): void => {
      for (let n = 0; n < ms; n += 100) {
        c.backend.check('C', 1);
        pass(100);
      }
    };
    busy(3000);
    expect(spent(c) - spent(b)).toBeGreaterThan(190);
    expect(Math.abs(spent(a) - spent(c))).toBeLessThanOrEqual(1);
    rules.isCarried = () => true;
    busy(300);
    expect(Math.abs(spent(b) - spent(c))).toBeLessThanOrEqual(1);
  });
});

describe('retransmission: NACKs that arrive late, all at once', () => {
  test('are answered a few times at most', () => {
    const { start, pass, rules, seen, clock } = network();
    const [a, b] = [start(), start()];
    pass(1000);
    rules.isCarried = ({ kind }) => kind !== 'report';
    for (let n = 0; n < 60; n++) {
      a.backend.check('C', 1);
      pass(20);
    }
    rules.isCarried = ({ kind }) => kind !== 'nack';
    a.backend.check('C', 1);
    pass(1000);
    const nacks = seen.filter(({ message }) => message.kind === 'nack');
    expect(nacks.length).toBeGreaterThan(15);
    seen.length = 0;
    rules.isCarried = () => true;
    for (const { message } of nacks.slice(0, 15)) a.protocol.receive(message, clock.now());
    const retransmitted = seen.filter(({ message }) => message.kind === 'report').length;
    expect(retransmitted).toBeGreaterThanOrEqual(60);
    expect(retransmitted).toBeLessThanOrEqual(5 * 60);
    pass(1);
    expect(Math.abs(spent(a) - spent(b))).toBeLessThanOrEqual(2); // refilled meanwhile
  });
});

describe('state transfer: a node that joins late', () => {
  test('does not count reports again that the transferred state includes', () => {
    const { nodes, start, pass, rules } = network();
    const [a, b] = [start(), start()];
    pass(1000);
    for (let n = 0; n < 10; n++) {
      b.backend.check('C', 10);
      pass(20);
    }
    expect(spent(a)).toBeGreaterThanOrEqual(99);
    const late = start();
    const isFrom = ({ from }: Message): boolean => from !== b.protocol.id;
    rules.isCarried = isFrom;
    pass(500); // so far it knows only one peer
    rules.isCarried = () => true;
    pass(1500);
    expect(late.protocol.peers(0)).toHaveLength(2);
    expect(nodes.map(spent).every((units) => units > 90 && units <= 101)).toBe(true);
  });
});

describe.each(['eager', 'periodic'] as const)('suspended node (%s)', (exchange) => {
  const RATE = 20;

  /** Three nodes under overload, one of which is suspended for ten seconds. */
  function resumed(servesFirst: number) {
    const world = network();
    const bucket = { rate: RATE, burst: 20 };
    const nodes = [0, 1, 2].map(() => world.start({ exchange }, bucket));
    const [, , suspended] = nodes;
    /** Allowed calls per node. */
    const load = (ms: number, of = nodes): number[] => {
      const served = of.map(() => 0);
      for (let n = 0; n < ms; n++) {
        if (n % 5 === 0) {
          for (const [k, { backend }] of of.entries())
            if (backend.check('C', 1).verdict === 'allow') served[k]++;
        }
        world.pass(1);
      }
      return served;
    };
    world.pass(1000);
    load(3000);
    world.suspend(suspended);
    load(10_000, nodes.slice(0, 2));
    for (let n = 0; n < servesFirst; n++) suspended.backend.check('C', 1);
    world.resume(suspended);
    return { ...world, nodes, suspended, load };
  }

  const debt = ({ backend }: Node): number => -backend.inspect('C').state.remaining;

  test.each([0, 1, 5])(
    'gets the level of its peers, after serving %i calls first',
    (servesFirst) => {
      const { nodes, suspended, load } = resumed(servesFirst);
      const sum = (served: number[]): number => served.reduce((a, b) => a + b);
      const atOnce = load(1000);
      expect(sum(atOnce)).toBeLessThanOrEqual(RATE + 25); // its own bucket was full once
      expect(debt(suspended)).toBeLessThan(25);
      load(2000);
      for (const node of nodes)
        expect(Math.abs(debt(node) - debt(suspended))).toBeLessThanOrEqual(2);
      const later = sum(load(10_000));
      expect(later).toBeLessThanOrEqual(10.5 * RATE);
      expect(later).toBeGreaterThanOrEqual(9.5 * RATE);
    },
  );
});

describe('limits of a node', () => {
  /** A limit that records the hits and levels it gets. */
  function recordingLimit(id: number) {
    const hitsReceived: number[] = [];
    const raised: number[] = [];
    const limit: PeerLimit = {
      id,
      isAdditive: true,
      isCompared: true,
      applyRemoteHits: (_low, _high, hits) => void hitsReceived.push(hits),
      buckets: 1,
      readPage: () => ({ refillTimes: [1, 1, 500], next: 0 }),
      raiseLevel: (_low, _high, fullInMs) => void raised.push(...fullInMs),
      level: () => 0,
      adjustLevel: () => {},
    };
    return { limit, hitsReceived, raised };
  }

  /** Two nodes that are peers. */
  function two() {
    const world = network();
    const [a, b] = [world.start().protocol, world.start().protocol];
    world.pass(1000);
    return { ...world, a, b };
  }

  test('hits recorded before the limit was removed are reported', () => {
    const { a, b, pass } = two();
    const remote = recordingLimit(7);
    b.addLimit(remote.limit);
    const local = recordingLimit(7).limit;
    a.addLimit(local);
    a.recordHits(local, 1, 1, 3);
    a.removeLimit(local);
    pass(200);
    expect(remote.hitsReceived).toEqual([3]);
  });

  test('removing one limit does not affect other limits', () => {
    const { a, b, pass } = two();
    const [first, second] = [recordingLimit(7), recordingLimit(8)];
    b.addLimit(first.limit);
    b.addLimit(second.limit);
    const [removed, kept, added] = [7, 8, 7].map((id) => recordingLimit(id).limit);
    a.addLimit(removed);
    a.addLimit(kept);
    a.removeLimit(removed);
    a.addLimit(added);
    a.recordHits(kept, 1, 1, 5);
    a.recordHits(added, 1, 1, 2);
    pass(200);
    expect([first.hitsReceived, second.hitsReceived]).toEqual([[2], [5]]);
  });

  test.each(['before', 'after'])(
    'a limit replaces one of the same id that is removed %s it is added',
    (when) => {
      const { a, b, pass } = two();
      const [old, next] = [recordingLimit(7), recordingLimit(7)];
      b.addLimit(old.limit);
      if (when === 'before') b.removeLimit(old.limit);
      b.addLimit(next.limit);
      if (when === 'after') b.removeLimit(old.limit);
      a.recordHits(recordingLimit(7).limit, 1, 1, 4);
      pass(200);
      expect([old.hitsReceived, next.hitsReceived]).toEqual([[], [4]]);
    },
  );

  test('a limit gets hits again after its replacement was removed', () => {
    const { a, b, pass } = two();
    const [old, next] = [recordingLimit(7), recordingLimit(7)];
    b.addLimit(old.limit);
    b.addLimit(next.limit);
    b.removeLimit(next.limit);
    a.recordHits(recordingLimit(7).limit, 1, 1, 4);
    pass(200);
    expect([old.hitsReceived, next.hitsReceived]).toEqual([[4], []]);
  });

  test('two limits with the same id both get remote hits, and each other’s hits', () => {
    const { a, b, pass } = two();
    const [first, second] = [recordingLimit(7), recordingLimit(7)];
    b.addLimit(first.limit);
    b.addLimit(second.limit);
    a.recordHits(recordingLimit(7).limit, 1, 1, 4);
    pass(200);
    expect([first.hitsReceived, second.hitsReceived]).toEqual([[4], [4]]);
    b.recordHits(first.limit, 1, 1, 2);
    expect([first.hitsReceived, second.hitsReceived]).toEqual([[4], [4, 2]]);
  });

  test('entries of unknown limits are counted: one name may have different rules on two nodes', () => {
    const { a, b, pass } = two();
    b.addLimit(recordingLimit(7).limit);
    a.recordHits(recordingLimit(7).limit, 1, 1, 4);
    a.recordHits(recordingLimit(8).limit, 1, 1, 4);
    a.recordHits(recordingLimit(8).limit, 2, 2, 4);
    pass(200);
    expect(b.counts.unknownLimits).toBe(2);
  });

  test('a limit that is added late gets its state by transfer, once', () => {
    const { a, b, pass } = two();
    b.addLimit(recordingLimit(7).limit);
    pass(300);
    const late = recordingLimit(7);
    a.addLimit(late.limit);
    pass(300);
    expect(late.raised).toEqual([500]);
    const replacement = recordingLimit(7); // starts with the state of the one it replaces
    a.addLimit(replacement.limit);
    a.removeLimit(late.limit);
    pass(300);
    expect(replacement.raised).toEqual([]);
  });

  test('all hits are reported, for any number of keys', () => {
    const { a, b, pass } = two();
    const remote = recordingLimit(7);
    b.addLimit(remote.limit);
    const local = recordingLimit(7).limit;
    for (let n = 1; n <= 10_000; n++) a.recordHits(local, n, n, 1);
    pass(200);
    expect(remote.hitsReceived).toHaveLength(10_000);
  });
});

test('peers: a busy node batches its hits into fewer reports', () => {
  const { start, pass, seen } = network();
  const { backend } = start();
  start();
  pass(1000);
  seen.length = 0;
  for (let n = 0; n < 100; n++) {
    for (let key = 0; key < 1000; key++) backend.check(`hot ${key}`, 1);
    pass(10);
  }
  const reports = seen.filter(({ message }) => message.kind === 'report').length;
  expect(reports).toBeGreaterThan(80); // 1000 keys take 9 datagrams, 10 times a second,
  expect(reports).toBeLessThan(250); // plus a budget of 100; without batching it would be 900
});
