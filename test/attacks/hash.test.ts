import { afterEach, describe, expect, test, vi } from 'vitest';
import { attack } from '../../bench/soak/attacks/hash.mjs';
import { peersModule } from '../../src/backends/peers/daemon.ts';
import { MemoryHub } from '../../src/backends/peers/memory-transport.ts';
import { createHasher, type Hasher } from '../../src/core/hash.ts';
import { parseConfigText } from '../../src/daemon/config/file.ts';
import { toBinaryKey } from '../../src/daemon/keys/binary-key.ts';
import { LimiterRegistry } from '../../src/daemon/router/limiter-registry.ts';
import type { CheckResult } from '../../src/daemon/router/request.ts';
import { Router } from '../../src/daemon/router/router.ts';
import { limiter } from '../../src/index.ts';
import { VirtualClock } from '../../src/testing/index.ts';
import { createTestPeer } from '../support/fleet.ts';

const CONFIG = `
allow: [admin]
limits:
  few: { bucket: { rate: 1/h, burst: 1 } }
  calls: { concurrency: 5, match: 'call:*' }
`;

/** A router whose keys are hashed by `hasher`. */
function routerOf(hasher: Hasher): Router {
  const loaded = parseConfigText('test.yaml', CONFIG);
  if (!('config' in loaded)) throw new Error(loaded.problems.join(' '));
  const registry = new LimiterRegistry({ hasher, backendFor: () => undefined });
  registry.apply(loaded.config.limits);
  return new Router(loaded.config, registry, hasher);
}

afterEach(() => {
  vi.restoreAllMocks();
});

describe('attack: chosen keys', () => {
  test("library: keys made to collide do not take a victim's first token", async () => {
    const counts = await attack({ rounds: 60, seed: 1, limiter });
    expect(counts.keys).toBeGreaterThan(10_000);
    expect(counts.refusedVictims).toBe(0);
  });

  test('router: a key with the hash of an allow-listed key keeps its own route', () => {
    const sameHash: Hasher = { low: 1, high: 2, hasColons: true, hash() {}, hashBytes() {} };
    const router = routerOf(sameHash);
    const isAllowed = (key: string): unknown =>
      router.isAllowed(Buffer.from(`<${key}>`), 1, 1 + key.length);
    expect([isAllowed('admin'), isAllowed('admin')]).toEqual([true, true]);
    expect([isAllowed('mallory'), isAllowed('mallory')]).toEqual([true, false]);
  });

  test('router: the same for requests that name their key', () => {
    const sameHash: Hasher = { low: 1, high: 2, hasColons: true, hash() {}, hashBytes() {} };
    const router = routerOf(sameHash);
    const reasonOf = (key: string): string | undefined =>
      (router.check({ key, cost: 1 }) as CheckResult).staticVerdict?.reason;
    expect([reasonOf('admin'), reasonOf('admin')]).toEqual(['allow-list', 'allow-list']);
    expect([reasonOf('call:1'), reasonOf('admin')]).toEqual([undefined, 'allow-list']);
    expect([reasonOf('admix'), reasonOf('adm')]).toEqual([undefined, undefined]);
  });

  test('router: a key that is too long for the route cache gets its route each time', () => {
    const router = routerOf(createHasher([1, 2, 3, 4], 'latin1'));
    const long = `call:${'x'.repeat(500)}`;
    const limitsOf = (key: string) =>
      router.route({ key, cost: 1 })?.route.applied.map(({ name }) => name);
    expect([limitsOf(long), limitsOf(long)]).toEqual([['calls'], ['calls']]);
    expect(limitsOf(long.slice(5))).toEqual(['few']);
  });
});

describe('attack: predicted randomness', () => {
  test('permits: a client that knows Math.random cannot name the permits of other clients', () => {
    vi.spyOn(Math, 'random').mockReturnValue(0.5);
    const router = routerOf(createHasher([1, 2, 3, 4], 'latin1'));
    const permitOf = (key: string): string | undefined =>
      (router.check({ key, cost: 1, wantsPermit: true }) as CheckResult).permit;
    const own = permitOf('call:mallory') ?? '';
    const other = permitOf('call:alice') ?? '';
    expect(own).toMatch(/^1-[0-9a-z]+$/);
    expect(other).toMatch(/^2-[0-9a-z]+$/);
    expect(router.permits.settle(own.replace(/^1/, '2'), {})).toBe(false);
    expect(router.permits.settle(other, {})).toBe(true);
  });
});

describe('attack: fleets', () => {
  test('a key that is not ASCII is one key for processes and daemons of a fleet', async () => {
    const clock = new VirtualClock(1_000_000);
    const hub = new MemoryHub({ clock, isLoopback: false });
    const key = 'a key for the tests';
    const limit = { bucket: { rate: 1, burst: 100 } };
    const { node } = await createTestPeer(hub.transport('1'), { clock, key, limit });
    const section = peersModule.readSection?.({ udp: '127.0.0.1:7613', key }, 'peers');
    const daemon = createHasher(section?.hashSeed ?? [], 'latin1');
    for (const text of ['café', 'ключ', '🔑', 'alice']) {
      node.hasher.hash(text);
      daemon.hash(toBinaryKey(text));
      expect([daemon.low, daemon.high]).toEqual([node.hasher.low, node.hasher.high]);
    }
  });

  test('datagrams show neither the hash of a key nor that two reports are of one key', async () => {
    const clock = new VirtualClock(1_000_000);
    const hub = new MemoryHub({ clock, isLoopback: false });
    const key = 'a key for the tests';
    const limit = { bucket: { rate: 1, burst: 100 } };
    const [one] = [
      await createTestPeer(hub.transport('1'), { clock, key, limit }),
      await createTestPeer(hub.transport('2'), { clock, key, limit }),
    ];
    await clock.advanceAsync(3000);
    one.node.hasher.hash('alice');
    const { low, high } = one.node.hasher;
    const from = one.transport.sentDatagrams.length;
    for (let n = 0; n < 20; n++) {
      one.backend.check('alice', 1);
      await clock.advanceAsync(100);
    }
    const sent = one.transport.sentDatagrams.slice(from).map(({ bytes }) => Buffer.from(bytes));
    expect(sent.length).toBeGreaterThan(20);
    const hash = Buffer.alloc(8);
    hash.writeInt32BE(low, 0);
    hash.writeInt32BE(high, 4);
    const seen = new Set<string>();
    for (const datagram of sent) {
      for (const half of [hash.subarray(0, 4), hash.subarray(4)]) {
        expect(datagram.includes(half)).toBe(false);
        expect(datagram.includes(Buffer.from(half).reverse())).toBe(false);
      }
      for (let at = 0; at + 6 <= datagram.length; at++) {
        const part = datagram.toString('latin1', at, at + 6);
        expect(seen.has(part)).toBe(false);
        seen.add(part);
      }
    }
  });
});
