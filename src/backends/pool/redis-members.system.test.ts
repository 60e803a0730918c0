import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { nodeRedis, type RedisConnection } from '../../../test/support/redis-clients.ts';
import { redisCli, redisServer, type Service, startRedis } from '../../../test/support/services.ts';
import { systemClock } from '../../core/clock.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limiter } from '../../limiter/limiter-interface.ts';
import { type PoolMembership, type PoolOptions, pool } from './options.ts';
import { redisStore } from './redis-store.ts';
import type { PoolStore } from './store.ts';

const LIMIT = 100;
const WITHIN_MS = 10_000;
/** No member takes tokens this close to the end of a second, because the second would be ambiguous. */
const EDGE_MS = 20;

const later = (ms: number): Promise<void> => new Promise((done) => setTimeout(done, ms));

/** Offset of Redis's clock: the midpoint of the shortest of several round trips. */
function aheadOf(port: number): number {
  const trips = Array.from({ length: 5 }, () => {
    const sentAt = systemClock.now();
    const [seconds, micros] = redisCli(port, 'TIME').split('\n').map(Number);
    const heardAt = systemClock.now();
    return { ms: heardAt - sentAt, ahead: seconds * 1000 + micros / 1000 - (sentAt + heardAt) / 2 };
  });
  return trips.sort((a, b) => a.ms - b.ms)[0].ahead;
}

class Pod {
  readonly membership: PoolMembership;
  readonly limited: Limiter;
  isRunning = true;
  #isDead = false;

  constructor({ client }: RedisConnection, setting: PoolOptions) {
    const store = redisStore(client, { deadline: '200ms' });
    const mortal: PoolStore = {
      ...store,
      sync: (...args) => (this.#isDead ? new Promise(() => {}) : store.sync(...args)),
    };
    this.membership = pool(mortal, setting);
    const limit = { ramp: { min: LIMIT, max: LIMIT, over: '1s' } } as const;
    this.limited = limiter({ limit, backend: this.membership });
  }

  async leave(): Promise<void> {
    await this.membership.close();
    this.isRunning = false;
  }

  crash(): void {
    this.#isDead = true;
    this.isRunning = false;
  }
}

/** Members that take everything available, many times a second. */
class Pods {
  readonly #client: RedisConnection;
  readonly #setting: PoolOptions;
  readonly #aheadMs: number;
  readonly #taken = new Map<number, number>();
  readonly all: Pod[] = [];
  readonly #timer: ReturnType<typeof setInterval>;

  constructor(client: RedisConnection, port: number, setting: PoolOptions) {
    this.#client = client;
    this.#setting = setting;
    this.#aheadMs = aheadOf(port);
    this.#timer = setInterval(() => this.#take(), 5);
  }

  add(): Pod {
    const pod = new Pod(this.#client, { id: `pod${this.all.length + 1}`, ...this.#setting });
    this.all.push(pod);
    return pod;
  }

  get running(): Pod[] {
    return this.all.filter(({ isRunning }) => isRunning);
  }

  #take(): void {
    const now = systemClock.now() + this.#aheadMs;
    const intoMs = now % 1000;
    if (intoMs < EDGE_MS || intoMs > 1000 - EDGE_MS) return;
    const second = Math.floor(now / 1000);
    for (const { limited } of this.running) {
      this.#taken.set(second, (this.#taken.get(second) ?? 0) + limited.takeUpTo('', Infinity));
    }
  }

  /** Tokens taken in each second. */
  get sums(): number[] {
    return [...this.#taken.values()];
  }

  /** Waits until the running members divide the limit and have taken all of it in a whole second. */
  async whole(): Promise<void> {
    const size = this.running.length;
    await this.until(`${size} share it`, () =>
      this.running.every(
        ({ membership }) => membership.view().size === size && membership.view().isAgreed,
      ),
    );
    const from = Math.floor((systemClock.now() + this.#aheadMs) / 1000);
    await this.until('all of it is taken', () =>
      [...this.#taken].some(([second, sum]) => second > from && sum === LIMIT),
    );
  }

  async until(what: string, isSo: () => boolean): Promise<void> {
    const deadline = performance.now() + WITHIN_MS;
    while (!isSo()) {
      if (performance.now() > deadline) {
        const views = JSON.stringify(this.running.map(({ membership }) => membership.view()));
        throw new Error(`waited ${WITHIN_MS} ms until ${what}: ${views} ${this.sums}`);
      }
      await later(10);
    }
  }

  async stop(): Promise<void> {
    clearInterval(this.#timer);
    await Promise.all(this.all.map(({ membership }) => membership.close()));
  }
}

describe.skipIf(redisServer() === undefined)('redis pool', () => {
  let service: Service;
  let client: RedisConnection;
  let pods: Pods;
  beforeEach(async () => {
    service = await startRedis();
    client = await nodeRedis(service.port);
  });
  afterEach(async () => {
    await pods?.stop();
    client.disconnect();
    await service.stop();
  });
  const start = (count: number, setting: PoolOptions = {}): void => {
    pods = new Pods(client, service.port, { memberTimeout: '600ms', sync: '50ms', ...setting });
    for (let n = 0; n < count; n++) pods.add();
  };

  test('redis pool: members join, leave and crash without overshoot', async () => {
    start(1);
    await pods.whole();
    const second = pods.add();
    const third = pods.add();
    await pods.whole();
    await second.leave();
    await pods.whole();
    pods.add();
    await pods.whole();
    third.crash();
    await pods.whole();
    expect(pods.running.length).toBe(2);
    expect(Math.max(...pods.sums)).toBe(LIMIT);
  });

  test('redis pool: members keep their claims when Redis loses its data, and agree again', async () => {
    start(3);
    await pods.whole();
    redisCli(service.port, 'FLUSHALL');
    await pods.until('it is known again', () =>
      pods.running.every(({ membership }) => membership.view().active === 3),
    );
    expect(pods.running.map(({ membership }) => membership.view().size)).toEqual([3, 3, 3]);
    await pods.whole();
    pods.add();
    redisCli(service.port, 'FLUSHALL');
    redisCli(service.port, 'SCRIPT', 'FLUSH');
    await pods.whole();
    expect(Math.max(...pods.sums)).toBe(LIMIT);
  });

  test('redis pool: members go on while Redis is unavailable, and stop after staleFor', async () => {
    start(3, { staleFor: '2s' });
    await pods.whole();
    await service.kill();
    await pods.until('a member has noticed', () =>
      pods.running.every(({ membership }) => membership.view().failures > 0),
    );
    expect(pods.running.map(({ membership }) => membership.view().size)).toEqual([3, 3, 3]);
    await pods.until('every member stops', () =>
      pods.running.every(
        ({ membership }) => membership.view().size === 0 && !membership.view().isAvailable,
      ),
    );
    expect(pods.running.map(({ limited }) => limited.check('').verdict)).toEqual([
      'deny',
      'deny',
      'deny',
    ]);
    await service.restart();
    await pods.whole();
    expect(Math.max(...pods.sums)).toBe(LIMIT);
  });

  test('redis pool: members survive a stalled Redis, including members that join meanwhile', async () => {
    start(2);
    await pods.whole();
    service.pause();
    pods.add();
    await pods.until('all have noticed', () =>
      pods.running.every(({ membership }) => membership.view().failures > 1),
    );
    expect(pods.running.map(({ membership }) => membership.view().size)).toEqual([2, 2, 0]);
    service.resume();
    await pods.whole();
    expect(Math.max(...pods.sums)).toBe(LIMIT);
  });

  test('redis pool: a member that joins a ramp stands within one step of the others', async () => {
    const slope = 10;
    const ramp = { min: 10, max: 10 + 100 * slope, over: '100s', resumeFor: '60s' } as const;
    const memberships: PoolMembership[] = [];
    const join = (): Limiter => {
      const setting = { name: 'ramp', memberTimeout: '600ms', sync: '50ms' } as const;
      const membership = pool(redisStore(client.client), setting);
      memberships.push(membership);
      return limiter({ limit: { ramp }, backend: membership });
    };
    const calling = [join(), join()];
    const levels = (): number[] => calling.map((limited) => limited.inspect('').level ?? 0);
    const callUntil = async (isSo: () => boolean): Promise<void> => {
      const deadline = performance.now() + WITHIN_MS;
      while (!isSo() && performance.now() < deadline) {
        for (const limited of calling) limited.takeUpTo('', Infinity);
        await later(20);
      }
    };
    await callUntil(() => Math.min(...levels()) >= 50);
    const offset = aheadOf(service.port);
    const joined = join();
    calling.push(joined);
    await callUntil(() => joined.takeUpTo('', 1) > 0);
    const all = levels();
    const isMidSecond = (): boolean => Math.abs(((systemClock.now() + offset) % 1000) - 600) < 200;
    // At the beginning of a second some have called in it and some have not. On a busy machine members miss half a second.
    const areOneStepApart = (): boolean =>
      isMidSecond() && Math.max(...levels()) - Math.min(...levels()) <= slope + 1e-6;
    let isSo = false;
    await callUntil(() => {
      isSo = areOneStepApart();
      return isSo;
    });
    expect(isSo, `levels ${all} at first, then ${levels()}`).toBe(true);
    await Promise.all(memberships.map((membership) => membership.close()));
  }, 60_000);
});
