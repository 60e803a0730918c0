/** What is told once a second, and to whom. */

import { describe, expect, test } from 'vitest';
import { createRouter } from '../../../../test/support/http-surface.ts';
import { VirtualClock } from '../../../testing/index.ts';
import { EventStream, type Subscriber } from './events-stream.ts';

class Ear implements Subscriber {
  heard: string[] = [];
  writableLength = 0;
  isGone = false;
  isEnded = false;
  #hangUp: () => void = () => {};

  write(text: string): void {
    this.heard.push(text);
  }
  end(): void {
    this.isEnded = true;
  }
  destroy(): void {
    this.isGone = true;
  }
  once(_: 'close', act: () => void): void {
    this.#hangUp = act;
  }
  hangUp(): void {
    this.#hangUp();
  }
}

const dataOf = (event: string) => JSON.parse(/^data: (.*)$/m.exec(event)?.[1] ?? '{}');

function story(maxListeners = 2) {
  const clock = new VirtualClock(5000);
  const router = createRouter({}, clock);
  const eventStream = new EventStream(router.registry, clock);
  eventStream.maxSubscribers = maxListeners;
  return { clock, gate: router, feed: eventStream };
}

describe('the feed', () => {
  test('begins with everything, then tells of each second', () => {
    const { clock, gate, feed } = story();
    const ask = () => gate.check({ key: 'alice', cost: 1 });
    ask();
    expect(feed.snapshot()).toMatch(/^event: snapshot\ndata: .*\n\n$/);
    expect(dataOf(feed.snapshot())).toMatchObject({ at: 5000, total: { allowed: 1, keys: 1 } });
    const ear = new Ear();
    feed.add(ear);
    for (let n = 0; n < 4; n++) ask();
    clock.advance(999);
    expect(ear.heard).toEqual([]);
    clock.advance(1);
    expect(ear.heard[0]).toMatch(/^event: second\n/);
    expect(dataOf(ear.heard[0])).toMatchObject({
      at: 6000,
      limits: { api: { allowed: 2, denied: 2, keys: 1, held: 0 } },
      total: { allowed: 2, denied: 2 },
    });
    clock.advance(1000);
    expect(dataOf(ear.heard[1]).total).toMatchObject({ allowed: 0, denied: 0, keys: 1 });
  });

  test('says a line that means nothing now and then', () => {
    const { clock, feed } = story();
    const ear = new Ear();
    feed.add(ear);
    clock.advance(30_000);
    expect(ear.heard.filter((text) => text.endsWith(': keep-alive\n\n'))).toHaveLength(2);
  });

  test('rests while nobody listens, and counts nothing of that time', () => {
    const { clock, gate, feed } = story();
    const first = new Ear();
    feed.add(first);
    first.hangUp();
    clock.advance(5000);
    expect(first.heard).toEqual([]);
    gate.check({ key: 'alice', cost: 1 });
    const second = new Ear();
    feed.add(second);
    clock.advance(1000);
    expect(dataOf(second.heard[0]).total.allowed).toBe(0);
  });

  test('lets go who does not read, and nobody else', () => {
    const { clock, feed } = story();
    const [slow, fast] = [new Ear(), new Ear()];
    feed.add(slow);
    feed.add(fast);
    expect(feed.isFull).toBe(true);
    slow.writableLength = 2_000_000;
    clock.advance(2000);
    expect([slow.isGone, fast.isGone]).toEqual([true, false]);
    expect([slow.heard.length, fast.heard.length]).toEqual([0, 2]);
    expect(feed.counts).toEqual({ subscribers: 1, slow: 1 });
    expect(feed.isFull).toBe(false);
  });

  test('counts a limit that was made anew from nothing', () => {
    const { clock, gate, feed } = story();
    const ear = new Ear();
    gate.check({ key: 'alice', cost: 1 });
    gate.check({ key: 'alice', cost: 1 });
    feed.add(ear);
    const other = createRouter({ limits: { api: { bucket: { rate: '9/s' } } } }, clock);
    other.check({ key: 'alice', cost: 1 });
    Object.defineProperty(gate.registry, 'all', { value: other.registry.all });
    clock.advance(1000);
    expect(dataOf(ear.heard[0]).total.allowed).toBe(1);
  });

  test('says good-bye', () => {
    const { clock, feed } = story();
    const ear = new Ear();
    feed.add(ear);
    feed.close();
    clock.advance(5000);
    expect([ear.isEnded, ear.heard.length]).toEqual([true, 0]);
  });
});
