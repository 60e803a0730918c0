/**
 * A day in the life of a pool, with a real server: pods come, crash and leave, the server is killed and comes back,
 * and in no second of the server's clock do they take more than the limit together.
 *
 * Everybody takes all it can get. The server runs on this machine, so its seconds are this machine's; the pods'
 * own clocks are wrong by hours.
 */

import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { pool } from '../../src/backends/pool/options.ts';
import type { PoolStore } from '../../src/backends/pool/store.ts';
import { type Clock, type Millis, systemClock } from '../../src/core/clock.ts';
import { limiter } from '../../src/limiter/limiter.ts';
import type { Service } from './services.ts';

export interface PoolOutageHarness {
  readonly server: Service;
  store(clock: Clock): PoolStore;
  stop(): Promise<void>;
}

const LIMIT = 100;
const TAKE_EVERY_MS: Millis = 5;
const MAX_TEST_MS = 120_000;

export function poolOutageTest(name: string, start: () => Promise<PoolOutageHarness>): void {
  const title = `pods that meet in ${name} never take more than the limit, and soon again all of it`;
  test(title, { timeout: MAX_TEST_MS }, async () => {
    const harness = await start();
    const cluster = new PodCluster(harness);
    try {
      await runScenario(cluster, harness.server);
      expect(Math.max(...cluster.takenBySecond.values())).toBe(LIMIT);
    } finally {
      await cluster.stop();
      await harness.stop();
    }
  });
}

async function runScenario(cluster: PodCluster, server: Service): Promise<void> {
  for (let n = 0; n < 4; n++) cluster.add();
  await cluster.waitForFullUse(4, 'four have come');
  cluster.crash(1);
  await cluster.waitForFullUse(3, 'one has crashed');
  await cluster.leave(0);
  await cluster.waitForFullUse(2, 'one has left');
  await server.kill();
  await cluster.runFor(4000);
  expect(cluster.sizes()).toEqual([2, 2]); // they hold on to what they had
  await server.restart();
  await cluster.waitForAvailability();
  await cluster.waitForFullUse(2, 'the server is back');
  cluster.add();
  await cluster.waitForFullUse(3, 'another has come');
}

class PodCluster {
  /** What was taken in each second. */
  readonly takenBySecond = new Map<number, number>();
  readonly #harness: PoolOutageHarness;
  #pods: ReturnType<PodCluster['startPod']>[] = [];
  #podsStarted = 0;
  readonly #closing: Promise<void>[] = [];

  constructor(harness: PoolOutageHarness) {
    this.#harness = harness;
  }

  add(): void {
    this.#pods.push(this.startPod());
  }

  startPod() {
    const id = `pod${++this.#podsStarted}`;
    const wrongByMs = this.#podsStarted * (this.#podsStarted % 2 === 0 ? 1.5 : -1) * 3_600_000;
    const clock: Clock = { now: () => systemClock.now() + wrongByMs };
    const kept = this.#harness.store(clock);
    const life = { isDead: false };
    const store: PoolStore = {
      ...kept,
      sync: (...asked) => (life.isDead ? new Promise(() => {}) : kept.sync(...asked)),
      leave: async (...asked) => (life.isDead ? undefined : kept.leave(...asked)),
    };
    const place = pool(store, { id, clock, sync: 50, memberTimeout: 1500 });
    const limit = { ramp: { min: LIMIT, max: LIMIT, over: '1s' } };
    return { life, place, own: limiter({ limit, backend: place, clock }) };
  }

  /** Takes no more, says nothing any more. */
  crash(n: number): void {
    const [dead] = this.#pods.splice(n, 1);
    dead.life.isDead = true;
    this.#closing.push(dead.place.close());
  }

  async leave(n: number): Promise<void> {
    const [gone] = this.#pods.splice(n, 1);
    await gone.place.close();
  }

  sizes(): number[] {
    return this.#pods.map(({ place }) => place.view().size);
  }

  async runFor(ms: Millis): Promise<void> {
    for (const until = Date.now() + ms; Date.now() < until; ) {
      for (const { own } of this.#pods) this.#take(own);
      await sleep(TAKE_EVERY_MS);
    }
  }

  #take(own: { takeUpTo(key: string, most: number): number }): void {
    const before = Math.floor(Date.now() / 1000);
    const taken = own.takeUpTo('', Infinity);
    const after = Math.floor(Date.now() / 1000);
    if (before !== after) return; // whichever second that was, it cannot be told
    this.takenBySecond.set(before, (this.takenBySecond.get(before) ?? 0) + taken);
  }

  /** So many share it, and all of it was taken in a second that is over. */
  async waitForFullUse(size: number, why: string): Promise<void> {
    const startedAt = Date.now();
    const isSo = (): boolean => {
      const last = Math.floor(Date.now() / 1000) - 1;
      const isAgreed = this.sizes().every((own) => own === size);
      return isAgreed && last * 1000 > startedAt && this.takenBySecond.get(last) === LIMIT;
    };
    await this.#waitUntil(isSo, `${why}: ${size} share the whole limit`);
  }

  waitForAvailability(): Promise<void> {
    const isSo = () => this.#pods.every(({ place }) => place.view().reason === undefined);
    return this.#waitUntil(isSo, 'the server answers all');
  }

  async #waitUntil(isSo: () => boolean, what: string): Promise<void> {
    const giveUpAt = Date.now() + 15_000;
    while (!isSo()) {
      if (Date.now() > giveUpAt) {
        const views = this.#pods.map(({ place }) => place.view());
        throw new Error(
          `not in time: ${what}: ${JSON.stringify({ views, sums: [...this.takenBySecond] })}`,
        );
      }
      await this.runFor(50);
    }
  }

  async stop(): Promise<void> {
    await Promise.all(this.#pods.map(({ place }) => place.close()));
    await Promise.all(this.#closing);
  }
}
