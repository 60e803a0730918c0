/**
 * Contract of every pool store.
 *
 * `agreement.test.ts` tests the agreement; this suite tests that a store applies it. It uses the store
 * as processes do: members that sync periodically, each with a clock that is wrong by hours.
 * Every wait is for an effect of the store, and has a bound.
 */

import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  type AgreementOptions,
  NO_CLAIM,
  type SyncResponse,
} from '../../src/backends/pool/agreement.ts';
import { PoolMember } from '../../src/backends/pool/member.ts';
import { Pool } from '../../src/backends/pool/pool.ts';
import type { PoolStore } from '../../src/backends/pool/store.ts';
import type { Clock, Millis } from '../../src/core/clock.ts';
import type { Service } from './services.ts';
import { StallableClock } from './stallable-clock.ts';

/** A server or memory: stores created here have the same pools. */
export interface PoolStoreHarness {
  /** The real time, and advancing it. */
  readonly clock: Clock;
  advance(ms: Millis): Promise<void>;
  /** The store of a separate process, with that clock. */
  store(clock: Clock): PoolStore;
  /** The server, if there is one. */
  readonly server?: Service;
  stop(): Promise<void>;
}

export interface PoolStoreTraits {
  /** A server that can be killed. */
  readonly isServer: boolean;
}

const STALE_MS: Millis = 1000;
const HOUR_MS: Millis = 3_600_000;
const SYNC_EVERY_MS: Millis = 25;
const OPTIONS: AgreementOptions = { memberTimeoutMs: STALE_MS, isStrict: false };

/** Bounds a hang: the quiet period, the agreement and the next second take 3 s, and again after each stall of a second. */
const AGREE_TIMEOUT_MS = 20_000;
/** Time for clients to reconnect. */
const RECONNECT_TIMEOUT_MS = 15_000;

/** The member of one process, and its store. */
class PoolProcess {
  readonly id: string;
  readonly member: PoolMember;
  readonly store: PoolStore;
  readonly #clock: Clock;
  readonly #pool: string;
  readonly #clockErrorMs: Millis;
  lastReply: SyncResponse | undefined;
  /** When the last sync was sent. */
  lastSentAt: Millis = 0;
  /** Bounds of the store's clock offset by the last response. */
  clockOffset: [min: Millis, max: Millis] = [-Infinity, Infinity];
  failures = 0;

  constructor(harness: PoolStoreHarness, pool: string, id: string, wrongByMs: Millis) {
    this.#clock = { now: () => harness.clock.now() + wrongByMs };
    this.store = harness.store(this.#clock);
    this.id = id;
    this.member = new PoolMember({ id, staleForMs: HOUR_MS, memberTimeoutMs: HOUR_MS });
    this.#pool = pool;
    this.#clockErrorMs = wrongByMs;
  }

  async sync(): Promise<void> {
    const sentAt = this.#clock.now();
    this.lastSentAt = sentAt - this.#clockErrorMs;
    const request = this.member.createRequest(sentAt);
    this.lastReply = undefined;
    try {
      this.lastReply = await this.store.sync(this.#pool, request, OPTIONS);
      const now = this.#clock.now();
      if (!this.lastReply) return;
      this.member.applyResponse(request.seq, this.lastReply, now);
      const { now: storeTime, clockUncertaintyMs = 0 } = this.lastReply;
      this.clockOffset = [
        storeTime - now + this.#clockErrorMs,
        storeTime + clockUncertaintyMs - sentAt + this.#clockErrorMs,
      ];
    } catch {
      this.failures++;
    }
  }

  leave(): Promise<void> {
    return this.store.leave(this.#pool, this.id);
  }

  get claim() {
    return this.member.claim(this.#clock.now());
  }
}

export function poolStoreContract(
  name: string,
  { isServer }: PoolStoreTraits,
  start: () => Promise<PoolStoreHarness>,
): void {
  describe(`pool store contract: ${name}`, () => {
    let harness: PoolStoreHarness;
    let created = 0;
    let pools = 0;
    let pool = '';
    const all: PoolProcess[] = [];
    /** The processes that sync. */
    let processes: PoolProcess[] = [];
    beforeAll(async () => {
      harness = await start();
    });
    afterAll(() => harness?.stop());
    beforeEach(() => {
      pool = `pool ${++pools} {of} a:contract`;
    });
    afterEach(async () => {
      processes = [];
      for (const { store } of all.splice(0)) await store.close();
    });

    /** How late a loaded machine may be; without a server the time is virtual. */
    const lateMs = isServer ? 10_000 : 500;
    const add = (id: string, into = pool): PoolProcess => {
      const wrongByMs = (created++ % 2 === 0 ? 1 : -1) * created * HOUR_MS;
      const added = new PoolProcess(harness, into, id, wrongByMs);
      processes.push(added);
      all.push(added);
      return added;
    };
    /** Adds members that join one after the other. */
    const addInOrder = async (...ids: string[]): Promise<PoolProcess[]> => {
      const added = ids.map((id) => add(id));
      for (const process of added) await process.sync();
      return added;
    };
    /** All processes sync until the condition holds; returns how long that took. */
    const until = async (holds: () => boolean, withinMs: Millis): Promise<Millis> => {
      const startedAt = harness.clock.now();
      for (;;) {
        await Promise.all(processes.map((process) => process.sync()));
        const passedMs = harness.clock.now() - startedAt;
        if (holds()) return passedMs;
        if (passedMs > withinMs) throw new Error(`does not hold after ${withinMs} ms: ${holds}`);
        await harness.advance(SYNC_EVERY_MS);
      }
    };
    /** Every process that syncs has that size and a unique rank. */
    const haveSize = (size: number) => () =>
      processes.every(({ claim }) => claim.size === size && claim.rank >= 0) &&
      new Set(processes.map(({ claim }) => claim.rank)).size === processes.length;
    const agree = (): Promise<Millis> => until(haveSize(processes.length), AGREE_TIMEOUT_MS);
    const ranks = (): number[] => processes.map(({ claim }) => claim.rank);

    test('pool store: a single member has all after the quiet period', async () => {
      const one = add('one');
      await one.sync();
      const { lastSentAt } = one;
      expect(one.lastReply).toMatchObject({ claim: NO_CLAIM, active: 1, isAgreed: false });
      await agree();
      expect(harness.clock.now() - lastSentAt).toBeGreaterThanOrEqual(STALE_MS - SYNC_EVERY_MS);
      expect(one.lastReply).toMatchObject({ active: 1, isAgreed: true });
    });

    test('pool store: members agree, ranked in the order they joined', async () => {
      const [one, two] = await addInOrder('zoe', 'adam');
      await agree();
      expect(ranks()).toEqual([0, 1]);
      expect(one.claim.round).toBe(two.claim.round);
    });

    test('pool store: a released part is assigned from a later second on', async () => {
      const [gone, ...others] = await addInOrder('one', 'two', 'three');
      await agree();
      processes = others;
      await gone.leave();
      await others[0].sync();
      expect(others[0].lastReply?.active).toBe(2);
      const leftBy = others[0].lastReply?.now ?? 0;
      await agree();
      expect(ranks()).toEqual([0, 1]);
      const { effectiveAt } = others[0].lastReply as SyncResponse;
      expect(effectiveAt % 1000).toBe(0);
      expect(effectiveAt).toBeGreaterThan(leftBy - STALE_MS);
    });

    test('pool store: leaving without joining is not an error', async () => {
      const absent = add('absent');
      await absent.leave();
      processes = [];
      const one = add('one');
      await one.sync();
      await absent.leave();
      await one.sync();
      expect(one.lastReply?.active).toBe(1);
    });

    test('pool store: drops a silent member in time, which may join again', async () => {
      const [one, silent] = await addInOrder('one', 'silent');
      await agree();
      processes = [one];
      await until(() => one.lastReply?.active === 1, STALE_MS + lateMs);
      expect(harness.clock.now() - silent.lastSentAt).toBeGreaterThan(STALE_MS - SYNC_EVERY_MS);
      await agree();
      processes = [one, silent];
      await agree();
      expect(ranks()).toEqual([0, 1]);
    });

    test('pool store: ignores a sync that arrives after a later one', async () => {
      const { store } = add('a');
      const sync = (seq: number, using = NO_CLAIM) =>
        store.sync(pool, { id: 'a', seq, using }, OPTIONS);
      expect(await sync(5)).toBeDefined();
      const wrong = { size: 5, rank: -1, round: 0 };
      expect(await sync(4, wrong)).toBeUndefined();
      expect(await sync(5, wrong)).toBeUndefined();
      expect(await store.members(pool)).toMatchObject([{ id: 'a', size: 0, rank: -1 }]);
      expect(await sync(6, wrong)).toMatchObject({ claim: { size: 5 } });
    });

    test('pool store: keeps pools of any name apart', async () => {
      const names = [pool, `${pool}.`, `${pool}:other`, 'ápart/*>', ` ${pool}`];
      for (const name of names) add('a', name);
      await Promise.all(processes.map((process) => process.sync()));
      expect(processes.map(({ lastReply }) => lastReply?.active)).toEqual([1, 1, 1, 1, 1]);
      await until(() => processes.every(({ claim }) => claim.size === 1), AGREE_TIMEOUT_MS);
      await processes[1].leave();
      await processes[0].sync();
      expect(processes[0].lastReply).toMatchObject({ active: 1, claim: { size: 1, rank: 0 } });
    });

    test('pool store: keeps a checkpoint per pool', async () => {
      const [{ store }, other] = [add('one'), add('other', `${pool}.`)];
      expect(await store.loadCheckpoint(pool)).toBeUndefined();
      await store.saveCheckpoint(pool, '"ä\u0000\n', HOUR_MS);
      await store.saveCheckpoint(pool, 'second', HOUR_MS);
      await other.store.saveCheckpoint(`${pool}.`, 'other', HOUR_MS);
      expect(await add('later').store.loadCheckpoint(pool)).toBe('second');
      processes = [];
      expect(await store.members(pool)).toEqual([]);
    });

    test('pool store: lists the members', async () => {
      const { store } = add('reader');
      processes = [];
      expect(await store.members(pool)).toEqual([]);
      await addInOrder('zoë, the first', 'two');
      await agree();
      const members = await store.members(pool);
      expect(members.map(({ id, size, rank }) => [id, size, rank])).toEqual([
        ['zoë, the first', 2, 0],
        ['two', 2, 1],
      ]);
      expect(members.every(({ ageMs }) => ageMs >= 0 && ageMs < STALE_MS + lateMs)).toBe(true);
      for (const process of processes) await process.leave();
      expect(await store.members(pool)).toEqual([]);
    });

    test('pool store: all members see the same time despite wrong clocks', async () => {
      for (const id of ['a', 'b', 'c']) add(id);
      await agree();
      // The bounds of all members become narrow and overlap.
      const isNarrow = ({ clockOffset: [from, to] }: PoolProcess): boolean => to - from < 100;
      await until(() => processes.every(isNarrow), AGREE_TIMEOUT_MS);
      const bounds = processes.map(({ clockOffset }) => clockOffset);
      const min = Math.max(...bounds.map(([from]) => from));
      const max = Math.min(...bounds.map(([, to]) => to));
      expect(min).toBeLessThanOrEqual(max);
    });

    test('pool store: members with one id have parts of their own, also after a suspension', async () => {
      const options = { memberTimeoutMs: STALE_MS, staleForMs: 10 * STALE_MS, syncMs: 50 };
      const members = [0.1, 0.2].map((nonce) => {
        const clock = new StallableClock(harness.clock);
        const store = harness.store(clock);
        const setting = { ...options, name: pool, id: 'same', onUnavailable: 'deny' } as const;
        const member = new Pool(store, setting, clock, () => nonce);
        member.open();
        return { clock, store, member, size: () => member.claim(clock.now()).size };
      });
      const [stalled, other] = members;
      const sizes = (): number[] => members.map(({ size }) => size());
      const reached = async (...expected: number[]): Promise<void> => {
        const deadlineAt = harness.clock.now() + AGREE_TIMEOUT_MS;
        while (`${sizes()}` !== `${expected}`) {
          if (harness.clock.now() > deadlineAt) throw new Error(`${sizes()}, not ${expected}`);
          const parts = sizes().map((size) => (size === 0 ? 0 : 1 / size));
          expect(parts[0] + parts[1]).toBeLessThanOrEqual(1);
          await harness.advance(SYNC_EVERY_MS);
        }
      };
      await reached(2, 2);
      stalled.clock.stall();
      for (let ms = 0; other.size() !== 1 && ms < AGREE_TIMEOUT_MS; ms += SYNC_EVERY_MS)
        await harness.advance(SYNC_EVERY_MS);
      stalled.clock.resume();
      expect(sizes()).toEqual([0, 1]);
      stalled.clock.fireOverdue();
      await reached(2, 2);
      expect((await other.member.members()).map(({ id }) => id)).toEqual(['same', 'same']);
      for (const { member, store } of members) {
        await Promise.all([member.close(), harness.advance(SYNC_EVERY_MS)]);
        await store.close();
      }
    });

    if (!isServer) return;

    test('pool store: fails while it is down, and no member loses its part', async () => {
      const [one, two] = await addInOrder('a', 'b');
      await agree();
      await harness.server?.kill();
      const failed = one.failures;
      const at = harness.clock.now();
      await one.sync();
      expect(one.failures).toBe(failed + 1);
      expect(harness.clock.now() - at).toBeLessThan(lateMs);
      await harness.advance(STALE_MS); // no member is dropped during an outage
      await harness.server?.restart();
      await until(
        () => one.lastReply?.active === 2 && two.lastReply?.active === 2,
        RECONNECT_TIMEOUT_MS,
      );
      const failures = [one.failures, two.failures];
      await until(() => true, 1000);
      expect([one.failures, two.failures]).toEqual(failures);
      expect(processes.map(({ claim }) => claim.size)).toEqual([2, 2]);
      await agree();
    });

    test('pool store: begins quiet after losing its state', async () => {
      const [one, two] = await addInOrder('a', 'b');
      await agree();
      await harness.server?.kill();
      harness.server?.wipe();
      await harness.server?.restart();
      processes = [one];
      await until(() => one.lastReply?.active === 1, RECONNECT_TIMEOUT_MS);
      const startedAt = one.lastReply?.now ?? 0;
      const three = add('c');
      // `b` has not synced yet: until it must have, no member gets more.
      let most = 0;
      const isQuietOver = () => {
        const { now = startedAt } = three.lastReply ?? {};
        if (now - startedAt > STALE_MS * 0.7) return true;
        most = Math.max(most, three.claim.size);
        return false;
      };
      await until(isQuietOver, AGREE_TIMEOUT_MS);
      expect(most).toBe(0);
      expect(one.claim.size).toBe(2);
      processes = [one, two, three];
      await agree();
    });
  });
}
