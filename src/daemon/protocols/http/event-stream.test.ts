import { describe, expect, test } from 'vitest';
import { createRouter } from '../../../../test/support/http-protocol.ts';
import { StallableClock } from '../../../../test/support/stallable-clock.ts';
import { VirtualClock } from '../../../testing/index.ts';
import { EventStream, type Subscriber } from './event-stream.ts';

class TestSubscriber implements Subscriber {
  received: string[] = [];
  writableLength = 0;
  isDestroyed = false;
  isEnded = false;
  #onClose: () => void = () => {};

  write(text: string): void {
    this.received.push(text);
  }
  end(): void {
    this.isEnded = true;
  }
  destroy(): void {
    this.isDestroyed = true;
  }
  once(_: 'close', callback: () => void): void {
    this.#onClose = callback;
  }
  close(): void {
    this.#onClose();
  }
}

const dataOf = (event: string) => JSON.parse(/^data: (.*)$/m.exec(event)?.[1] ?? '{}');

function setUp(maxSubscribers = 2) {
  const clock = new VirtualClock(5000);
  const router = createRouter({}, clock);
  const eventStream = new EventStream(router.registry, clock);
  eventStream.maxSubscribers = maxSubscribers;
  return { clock, router, eventStream };
}

describe('event stream', () => {
  test('subscriber: gets totals first, then the differences of each second', () => {
    const { clock, router, eventStream } = setUp();
    const check = () => router.check({ key: 'alice', cost: 1 });
    check();
    expect(eventStream.snapshot()).toMatch(/^event: snapshot\ndata: .*\n\n$/);
    expect(dataOf(eventStream.snapshot())).toMatchObject({
      at: 5000,
      total: { allowed: 1, keys: 1 },
    });
    const subscriber = new TestSubscriber();
    eventStream.add(subscriber);
    for (let n = 0; n < 4; n++) check();
    clock.advance(999);
    expect(subscriber.received).toEqual([]);
    clock.advance(1);
    expect(subscriber.received[0]).toMatch(/^event: second\n/);
    expect(dataOf(subscriber.received[0])).toMatchObject({
      at: 6000,
      limits: { api: { allowed: 2, denied: 2, keys: 1, held: 0 } },
      total: { allowed: 2, denied: 2 },
    });
    clock.advance(1000);
    expect(dataOf(subscriber.received[1]).total).toMatchObject({ allowed: 0, denied: 0, keys: 1 });
  });

  test('an event that is late: has the denials since the event before', () => {
    const virtual = new VirtualClock(5000);
    const clock = new StallableClock(virtual);
    const router = createRouter({}, clock);
    const since: number[] = [];
    const recent = (query: { since?: number }): never[] => {
      since.push(query.since ?? 0);
      return [];
    };
    const eventStream = new EventStream(router.registry, clock, { top: () => [], recent });
    eventStream.add(new TestSubscriber());
    virtual.advance(1000);
    clock.stall();
    virtual.advance(3000);
    clock.resume();
    clock.fireOverdue();
    expect(since).toEqual([5000, 6000]);
  });

  test('keep-alive: sends a comment every 15 s', () => {
    const { clock, eventStream } = setUp();
    const subscriber = new TestSubscriber();
    eventStream.add(subscriber);
    clock.advance(30_000);
    expect(subscriber.received.filter((text) => text.endsWith(': keep-alive\n\n'))).toHaveLength(2);
  });

  test('without subscribers: does not tick, and later differences leave that time out', () => {
    const { clock, router, eventStream } = setUp();
    const first = new TestSubscriber();
    eventStream.add(first);
    first.close();
    clock.advance(5000);
    expect(first.received).toEqual([]);
    router.check({ key: 'alice', cost: 1 });
    const second = new TestSubscriber();
    eventStream.add(second);
    clock.advance(1000);
    expect(dataOf(second.received[0]).total.allowed).toBe(0);
  });

  test('subscriber that does not read: is disconnected, the other is not', () => {
    const { clock, eventStream } = setUp();
    const [slow, fast] = [new TestSubscriber(), new TestSubscriber()];
    eventStream.add(slow);
    eventStream.add(fast);
    expect(eventStream.isFull).toBe(true);
    slow.writableLength = 2_000_000;
    clock.advance(2000);
    expect([slow.isDestroyed, fast.isDestroyed]).toEqual([true, false]);
    expect([slow.received.length, fast.received.length]).toEqual([0, 2]);
    expect(eventStream.isFull).toBe(false);
  });

  test('recreated limiter: its counters start at 0', () => {
    const { clock, router, eventStream } = setUp();
    const subscriber = new TestSubscriber();
    router.check({ key: 'alice', cost: 1 });
    router.check({ key: 'alice', cost: 1 });
    eventStream.add(subscriber);
    const other = createRouter({ limits: { api: { bucket: { rate: '9/s' } } } }, clock);
    other.check({ key: 'alice', cost: 1 });
    Object.defineProperty(router.registry, 'all', { value: other.registry.all });
    clock.advance(1000);
    expect(dataOf(subscriber.received[0]).total.allowed).toBe(1);
  });

  test('close: ends every subscriber', () => {
    const { clock, eventStream } = setUp();
    const subscriber = new TestSubscriber();
    eventStream.add(subscriber);
    eventStream.close();
    clock.advance(5000);
    expect([subscriber.isEnded, subscriber.received.length]).toEqual([true, 0]);
  });
});
