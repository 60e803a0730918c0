import { describe, expect, test } from 'vitest';
import type { Duration } from '../core/duration.ts';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { all } from './composite-limiter.ts';
import { limiter } from './limiter.ts';

describe('permit', () => {
  const setUp = () => {
    const clock = new VirtualClock();
    return { clock, api: limiter({ limit: { concurrency: 2 }, clock }) };
  };

  test('is held until it is settled; a second settle has no effect', async () => {
    const { api } = setUp();
    const [a, b] = [await api.acquire('sink'), api.tryAcquire('sink')];
    expect(api.tryAcquire('sink')).toMatchObject({ verdict: 'deny', retryAfterMs: 0 });
    expect(api.stats().held).toBe(2);
    if (a.verdict === 'deny' || b.verdict === 'deny') throw new Error('both were free');
    a.settle();
    a.settle();
    expect(a.isSettled).toBe(true);
    expect(api.inspect('sink').inFlight).toBe(1);
    expect(api.stats().held).toBe(1);
  });

  test('measures its round-trip time', async () => {
    const { clock, api } = setUp();
    const permit = await api.acquire('sink');
    clock.advance(40);
    if (permit.verdict === 'allow') permit.settle();
    expect(api.inspect('sink').rttMs).toBe(40);
  });

  test('is settled by Symbol.dispose', async () => {
    const { api } = setUp();
    {
      const permit = await api.acquire('sink');
      permit[Symbol.dispose]();
    }
    expect(api.inspect('sink').inFlight).toBe(0);
    api.tryAcquire('sink', 9)[Symbol.dispose](); // a refusal has nothing to settle
  });

  test('settled as ignored, gives its cost back', async () => {
    const api = limiter({ limit: { bucket: { rate: 1, burst: 3 } }, clock: new VirtualClock() });
    const permit = api.tryAcquire('key', 2);
    if (permit.verdict === 'allow') permit.settle({ outcome: 'ignored' });
    expect(api.inspect('key').remaining).toBe(3);
  });

  test('signal: aborts when the permit expires, and not when it is settled', () => {
    const clock = new VirtualClock();
    const api = limiter({ name: 'api', limit: { concurrency: 3 }, clock, permitTimeout: '1s' });
    const permits = [1, 2, 3].map(() => api.tryAcquire('sink'));
    const [early, late, settled] = permits.map((permit) => {
      if (permit.verdict === 'deny') throw new Error('all were free');
      return permit;
    });
    const { signal } = early;
    expect(early.signal).toBe(signal);
    settled.settle();
    clock.advance(1001);
    expect(signal.aborted).toBe(true);
    expect(signal.reason).toMatchObject({ code: 'UNAVAILABLE' });
    expect(signal.reason.message).toBe(
      'the permit for key "sink" has ended: it was held longer than the permitTimeout of limit "api"',
    );
    expect(late.signal.aborted).toBe(true); // first read after its end
    expect(settled.signal.aborted).toBe(false);
  });

  test('signal: of a composite, aborts with the first permit that ends', () => {
    const clock = new VirtualClock();
    const part = (permitTimeout: Duration) =>
      limiter({ limit: { concurrency: 1 }, clock, permitTimeout });
    const permit = all([part('1s'), part('9s')]).tryAcquire('sink');
    if (permit.verdict === 'deny') throw new Error('both were free');
    const { signal } = permit;
    expect(permit.signal).toBe(signal);
    clock.advance(1001);
    expect(signal.aborted).toBe(true);
    permit.settle();
  });
});
