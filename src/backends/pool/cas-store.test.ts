import { describe, expect, test } from 'vitest';
import { runs } from '../../../test/support/runs.ts';
import type { Clock, Millis } from '../../core/clock.ts';
import { ClockOffset } from '../../core/clock-offset.ts';
import { withDeadline } from '../../core/deadline.ts';
import { type Random, seededRandom } from '../../core/random.ts';
import { UsageAuditor } from '../../simulator/pool/fuzz.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { NO_REVISION } from '../etcd/store.ts';
import { type CasServer, casStore, type VersionedDocument } from './cas-store.ts';
import { PoolMember } from './member.ts';

const STALE_MS: Millis = 2000;
const OPTIONS = { memberTimeoutMs: STALE_MS, isStrict: false };
const REQUEST = { id: 'a', seq: 1, using: { size: 0, rank: -1, round: 0 } };

/** A server on virtual time whose clock has a resolution of `tickMs`. */
function createServer(clock: VirtualClock, tickMs: Millis) {
  const documents = new Map<string, VersionedDocument>();
  const server = { documents, tries: 0, puts: 0, clockErrorMs: 0 };
  const serverTime = (): Millis =>
    Math.floor((clock.now() + server.clockErrorMs) / tickMs) * tickMs;
  /** The connection of one process; `trip` delays or loses each request and each reply. */
  const connectionOf = (memberClock: Clock, trip: () => Promise<void>): CasServer => {
    const ahead = new ClockOffset();
    const call = <T>(act: () => T): Promise<T> =>
      withDeadline(memberClock, 500, 'virtual', () => deliver(act));
    const deliver = async <T>(act: () => T): Promise<T> => {
      const sentAt = memberClock.now();
      await trip();
      const from = serverTime();
      const response = act();
      await trip();
      ahead.observe({ from, to: from + tickMs }, sentAt, memberClock.now());
      return response;
    };
    return {
      name: 'virtual',
      clockOffset: ahead,
      get: (pool) => call(() => documents.get(pool)),
      put: (pool, text, revision) =>
        call(() => {
          server.tries++;
          if ((documents.get(pool)?.revision ?? NO_REVISION) !== revision) return false;
          documents.set(pool, { text, revision: `${++server.puts}` });
          return true;
        }),
      measureClock: () => call(() => {}),
      close: async () => {},
    };
  };
  return { server, connectionOf };
}

const sleep = (clock: VirtualClock, ms: Millis): Promise<void> =>
  new Promise((wake) => {
    clock.wakeAt(clock.now() + ms, wake);
  });

interface Setting {
  readonly tickMs: Millis;
  /** Members stop using their part before they are dropped, and may be partitioned from the store. */
  readonly isStrict: boolean;
}

interface Node {
  readonly name: string;
  readonly member: PoolMember;
  readonly skewMs: Millis;
  cutTo: Millis;
  leave(): Promise<void>;
}

/** Members join, crash and leave for 30 s, with delayed and lost messages; returns any overshoot. */
async function live(
  seed: number,
  { tickMs, isStrict }: Setting,
): Promise<{ overshoots: string[]; isWhole: boolean }> {
  const random: Random = seededRandom(seed);
  const between = (min: number, max: number): number => min + random() * (max - min);
  const clock = new VirtualClock(between(1e6, 2e6));
  const { server, connectionOf } = createServer(clock, tickMs);
  const used = new UsageAuditor();
  const nodes: Node[] = [];
  const overshoots: string[] = [];
  // A member that keeps its claim must sync again before it is dropped; a strict member need not.
  const lossRate = isStrict ? 0.02 : 0.003;
  let isCalm = false;
  let created = 0;

  const add = (): void => {
    const skewMs = between(-1, 1) * 3_600_000;
    const memberClock: Clock = {
      now: () => clock.now() + skewMs,
      wakeAt: (then, act) => clock.wakeAt(then - skewMs, act),
    };
    const trip = (): Promise<void> => {
      const isLost = random() < lossRate || clock.now() < node.cutTo;
      if (isLost && !isCalm) return new Promise(() => {});
      return sleep(clock, between(0.1, isCalm || random() < 0.9 ? 3 : 300));
    };
    const store = casStore(connectionOf(memberClock, trip), 500, memberClock, random);
    const name = `m${++created}`;
    const member = new PoolMember({
      id: name,
      staleForMs: isStrict ? STALE_MS : 10_000,
      memberTimeoutMs: STALE_MS,
    });
    const leave = (): Promise<void> => store.leave('p', name).catch(() => {});
    const node: Node = { name, member, skewMs, cutTo: 0, leave };
    nodes.push(node);
    const sync = async (): Promise<void> => {
      if (!nodes.includes(node)) return;
      const request = member.createRequest(memberClock.now());
      const options = { memberTimeoutMs: STALE_MS, isStrict };
      const response = await store.sync('p', request, options).catch(() => undefined);
      if (response && nodes.includes(node))
        member.applyResponse(request.seq, response, memberClock.now());
      clock.wakeAt(clock.now() + between(20, 100), () => void sync());
    };
    void sync();
  };
  const disturb = (): void => {
    const draw = random();
    const victim = nodes[Math.floor(random() * nodes.length)];
    if (draw < 0.02 && nodes.length < 5) add();
    else if (draw < 0.025) server.documents.delete('p');
    else if (draw < 0.04 && nodes.length > 1) {
      nodes.splice(nodes.indexOf(victim), 1);
      if (draw < 0.03) void victim.leave();
    } else if (draw < 0.06 && isStrict) victim.cutTo = clock.now() + between(50, 5000);
  };
  const advance = async (ms: Millis): Promise<void> => {
    for (const until = clock.now() + ms; clock.now() < until; ) {
      await clock.advanceAsync(5);
      const found = used.audit(clock.now(), nodes);
      if (found !== undefined && overshoots.length < 5) overshoots.push(found);
    }
  };
  add();
  for (let n = 0; n < 600; n++) {
    disturb();
    await advance(50);
  }
  isCalm = true;
  await advance(7000);
  return { overshoots, isWhole: used.isFullyUsed };
}

const SEEDS = runs(5);

describe('cas store', () => {
  test.each([
    ['a clock in milliseconds', { tickMs: 1, isStrict: false }],
    ['a clock in whole seconds', { tickMs: 1000, isStrict: false }],
    ['a clock in whole seconds, and partitioned members', { tickMs: 1000, isStrict: true }],
  ])('cas store: parts never add up to more than the limit: %s', async (_, setting) => {
    for (let seed = 1; seed <= SEEDS; seed++) {
      expect({ seed, ...(await live(seed, setting)) }).toEqual({
        seed,
        overshoots: [],
        isWhole: true,
      });
    }
  });

  function alone() {
    const clock = new VirtualClock(1_000_000);
    const { server, connectionOf } = createServer(clock, 1);
    const store = casStore(
      connectionOf(clock, async () => {}),
      500,
      clock,
      seededRandom(1),
    );
    return { clock, server, store };
  }

  /** `count` members that sync at equal times; `syncFor` returns the number of members in the last response. */
  function many(count: number) {
    const clock = new VirtualClock(1_000_000);
    const { server, connectionOf } = createServer(clock, 1);
    const random = seededRandom(1);
    const members = Array.from({ length: count }, (_, n) => ({
      member: new PoolMember({ id: `m${n}`, staleForMs: 10_000, memberTimeoutMs: 10_000 }),
      store: casStore(
        connectionOf(clock, () => sleep(clock, 1)),
        500,
        clock,
        random,
      ),
    }));
    let active = 0;
    const syncOne = async ({ member, store }: (typeof members)[number]): Promise<void> => {
      const request = member.createRequest(clock.now());
      const response = await store.sync('p', request, OPTIONS).catch(() => undefined);
      if (!response) return;
      member.applyResponse(request.seq, response, clock.now());
      active = response.active;
    };
    const syncFor = async (ms: Millis): Promise<number> => {
      for (const until = clock.now() + ms; clock.now() < until; ) {
        for (const member of members) void syncOne(member);
        await clock.advanceAsync(110); // 100 ms with the most jitter
      }
      return active;
    };
    return { server, members, syncFor };
  }

  test('cas store: writes less often per member in a larger pool', async () => {
    for (const [count, most] of [
      [5, 60],
      [50, 80],
    ]) {
      const { server, syncFor } = many(count);
      expect(await syncFor(8000)).toBe(count);
      server.puts = 0;
      await syncFor(1000);
      expect(server.puts).toBeGreaterThan(0);
      expect(server.puts).toBeLessThan(most);
    }
  });

  // Syncs of 50 members are not written for half of `memberTimeout`. This must not look like an outage.
  test('cas store: drops all crashed members of a large pool but one', async () => {
    const { clock, server, store } = alone();
    const using = { size: 50, rank: 0, round: 1 };
    const [now, heardAt] = [clock.now(), clock.now() + STALE_MS / 2];
    const ids = ['a', ...Array.from({ length: 49 }, (_, n) => `dead${n}`)];
    const members = ids.map((id, rank) => ({ id, seq: 0, claim: { ...using, rank }, heardAt }));
    const state = { members, round: 1, quietTo: 0, syncedAt: now, freedAt: 0, turnFreedAt: 0 };
    server.documents.set('p', { text: JSON.stringify(state), revision: '1' });
    server.puts = 1;
    const actives: unknown[] = [];
    for (let seq = 1; seq <= 30; seq++) {
      clock.advance(110);
      actives.push((await store.sync('p', { id: 'a', seq, using }, OPTIONS))?.active);
    }
    expect(actives.slice(0, 27)).toEqual(Array(27).fill(50)); // until then they may have synced
    expect(actives.at(-1)).toBe(1);
  });

  test('cas store: admits many members that join at once, with random backoff', async () => {
    const { server, syncFor } = many(50);
    expect(await syncFor(600)).toBe(50);
    expect(server.tries).toBeLessThan(700);
  });

  test('cas store: leaves a document of another application as it is', async () => {
    const { server, store } = alone();
    for (const text of ['{', '[]', '{"members":[]}', 'null']) {
      server.documents.set('p', { text, revision: '9' });
      await expect(store.sync('p', REQUEST, OPTIONS)).rejects.toThrow('holds something else');
      expect(server.documents.get('p')).toEqual({ text, revision: '9' });
    }
  });

  test('cas store: starts again on the revision of a deleted document', async () => {
    const { server, store } = alone();
    server.documents.set('p', { revision: '9' });
    expect(await store.sync('p', REQUEST, OPTIONS)).toMatchObject({ active: 1 });
  });

  test('cas store: begins quiet after the server clock was set back', async () => {
    const { clock, server, store } = alone();
    let response = await store.sync('p', REQUEST, OPTIONS);
    let seq = 1;
    for (; seq <= 8; seq++) {
      clock.advance(500);
      response = await store.sync('p', { ...REQUEST, seq }, OPTIONS);
    }
    expect(response?.claim.size).toBe(1);
    server.clockErrorMs = -3_600_000;
    const later = await store.sync('p', { ...REQUEST, seq }, OPTIONS);
    expect(later?.claim.size).toBe(0);
    expect(later?.now).toBeCloseTo(clock.now() - 3_600_000, -1);
  });

  test('cas store: fails at the deadline if every swap is lost', async () => {
    const clock = new VirtualClock(1_000_000);
    const { connectionOf } = createServer(clock, 1);
    let puts = 0;
    const busy: CasServer = {
      ...connectionOf(clock, () => sleep(clock, 2)),
      put: async () => {
        puts++;
        return false;
      },
    };
    const failed = expect(
      casStore(busy, 500, clock, seededRandom(1)).sync('p', REQUEST, OPTIONS),
    ).rejects.toThrow('no reply within 500 ms');
    await clock.advanceAsync(2000);
    await failed;
    expect(puts).toBeGreaterThan(5);
    expect(puts).toBeLessThan(20); // the backoff grows
  });
});
