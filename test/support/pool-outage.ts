/**
 * Outage test of a pool with a real server: members join, crash and leave, the server is killed and restarted,
 * and in no second of the server's clock do the members exceed the limit together.
 *
 * Every member takes everything available. The server runs on this machine, so its seconds are this machine's;
 * the clocks of the members are wrong by hours.
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
const MAX_TEST_MS = 240_000;

export function poolOutageTest(name: string, start: () => Promise<PoolOutageHarness>): void {
  const title = `pool outage, ${name}: members never exceed the limit, and soon use all of it again`;
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
  await cluster.waitForFullUse(4, 'four members joined');
  cluster.crash(1);
  await cluster.waitForFullUse(3, 'one member crashed');
  await cluster.leave(0);
  await cluster.waitForFullUse(2, 'one member left');
  await server.kill();
  await cluster.runFor(4000);
  expect(cluster.sizes()).toEqual([2, 2]); // members keep their claims
  await server.restart();
  await cluster.waitForAvailability();
  await cluster.waitForFullUse(2, 'the server is back');
  cluster.add();
  await cluster.waitForFullUse(3, 'another member joined');
}

class PodCluster {
  /** Tokens taken in each second. */
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
    const inner = this.#harness.store(clock);
    const life = { isDead: false };
    const store: PoolStore = {
      ...inner,
      sync: (...args) => (life.isDead ? new Promise(() => {}) : inner.sync(...args)),
      leave: async (...args) => (life.isDead ? undefined : inner.leave(...args)),
    };
    const membership = pool(store, { id, clock, sync: 50, memberTimeout: 1500 });
    const limit = { ramp: { min: LIMIT, max: LIMIT, over: '1s' } } as const;
    return { life, membership, limited: limiter({ limit, backend: membership, clock }) };
  }

  /** Takes nothing more, and sends nothing more. */
  crash(n: number): void {
    const [dead] = this.#pods.splice(n, 1);
    dead.life.isDead = true;
    this.#closing.push(dead.membership.close());
  }

  async leave(n: number): Promise<void> {
    const [gone] = this.#pods.splice(n, 1);
    await gone.membership.close();
  }

  sizes(): number[] {
    return this.#pods.map(({ membership }) => membership.view().size);
  }

  async runFor(ms: Millis): Promise<void> {
    for (const until = Date.now() + ms; Date.now() < until; ) {
      for (const { limited } of this.#pods) this.#take(limited);
      await sleep(TAKE_EVERY_MS);
    }
  }

  #take(limited: { takeUpTo(key: string, most: number): number }): void {
    const before = Math.floor(Date.now() / 1000);
    const taken = limited.takeUpTo('', Infinity);
    const after = Math.floor(Date.now() / 1000);
    if (before !== after) return; // the second is ambiguous
    this.takenBySecond.set(before, (this.takenBySecond.get(before) ?? 0) + taken);
  }

  /** Waits until `size` members divide the limit and a complete second used all of it. */
  async waitForFullUse(size: number, why: string): Promise<void> {
    const startedAt = Date.now();
    const holds = (): boolean => {
      const last = Math.floor(Date.now() / 1000) - 1;
      const isAgreed = this.sizes().every((each) => each === size);
      return isAgreed && last * 1000 > startedAt && this.takenBySecond.get(last) === LIMIT;
    };
    await this.#waitUntil(holds, `${why}: ${size} members divide the whole limit`);
  }

  waitForAvailability(): Promise<void> {
    const holds = () =>
      this.#pods.every(({ membership }) => membership.view().reason === undefined);
    return this.#waitUntil(holds, 'the server is available to all members');
  }

  async #waitUntil(holds: () => boolean, what: string): Promise<void> {
    const giveUpAt = Date.now() + 15_000;
    while (!holds()) {
      if (Date.now() > giveUpAt) {
        const views = this.#pods.map(({ membership }) => membership.view());
        throw new Error(
          `not in time: ${what}: ${JSON.stringify({ views, sums: [...this.takenBySecond] })}`,
        );
      }
      await this.runFor(50);
    }
  }

  async stop(): Promise<void> {
    await Promise.all(this.#pods.map(({ membership }) => membership.close()));
    await Promise.all(this.#closing);
  }
}
