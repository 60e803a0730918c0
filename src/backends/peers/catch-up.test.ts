import { describe, expect, test } from 'vitest';
import { createTestPeer, type TestPeer } from '../../../test/support/fleet.ts';
import { StallableClock } from '../../../test/support/stallable-clock.ts';
import { schedule } from '../../core/clock.ts';
import type { Limit } from '../../policies/limit.ts';
import { VirtualClock } from '../../testing/index.ts';
import { CatchUp } from './catch-up.ts';
import { MemoryHub } from './memory-transport.ts';

/** Datagrams that the system keeps for a process that does not read them: the first ones. */
const SOCKET_BUFFER = 200;

interface FrozenNode extends TestPeer {
  freeze(): void;
  /** Resumes, so that calls can be made before `wake`: requests are read before timers run. */
  resume(): void;
  /** Reads the waiting datagrams, one per `readMs`. */
  wake(readMs?: number): void;
}

/** A fleet whose nodes can be frozen. */
async function fleet(limit: Limit, { count = 3, seed = 1, loss = 0 } = {}) {
  const clock = new VirtualClock(1_000_000);
  const hub = new MemoryHub({ clock, seed, loss, delayMs: [0.2, 5] });
  const join = async (name: string): Promise<FrozenNode> => {
    const ownClock = new StallableClock(clock);
    const peer = await createTestPeer(hub.transport(name), { clock: ownClock, limit });
    const { receive } = peer.transport;
    let buffer: Parameters<typeof receive>[] | undefined;
    peer.transport.receive = (...datagram) => {
      if (!buffer) receive(...datagram);
      else if (buffer.length < SOCKET_BUFFER) buffer.push(datagram);
    };
    return {
      ...peer,
      freeze() {
        buffer = [];
        ownClock.stall();
      },
      resume: () => ownClock.resume(),
      wake(readMs = 0) {
        ownClock.fireOverdue();
        const read = (): void => {
          const datagram = buffer?.shift();
          if (!datagram) {
            buffer = undefined;
            return;
          }
          receive(...datagram);
          if (readMs === 0) read();
          else schedule(ownClock, ownClock.now() + readMs, read, false);
        };
        read();
      },
    };
  };
  const nodes: FrozenNode[] = [];
  for (let n = 0; n < count; n++) {
    nodes.push(await join(`${n}`));
    await clock.advanceAsync(1500);
  }
  /** Advances time while these nodes serve calls of other keys. */
  const pass = async (ms: number, serving: readonly TestPeer[] = []): Promise<void> => {
    for (let n = 0; n < ms; n += 50) {
      for (const { backend } of serving) backend.check(`other:${n % 1000}`, 1);
      await clock.advanceAsync(50);
    }
  };
  return { clock, nodes, pass };
}

const isAllowed = ({ backend }: TestPeer, key: string): boolean =>
  backend.check(key, 1).verdict === 'allow';

const admittedBy = (node: TestPeer, key: string, calls: number): number =>
  Array.from({ length: calls }, () => isAllowed(node, key)).filter(Boolean).length;

const LIMITS: readonly (readonly [string, Limit, spent: number])[] = [
  ['bucket', { bucket: { rate: 0.001, burst: 1000 } }, 1000],
  ['window', { window: { limit: 1000, per: '1h' } }, 1000],
  ['lockout', { lockout: { after: 3, within: '1h', lock: '1h' } }, 3],
];

describe.each(LIMITS)('peers, %s: a node that was frozen', (_kind, limit, spent) => {
  test.each([
    [1, 75_000],
    [2, 75_000],
    [3, 6_000],
  ])('admits nothing that the fleet has spent: seed %i, %i ms', async (seed, frozenMs) => {
    const { clock, nodes, pass } = await fleet(limit, { seed, loss: 0.05 });
    const [first, second, frozen] = nodes;
    frozen.freeze();
    expect(admittedBy(first, 'C', 2 * spent)).toBe(spent);
    await pass(frozenMs, [first, second]);
    frozen.resume();
    let admitted = admittedBy(frozen, 'C', 20); // requests that came before its timers run
    frozen.wake();
    for (let ms = 0; ms < 3000; ms += 5) {
      admitted += admittedBy(frozen, 'C', 20);
      if (ms % 50 === 0) isAllowed(first, `other:${ms % 1000}`);
      await clock.advanceAsync(5);
    }
    expect(admitted).toBe(0);
    expect(isAllowed(frozen, 'fresh')).toBe(true);
  });
});

describe('peers: a node that was frozen', () => {
  const [[, limit]] = LIMITS;

  test('decides again as soon as it has the state of a peer', async () => {
    const { clock, nodes, pass } = await fleet(limit);
    const [first, , frozen] = nodes;
    frozen.freeze();
    await pass(75_000, [first]);
    frozen.resume();
    frozen.wake();
    expect(frozen.backend.check('fresh', 1)).toMatchObject({ verdict: 'deny', reason: 'joining' });
    expect(frozen.backend.peek('fresh', 1).verdict).toBe('deny');
    expect(frozen.backend.takeUpTo('fresh', 5)).toBe(0);
    await clock.advanceAsync(200);
    expect(isAllowed(frozen, 'fresh')).toBe(true);
  });

  test('does not take the state of another one that was frozen', async () => {
    const { nodes, pass } = await fleet(limit);
    const [oldest, frozen, running] = nodes; // the oldest would be the source
    for (const node of [oldest, frozen]) node.freeze();
    admittedBy(running, 'C', 1000);
    await pass(75_000, [running]);
    running.transport.isPartitioned = true; // they find each other first
    for (const node of [oldest, frozen]) {
      node.resume();
      node.wake();
      await pass(100);
    }
    let admitted = 0;
    for (let ms = 0; ms < 7000; ms += 50) {
      if (ms === 500) running.transport.isPartitioned = false;
      for (const node of [oldest, frozen]) admitted += admittedBy(node, 'C', 5);
      await pass(50);
    }
    expect(admitted).toBe(0);
    expect([oldest, frozen].map((node) => isAllowed(node, 'fresh'))).toEqual([true, true]);
  });

  test('waits for its peers while it reads the datagrams of the freeze', async () => {
    const { clock, nodes, pass } = await fleet(limit);
    const [first, , frozen] = nodes;
    frozen.freeze();
    admittedBy(first, 'C', 1000);
    await pass(75_000, [first]);
    frozen.resume();
    frozen.wake(8);
    let admitted = 0;
    for (let ms = 0; ms < 4000; ms += 10) {
      admitted += admittedBy(frozen, 'C', 5);
      await clock.advanceAsync(10);
    }
    expect(admitted).toBe(0);
    expect(isAllowed(frozen, 'fresh')).toBe(true);
  });

  test('decides from its own count if all others are gone', async () => {
    const { nodes, pass } = await fleet(limit, { count: 2 });
    const [other, frozen] = nodes;
    frozen.freeze();
    await other.node.close();
    await pass(75_000);
    frozen.resume();
    frozen.wake();
    await pass(900);
    expect(isAllowed(frozen, 'C')).toBe(false);
    await pass(200);
    expect(isAllowed(frozen, 'C')).toBe(true);
  });

  test('goes on without a refusal after a freeze that is shorter than the peer timeout', async () => {
    const { nodes, pass } = await fleet(limit);
    const [first, , frozen] = nodes;
    frozen.freeze();
    await pass(4000, [first]);
    frozen.resume();
    expect(isAllowed(frozen, 'C')).toBe(true);
    frozen.wake();
    expect(isAllowed(frozen, 'C')).toBe(true);
  });

  test('a transport that opens late is no suspension', async () => {
    const clock = new VirtualClock(1_000_000);
    const inner = new MemoryHub({ clock }).transport('late');
    const open = inner.open.bind(inner);
    inner.open = async (onDatagram) => {
      clock.advance(60_000);
      await open(onDatagram);
    };
    expect(isAllowed(await createTestPeer(inner, { clock, limit }), 'C')).toBe(true);
  });
});

describe('catch-up', () => {
  test('waits for what else is awaited, and 5 s at most', async () => {
    const catchUp = new CatchUp();
    let arrive = (): void => {};
    catchUp.begin(
      0,
      new Promise<void>((resolve) => {
        arrive = resolve;
      }),
    );
    catchUp.onState();
    catchUp.onDatagram(4500);
    catchUp.tick(4999, false);
    expect(catchUp.isActive).toBe(true);
    arrive();
    await Promise.resolve();
    expect(catchUp.isActive).toBe(false);
    catchUp.begin(10_000, new Promise(() => {}));
    catchUp.tick(14_999, true);
    expect(catchUp.isActive).toBe(true);
    catchUp.tick(15_000, true);
    expect(catchUp.isActive).toBe(false);
  });
});
