import { describe, expect, test } from 'vitest';
import { createHasher } from '../../core/hash.ts';
import { seededRandom } from '../../core/random.ts';
import type { BucketOptions } from '../../policies/bucket.ts';
import { createPolicy } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { PeersBackend } from './backend.ts';
import { decode } from './codec.ts';
import type { PeerLimit } from './limits.ts';
import { BROADCAST, type Message } from './messages.ts';
import { PeerProtocol } from './protocol.ts';
import { PEER_DEFAULTS, type PeerOptions } from './settings.ts';

const BUCKET: BucketOptions = { rate: 1, burst: 1000 };

interface Node {
  readonly protocol: PeerProtocol;
  readonly backend: PeersBackend;
}

/** Nodes on one network: `isCarried` says which datagrams come, `seen` is all that was sent. */
function network() {
  const clock = new VirtualClock(1_000_000);
  const nodes: Node[] = [];
  const mail: (() => void)[] = [];
  const seen: { message: Message; bytes: Uint8Array }[] = [];
  const rules = { isCarried: (_message: Message): boolean => true };
  /** Who is asleep, and what came meanwhile. */
  const asleep = new Map<PeerProtocol, (() => void)[]>();
  const start = (own: Partial<PeerOptions> = {}, bucket: BucketOptions = BUCKET) => {
    const random = seededRandom(nodes.length + 1);
    const send = (to: number, bytes: Uint8Array): void => {
      const message = decode(bytes);
      if (message) seen.push({ message, bytes });
      if (!message || !rules.isCarried(message)) return;
      for (const { protocol: other } of nodes) {
        if (other !== protocol && (to === BROADCAST || to === other.id)) {
          const arrive = (): unknown => other.receive(bytes, clock.now());
          mail.push(() => asleep.get(other)?.push(arrive) ?? arrive());
        }
      }
    };
    const protocol = new PeerProtocol({ ...PEER_DEFAULTS, ...own }, random, send, clock.now());
    const peerNetwork = {
      hasher: createHasher([1, 2]),
      addLimit: protocol.addLimit.bind(protocol),
      removeLimit: protocol.removeLimit.bind(protocol),
      recordHits: protocol.recordHits.bind(protocol),
      retractHits: protocol.retractHits.bind(protocol),
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
        if (asleep.has(protocol)) continue;
        if (protocol.wakeAt(clock.now()) <= clock.now()) protocol.tick(clock.now());
      }
      for (let act = mail.shift(); act; act = mail.shift()) act();
    }
  };
  const sleep = ({ protocol }: Node): unknown => asleep.set(protocol, []);
  const wake = ({ protocol }: Node): void => {
    const late = asleep.get(protocol) ?? [];
    asleep.delete(protocol);
    for (const arrive of late) arrive();
  };
  return { clock, nodes, start, pass, seen, rules, sleep, wake };
}

const spent = ({ backend }: { backend: PeersBackend }): number =>
  1000 - backend.inspect('C').state.remaining;

describe('nodes that stand apart', () => {
  /** Two that know each other, one of which counted a hundred that the other never heard of. */
  function apart() {
    const world = network();
    const [a, b] = [world.start(), world.start()];
    world.pass(1000);
    b.backend.update('C', { hits: 100 });
    a.backend.check('C', 20);
    return { ...world, a, b };
  }

  test('come together, and stand where they stood on average', () => {
    const { a, b, pass } = apart();
    expect([spent(a), spent(b)]).toEqual([20, 100]);
    for (let n = 0; n < 12; n++) {
      pass(1000);
      a.backend.check('C', 1); // only what is used is worth a comparison
    }
    pass(50);
    expect(Math.abs(spent(a) - spent(b))).toBeLessThanOrEqual(1);
  });

  test('do not move by an answer that was recorded, nor by one that nobody asked for', () => {
    const { a, b, pass, seen, clock, rules } = apart();
    for (let n = 0; n < 4; n++) {
      pass(1000);
      a.backend.check('C', 1);
    }
    rules.isCarried = () => false; // from here on only the recorder speaks
    const levels = seen.filter(({ message }) => message.kind === 'levels');
    expect(levels.length).toBeGreaterThan(2);
    b.backend.update('C', { hits: 50 });
    a.backend.check('C', 1);
    pass(1100); // a question is open, and nobody answers it
    expect(seen.at(-1)?.message.kind).toBe('heartbeat');
    a.backend.check('C', 1);
    for (let n = 0; n < 1000 && seen.at(-1)?.message.kind !== 'levels-request'; n++) pass(1);
    expect(seen.at(-1)?.message).toMatchObject({ kind: 'levels-request', from: a.protocol.id });
    const before = [spent(a), spent(b)];
    for (const { bytes } of levels) {
      a.protocol.receive(bytes, clock.now());
      b.protocol.receive(bytes, clock.now());
    }
    expect([spent(a), spent(b)]).toEqual(before);
  });
});

describe('one of three that was cut off', () => {
  test('moves nobody by comparing while only some have heard what it did meanwhile', () => {
    const { start, pass, rules } = network();
    const [a, b, c] = [start(), start(), start()];
    pass(1000);
    const isWithC = ({ from, to }: Message): boolean => [from, to].includes(c.protocol.id);
    rules.isCarried = (message) => !isWithC(message);
    for (let n = 0; n < 50; n++) {
      c.backend.check('C', 4);
      pass(20);
    }
    expect([spent(a), spent(c)]).toEqual([0, 199]); // one has flowed back in
    // It is heard again, but of what was missed the second gets nothing yet.
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

describe('questions that were held up somewhere', () => {
  test('and come all at once are not all answered: what is missing is told a few times over at most', () => {
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
    const questions = seen.filter(({ message }) => message.kind === 'nack');
    expect(questions.length).toBeGreaterThan(15);
    seen.length = 0;
    rules.isCarried = () => true;
    for (const { bytes } of questions.slice(0, 15)) a.protocol.receive(bytes, clock.now());
    const told = seen.filter(({ message }) => message.kind === 'report').length;
    expect(told).toBeGreaterThanOrEqual(60);
    expect(told).toBeLessThanOrEqual(5 * 60);
    pass(1);
    expect(Math.abs(spent(a) - spent(b))).toBeLessThanOrEqual(2); // what flowed back in meanwhile
  });
});

describe('a node that came late', () => {
  test('does not count again what a neighbour has told it, when it meets the others later still', () => {
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
    pass(500); // so far it has met only one of them
    rules.isCarried = () => true;
    pass(1500);
    expect(late.protocol.peers(0)).toHaveLength(2);
    expect(nodes.map(spent).every((own) => own > 90 && own <= 101)).toBe(true);
  });
});

describe.each(['eager', 'periodic'] as const)('a node that was asleep (%s)', (exchange) => {
  const RATE = 20;

  /** Three that are asked for far more than there is, one of which does not notice for ten seconds. */
  function awoken(servesFirst: number) {
    const world = network();
    const bucket = { rate: RATE, burst: 20 };
    const nodes = [0, 1, 2].map(() => world.start({ exchange }, bucket));
    const [, , sleeper] = nodes;
    /** How many each serves. */
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
    world.sleep(sleeper);
    load(10_000, nodes.slice(0, 2));
    for (let n = 0; n < servesFirst; n++) sleeper.backend.check('C', 1);
    world.wake(sleeper);
    return { ...world, nodes, sleeper, load };
  }

  const debt = ({ backend }: Node): number => -backend.inspect('C').state.remaining;

  test.each([0, 1, 5])('stands as the others do, though it served %i first', (servesFirst) => {
    const { nodes, sleeper, load } = awoken(servesFirst);
    const sum = (served: number[]): number => served.reduce((a, b) => a + b);
    const atOnce = load(1000);
    expect(sum(atOnce)).toBeLessThanOrEqual(RATE + 25); // its own bucket was full, once
    expect(debt(sleeper)).toBeLessThan(25);
    load(2000);
    for (const own of nodes) expect(Math.abs(debt(own) - debt(sleeper))).toBeLessThanOrEqual(2);
    const later = sum(load(10_000));
    expect(later).toBeLessThanOrEqual(10.5 * RATE);
    expect(later).toBeGreaterThanOrEqual(9.5 * RATE);
  });
});

describe('limits that come and go', () => {
  /** A limit that only remembers: what it heard, and what a newcomer is told of it. */
  function memo(id: number) {
    const heard: number[] = [];
    const raised: number[] = [];
    const limit: PeerLimit = {
      id,
      isAdditive: true,
      applyRemoteHits: (_low, _high, hits) => void heard.push(hits),
      buckets: 1,
      readPage: () => ({ refillTimes: [1, 1, 500], next: 0 }),
      raiseLevel: (_low, _high, fullInMs) => void raised.push(...fullInMs),
      level: () => 0,
      adjustLevel: () => {},
    };
    return { limit, heard, raised };
  }

  /** Two nodes that know each other. */
  function two() {
    const world = network();
    const [a, b] = [world.start().protocol, world.start().protocol];
    world.pass(1000);
    return { ...world, a, b };
  }

  test('what one served before it was left is told', () => {
    const { a, b, pass } = two();
    const there = memo(7);
    b.addLimit(there.limit);
    const own = memo(7).limit;
    a.addLimit(own);
    a.recordHits(own, 1, 1, 3);
    a.removeLimit(own);
    pass(200);
    expect(there.heard).toEqual([3]);
  });

  test('the others go on', () => {
    const { a, b, pass } = two();
    const [first, second] = [memo(7), memo(8)];
    b.addLimit(first.limit);
    b.addLimit(second.limit);
    const [left, kept, again] = [memo(7).limit, memo(8).limit, memo(7).limit];
    a.addLimit(left);
    a.addLimit(kept);
    a.removeLimit(left);
    a.addLimit(again);
    a.recordHits(kept, 1, 1, 5);
    a.recordHits(again, 1, 1, 2);
    pass(200);
    expect([first.heard, second.heard]).toEqual([[2], [5]]);
  });

  test.each(['before', 'after'])(
    'one takes the place of another that leaves %s it comes',
    (when) => {
      const { a, b, pass } = two();
      const [old, next] = [memo(7), memo(7)];
      b.addLimit(old.limit);
      if (when === 'before') b.removeLimit(old.limit);
      b.addLimit(next.limit);
      if (when === 'after') b.removeLimit(old.limit);
      a.recordHits(memo(7).limit, 1, 1, 4);
      pass(200);
      expect([old.heard, next.heard]).toEqual([[], [4]]);
    },
  );

  test('one hears again when the one that took its place is left', () => {
    const { a, b, pass } = two();
    const [old, next] = [memo(7), memo(7)];
    b.addLimit(old.limit);
    b.addLimit(next.limit);
    b.removeLimit(next.limit);
    a.recordHits(memo(7).limit, 1, 1, 4);
    pass(200);
    expect([old.heard, next.heard]).toEqual([[4], []]);
  });

  test('two with one id both hear what others serve, and each other', () => {
    const { a, b, pass } = two();
    const [first, second] = [memo(7), memo(7)];
    b.addLimit(first.limit);
    b.addLimit(second.limit);
    a.recordHits(memo(7).limit, 1, 1, 4);
    pass(200);
    expect([first.heard, second.heard]).toEqual([[4], [4]]);
    b.recordHits(first.limit, 1, 1, 2);
    expect([first.heard, second.heard]).toEqual([[4], [4, 2]]);
  });

  test('one that is not known here is counted: under one name there may be two rules', () => {
    const { a, b, pass } = two();
    b.addLimit(memo(7).limit);
    a.recordHits(memo(7).limit, 1, 1, 4);
    a.recordHits(memo(8).limit, 1, 1, 4);
    a.recordHits(memo(8).limit, 2, 2, 4);
    pass(200);
    expect(b.counts.unknownLimits).toBe(2);
  });

  test('one that comes late is learned from a neighbour, once', () => {
    const { a, b, pass } = two();
    b.addLimit(memo(7).limit);
    pass(300);
    const late = memo(7);
    a.addLimit(late.limit);
    pass(300);
    expect(late.raised).toEqual([500]);
    const heir = memo(7); // is handed what the other knew, and has nothing to ask
    a.addLimit(heir.limit);
    a.removeLimit(late.limit);
    pass(300);
    expect(heir.raised).toEqual([]);
  });

  test('all is told, however many keys are served at once', () => {
    const { a, b, pass } = two();
    const there = memo(7);
    b.addLimit(there.limit);
    const own = memo(7).limit;
    for (let n = 1; n <= 10_000; n++) a.recordHits(own, n, n, 1);
    pass(200);
    expect(there.heard).toHaveLength(10_000);
  });
});

test('a hot node tells in fewer, fuller reports, never in a storm', () => {
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
  expect(reports).toBeGreaterThan(80); // a thousand keys take nine datagrams, ten times a second,
  expect(reports).toBeLessThan(250); // and the budget is a hundred more; every ten milliseconds: 900
});
