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

export interface PoolStoryStage {
  readonly server: Service;
  store(clock: Clock): PoolStore;
  stop(): Promise<void>;
}

const LIMIT = 100;
const TAKE_EVERY_MS: Millis = 5;
const STORY_MS_MAX = 120_000;

export function poolStory(name: string, start: () => Promise<PoolStoryStage>): void {
  const title = `pods that meet in ${name} never take more than the limit, and soon again all of it`;
  test(title, { timeout: STORY_MS_MAX }, async () => {
    const stage = await start();
    const world = new World(stage);
    try {
      await play(world, stage.server);
      expect(Math.max(...world.sums.values())).toBe(LIMIT);
    } finally {
      await world.stop();
      await stage.stop();
    }
  });
}

async function play(world: World, server: Service): Promise<void> {
  for (let n = 0; n < 4; n++) world.add();
  await world.untilWhole(4, 'four have come');
  world.crash(1);
  await world.untilWhole(3, 'one has crashed');
  await world.leave(0);
  await world.untilWhole(2, 'one has left');
  await server.kill();
  await world.pass(4000);
  expect(world.sizes()).toEqual([2, 2]); // they hold on to what they had
  await server.restart();
  await world.untilInReach();
  await world.untilWhole(2, 'the server is back');
  world.add();
  await world.untilWhole(3, 'another has come');
}

class World {
  /** What was taken in each second. */
  readonly sums = new Map<number, number>();
  readonly #stage: PoolStoryStage;
  #pods: ReturnType<World['start']>[] = [];
  #born = 0;
  readonly #leaving: Promise<void>[] = [];

  constructor(stage: PoolStoryStage) {
    this.#stage = stage;
  }

  add(): void {
    this.#pods.push(this.start());
  }

  start() {
    const id = `pod${++this.#born}`;
    const wrongByMs = this.#born * (this.#born % 2 === 0 ? 1.5 : -1) * 3_600_000;
    const clock: Clock = { now: () => systemClock.now() + wrongByMs };
    const kept = this.#stage.store(clock);
    const life = { isDead: false };
    const store: PoolStore = {
      ...kept,
      sync: (...asked) => (life.isDead ? new Promise(() => {}) : kept.sync(...asked)),
      leave: async (...asked) => (life.isDead ? undefined : kept.leave(...asked)),
    };
    const place = pool(store, { id, clock, sync: 50, stale: 1500 });
    const limit = { ramp: { min: LIMIT, max: LIMIT, over: '1s' } };
    return { life, place, own: limiter({ limit, share: place, clock }) };
  }

  /** Takes no more, says nothing any more. */
  crash(n: number): void {
    const [dead] = this.#pods.splice(n, 1);
    dead.life.isDead = true;
    this.#leaving.push(dead.place.close());
  }

  async leave(n: number): Promise<void> {
    const [gone] = this.#pods.splice(n, 1);
    await gone.place.close();
  }

  sizes(): number[] {
    return this.#pods.map(({ place }) => place.view().size);
  }

  async pass(ms: Millis): Promise<void> {
    for (const until = Date.now() + ms; Date.now() < until; ) {
      for (const { own } of this.#pods) this.#take(own);
      await sleep(TAKE_EVERY_MS);
    }
  }

  #take(own: { take(key: string, most: number): number }): void {
    const before = Math.floor(Date.now() / 1000);
    const taken = own.take('', Infinity);
    const after = Math.floor(Date.now() / 1000);
    if (before !== after) return; // whichever second that was, it cannot be told
    this.sums.set(before, (this.sums.get(before) ?? 0) + taken);
  }

  /** So many share it, and all of it was taken in a second that is over. */
  async untilWhole(size: number, why: string): Promise<void> {
    const startedAt = Date.now();
    const isSo = (): boolean => {
      const last = Math.floor(Date.now() / 1000) - 1;
      const isAgreed = this.sizes().every((own) => own === size);
      return isAgreed && last * 1000 > startedAt && this.sums.get(last) === LIMIT;
    };
    await this.#until(isSo, `${why}: ${size} share the whole limit`);
  }

  untilInReach(): Promise<void> {
    const isSo = () => this.#pods.every(({ place }) => place.view().reason === undefined);
    return this.#until(isSo, 'the server answers all');
  }

  async #until(isSo: () => boolean, what: string): Promise<void> {
    const giveUpAt = Date.now() + 15_000;
    while (!isSo()) {
      if (Date.now() > giveUpAt) {
        const views = this.#pods.map(({ place }) => place.view());
        throw new Error(`not in time: ${what}: ${JSON.stringify({ views, sums: [...this.sums] })}`);
      }
      await this.pass(50);
    }
  }

  async stop(): Promise<void> {
    await Promise.all(this.#pods.map(({ place }) => place.close()));
    await Promise.all(this.#leaving);
  }
}
