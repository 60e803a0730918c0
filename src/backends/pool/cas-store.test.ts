import { describe, expect, test } from 'vitest';
import type { Clock, Millis } from '../../core/clock.ts';
import { ClockOffset } from '../../core/clock-offset.ts';
import { withDeadline } from '../../core/deadline.ts';
import { type Random, seededRandom } from '../../core/random.ts';
import { UsageAuditor } from '../../simulator/pool/fuzz.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { type CasServer, casStore, NO_REVISION, type VersionedDocument } from './cas-store.ts';
import { PoolMember } from './member.ts';

const STALE_MS: Millis = 2000;
const OPTIONS = { memberTimeoutMs: STALE_MS, isStrict: false };
const REQUEST = { id: 'a', seq: 1, using: { size: 0, rank: -1, round: 0 } };

/** A server on virtual time whose clock tells no more than every so many milliseconds. */
function server(clock: VirtualClock, tickMs: Millis) {
  const kept = new Map<string, VersionedDocument>();
  const at = { kept, tries: 0, puts: 0, setByMs: 0 };
  const told = (): Millis => Math.floor((clock.now() + at.setByMs) / tickMs) * tickMs;
  /** Its door for one process; what passes takes some time either way, as chance has it. */
  const door = (own: Clock, way: () => Promise<void>): CasServer => {
    const ahead = new ClockOffset();
    const ask = <T>(act: () => T): Promise<T> => withDeadline(own, 500, 'virtual', () => pass(act));
    const pass = async <T>(act: () => T): Promise<T> => {
      const sentAt = own.now();
      await way();
      const from = told();
      const answer = act();
      await way();
      ahead.observe({ from, to: from + tickMs }, sentAt, own.now());
      return answer;
    };
    return {
      name: 'virtual',
      clockOffset: ahead,
      get: (pool) => ask(() => kept.get(pool)),
      put: (pool, text, revision) =>
        ask(() => {
          at.tries++;
          if ((kept.get(pool)?.revision ?? NO_REVISION) !== revision) return false;
          kept.set(pool, { text, revision: `${++at.puts}` });
          return true;
        }),
      measureClock: () => ask(() => {}),
      close: async () => {},
    };
  };
  return { at, door };
}

const sleep = (clock: VirtualClock, ms: Millis): Promise<void> =>
  new Promise((wake) => {
    clock.wakeAt(clock.now() + ms, wake);
  });

interface Setting {
  readonly tickMs: Millis;
  /** Members stop using their part before they are taken for gone, and may be cut off. */
  readonly isStrict: boolean;
}

interface Node {
  readonly name: string;
  readonly member: PoolMember;
  readonly skewMs: Millis;
  cutTo: Millis;
  leave(): Promise<void>;
}

/** Members come, crash and leave for half a minute, over ways that are late and lost; gives what was too much. */
async function live(
  seed: number,
  { tickMs, isStrict }: Setting,
): Promise<{ excess: string[]; isWhole: boolean }> {
  const random: Random = seededRandom(seed);
  const between = (min: number, max: number): number => min + random() * (max - min);
  const clock = new VirtualClock(between(1e6, 2e6));
  const { at, door } = server(clock, tickMs);
  const used = new UsageAuditor();
  const nodes: Node[] = [];
  const excess: string[] = [];
  // Who holds on while it is silent must be heard again before it is missed; who is strict need not.
  const lossRate = isStrict ? 0.02 : 0.003;
  let isPeace = false;
  let born = 0;

  const add = (): void => {
    const skewMs = between(-1, 1) * 3_600_000;
    const own: Clock = {
      now: () => clock.now() + skewMs,
      wakeAt: (then, act) => clock.wakeAt(then - skewMs, act),
    };
    const way = (): Promise<void> => {
      const isLost = random() < lossRate || clock.now() < node.cutTo;
      if (isLost && !isPeace) return new Promise(() => {});
      return sleep(clock, between(0.1, isPeace || random() < 0.9 ? 3 : 300));
    };
    const store = casStore(door(own, way), 500, own, random);
    const name = `m${++born}`;
    const member = new PoolMember({ id: name, staleForMs: isStrict ? STALE_MS : 10_000 });
    const leave = (): Promise<void> => store.leave('p', name).catch(() => {});
    const node: Node = { name, member, skewMs, cutTo: 0, leave };
    nodes.push(node);
    const sync = async (): Promise<void> => {
      if (!nodes.includes(node)) return;
      const request = member.createRequest(own.now());
      const options = { memberTimeoutMs: STALE_MS, isStrict };
      const answer = await store.sync('p', request, options).catch(() => undefined);
      if (answer && nodes.includes(node)) member.applyResponse(request.seq, answer, own.now());
      clock.wakeAt(clock.now() + between(20, 100), () => void sync());
    };
    void sync();
  };
  const happen = (): void => {
    const chance = random();
    const victim = nodes[Math.floor(random() * nodes.length)];
    if (chance < 0.02 && nodes.length < 5) add();
    else if (chance < 0.025) at.kept.delete('p');
    else if (chance < 0.04 && nodes.length > 1) {
      nodes.splice(nodes.indexOf(victim), 1);
      if (chance < 0.03) void victim.leave();
    } else if (chance < 0.06 && isStrict) victim.cutTo = clock.now() + between(50, 5000);
  };
  const pass = async (ms: Millis): Promise<void> => {
    for (const until = clock.now() + ms; clock.now() < until; ) {
      await clock.advanceAsync(5);
      const found = used.audit(clock.now(), nodes);
      if (found !== undefined && excess.length < 5) excess.push(found);
    }
  };
  add();
  for (let n = 0; n < 600; n++) {
    happen();
    await pass(50);
  }
  isPeace = true;
  await pass(7000);
  return { excess, isWhole: used.isFullyUsed };
}

const SEEDS = Number(process.env.SEEDS ?? 10);

describe('cas store', () => {
  test.each([
    ['to the millisecond', { tickMs: 1, isStrict: false }],
    ['in whole seconds', { tickMs: 1000, isStrict: false }],
    ['in whole seconds, and some are cut off', { tickMs: 1000, isStrict: true }],
  ])('never adds up to more than the limit, if time is told %s', async (_, setting) => {
    for (let seed = 1; seed <= SEEDS; seed++) {
      expect({ seed, ...(await live(seed, setting)) }).toEqual({ seed, excess: [], isWhole: true });
    }
  });

  function alone() {
    const clock = new VirtualClock(1_000_000);
    const { at, door } = server(clock, 1);
    const store = casStore(
      door(clock, async () => {}),
      500,
      clock,
      seededRandom(1),
    );
    return { clock, at, store };
  }

  /** So many members that beat in step; what `beat` gives is how many the last of them knows of. */
  function many(count: number) {
    const clock = new VirtualClock(1_000_000);
    const { at, door } = server(clock, 1);
    const random = seededRandom(1);
    const members = Array.from({ length: count }, (_, n) => ({
      member: new PoolMember({ id: `m${n}`, staleForMs: 10_000 }),
      store: casStore(
        door(clock, () => sleep(clock, 1)),
        500,
        clock,
        random,
      ),
    }));
    let active = 0;
    const syncOne = async ({ member, store }: (typeof members)[number]): Promise<void> => {
      const request = member.createRequest(clock.now());
      const answer = await store.sync('p', request, OPTIONS).catch(() => undefined);
      if (!answer) return;
      member.applyResponse(request.seq, answer, clock.now());
      active = answer.active;
    };
    const beat = async (ms: Millis): Promise<number> => {
      for (const until = clock.now() + ms; clock.now() < until; ) {
        for (const member of members) void syncOne(member);
        await clock.advanceAsync(110); // the longest that jitter makes of 100
      }
      return active;
    };
    return { at, members, beat };
  }

  test('cas store: writes less often per member in a larger pool', async () => {
    for (const [count, most] of [
      [5, 60],
      [50, 80],
    ]) {
      const { at, beat } = many(count);
      expect(await beat(8000)).toBe(count);
      at.puts = 0;
      await beat(1000);
      expect(at.puts).toBeGreaterThan(0);
      expect(at.puts).toBeLessThan(most);
    }
  });

  // Fifty need not be written down again for half of `stale`. If none of them was, it would look like an outage, in which nobody dies.
  test('cas store: drops all crashed members of a large pool but one', async () => {
    const { clock, at, store } = alone();
    const using = { size: 50, rank: 0, round: 1 };
    const [now, heardAt] = [clock.now(), clock.now() + STALE_MS / 2];
    const ids = ['a', ...Array.from({ length: 49 }, (_, n) => `dead${n}`)];
    const members = ids.map((id, rank) => ({ id, seq: 0, claim: { ...using, rank }, heardAt }));
    const state = { members, round: 1, quietTo: 0, syncedAt: now, freedAt: 0, turnFreedAt: 0 };
    at.kept.set('p', { text: JSON.stringify(state), revision: '1' });
    at.puts = 1;
    const actives: unknown[] = [];
    for (let seq = 1; seq <= 30; seq++) {
      clock.advance(110);
      actives.push((await store.sync('p', { id: 'a', seq, using }, OPTIONS))?.active);
    }
    expect(actives.slice(0, 27)).toEqual(Array(27).fill(50)); // heard until then, for all that is known
    expect(actives.at(-1)).toBe(1);
  });

  test('cas store: admits many members that join at once, with random backoff', async () => {
    const { at, beat } = many(50);
    expect(await beat(600)).toBe(50);
    expect(at.tries).toBeLessThan(700);
  });

  test('cas store: leaves a document of another application as it is', async () => {
    const { at, store } = alone();
    for (const text of ['{', '[]', '{"members":[]}', 'null']) {
      at.kept.set('p', { text, revision: '9' });
      await expect(store.sync('p', REQUEST, OPTIONS)).rejects.toThrow('holds something else');
      expect(at.kept.get('p')).toEqual({ text, revision: '9' });
    }
  });

  test('cas store: starts again on the revision of a deleted document', async () => {
    const { at, store } = alone();
    at.kept.set('p', { revision: '9' });
    expect(await store.sync('p', REQUEST, OPTIONS)).toMatchObject({ active: 1 });
  });

  test('cas store: begins quiet after the server clock was set back', async () => {
    const { clock, at, store } = alone();
    let told = await store.sync('p', REQUEST, OPTIONS);
    let seq = 1;
    for (; seq <= 8; seq++) {
      clock.advance(500);
      told = await store.sync('p', { ...REQUEST, seq }, OPTIONS);
    }
    expect(told?.claim.size).toBe(1);
    at.setByMs = -3_600_000;
    const later = await store.sync('p', { ...REQUEST, seq }, OPTIONS);
    expect(later?.claim.size).toBe(0);
    expect(later?.now).toBeCloseTo(clock.now() - 3_600_000, -1);
  });

  test('cas store: fails at the deadline if every swap is lost', async () => {
    const clock = new VirtualClock(1_000_000);
    const { door } = server(clock, 1);
    let puts = 0;
    const busy: CasServer = {
      ...door(clock, () => sleep(clock, 2)),
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
    expect(puts).toBeLessThan(20); // after a longer while each time
  });
});
