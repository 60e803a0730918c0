/** What an operator sees of limits that learn, and of limits with several rules: events, statistics, metrics, log lines. */

import { DataPointType, MeterProvider, MetricReader } from '@opentelemetry/sdk-metrics';
import { describe, expect, test } from 'vitest';
import { logLimiting } from '../src/adapters/metrics/log.ts';
import { prometheus } from '../src/adapters/metrics/prometheus.ts';
import { instrument } from '../src/adapters/opentelemetry.ts';
import { all } from '../src/limiter/composite-limiter.ts';
import type { LimitEvent } from '../src/limiter/events.ts';
import { limiter } from '../src/limiter/limiter.ts';
import type { Permit } from '../src/limiter/permit.ts';
import type { Limit } from '../src/policies/limit.ts';
import { VirtualClock } from '../src/testing/virtual-clock.ts';
import { parseExposition, sampleValue } from './support/exposition.ts';

function setUp(limit: Limit, name = 'sink') {
  const clock = new VirtualClock();
  const api = limiter({ name, limit, clock });
  const events: LimitEvent[] = [];
  const eventsOf = (type: LimitEvent['type']) => events.filter((event) => event.type === type);
  const listen = () => api.on((event) => events.push(event));
  return { clock, api, eventsOf, listen };
}

const SINK: Limit = { adaptive: { initial: 10, decreaseRatio: 0.5 } };

/** A first success, so that the limit has a mean round-trip time of 100 ms. */
function warmUp({ api, clock }: ReturnType<typeof setUp>): void {
  const permit = api.tryAcquire('db') as Permit;
  clock.advance(100);
  permit.settle();
}

describe('event of a decreased limit', () => {
  test('adaptive: a busy reply decreases the limit, cause back-pressure', () => {
    const sink = setUp(SINK);
    warmUp(sink);
    sink.listen();
    const permit = sink.api.tryAcquire('db') as Permit;
    sink.clock.advance(100);
    permit.settle({ outcome: 'busy' });
    const about = { limit: 'sink', key: 'db', cost: 1, at: sink.clock.now() };
    expect(sink.eventsOf('decreased')).toEqual([
      { type: 'decreased', ...about, from: 10, to: 5, cause: 'back-pressure' },
    ]);
  });

  test('adaptive: back-pressure of an earlier call is the cause, whichever call closes the window', () => {
    const sink = setUp(SINK);
    warmUp(sink);
    sink.listen();
    const [first, second] = [
      sink.api.tryAcquire('db') as Permit,
      sink.api.tryAcquire('db') as Permit,
    ];
    sink.clock.advance(50);
    first.settle({ outcome: 'timeout' });
    sink.clock.advance(50);
    second.settle();
    expect(sink.eventsOf('decreased')).toMatchObject([{ from: 10, to: 5, cause: 'back-pressure' }]);
  });

  test('adaptive: slower calls decrease the limit, cause latency', () => {
    const sink = setUp(SINK);
    warmUp(sink);
    sink.listen();
    const permit = sink.api.tryAcquire('db') as Permit;
    sink.clock.advance(900);
    permit.settle();
    expect(sink.eventsOf('decreased')).toMatchObject([{ from: 10, to: 5, cause: 'latency' }]);
  });

  test('busy: a busy reply decreases the rate', () => {
    const sink = setUp({ busy: {} });
    sink.listen();
    const permits = Array.from({ length: 8 }, () => sink.api.tryAcquire('db') as Permit);
    sink.clock.advance(10);
    permits[0].settle({ outcome: 'busy' });
    const [event] = sink.eventsOf('decreased');
    expect(event).toMatchObject({ key: 'db', cause: 'back-pressure' });
    const { from, to } = event as Extract<LimitEvent, { type: 'decreased' }>;
    expect(to).toBeLessThan(from);
  });

  test('no event: an increase, a fixed limit, an ignored call', () => {
    const fixed = setUp({ concurrency: 2 });
    fixed.listen();
    (fixed.api.tryAcquire('db') as Permit).settle({ outcome: 'busy' });
    expect(fixed.eventsOf('decreased')).toEqual([]);
    const sink = setUp({ adaptive: {} });
    warmUp(sink);
    sink.listen();
    const permit = sink.api.tryAcquire('db') as Permit;
    sink.clock.advance(100);
    permit.settle();
    (sink.api.tryAcquire('db') as Permit).settle({ outcome: 'ignored' });
    expect(sink.api.inspect('db').limit).toBe(2);
    expect(sink.eventsOf('decreased')).toEqual([]);
  });
});

describe('histograms of the limit and of calls in flight', () => {
  /** 3 calls in flight at a limit of 10, settled one after the other, then one that did not happen. */
  function traffic({ api, clock }: ReturnType<typeof setUp>): void {
    const permits = [1, 2, 3].map(() => api.tryAcquire('db') as Permit);
    clock.advance(10);
    for (const permit of permits) permit.settle();
    (api.tryAcquire('db') as Permit).settle({ outcome: 'ignored' });
  }

  test.each([20, 0])('prometheus: one observation per settled call, with maxKeys %i', (maxKeys) => {
    const sink = setUp(SINK);
    const metrics = prometheus(sink.api, { maxKeys });
    traffic(sink);
    const text = metrics.text();
    parseExposition(text);
    const value = (name: string, le?: string) =>
      sampleValue(text, name, { limit: 'sink', ...(le === undefined ? {} : { le }) });
    const inFlight = 'sluice_concurrency_in_flight';
    expect([value(`${inFlight}_count`), value(`${inFlight}_sum`)]).toEqual([3, 3 + 2 + 1]);
    const below = ['1', '2', '3', '+Inf'].map((le) => value(`${inFlight}_bucket`, le));
    expect(below).toEqual([1, 2, 3, 3]);
    const limit = 'sluice_concurrency_limit';
    expect([value(`${limit}_count`), value(`${limit}_sum`)]).toEqual([3, 30]);
    expect([value(`${limit}_bucket`, '7'), value(`${limit}_bucket`, '10')]).toEqual([0, 3]);
  });

  test('prometheus: limits that do not count calls in flight have none', () => {
    const metrics = prometheus(
      [{ bucket: { rate: 10 } }, { busy: {} }].map((limit, n) => {
        const sink = setUp(limit, `limit-${n}`);
        (sink.api.tryAcquire('db') as Permit).settle();
        return sink.api;
      }),
    );
    expect(metrics.text()).not.toContain('sluice_concurrency');
  });

  test('opentelemetry: the same buckets as prometheus', async () => {
    class PullReader extends MetricReader {
      protected override async onForceFlush(): Promise<void> {}
      protected override async onShutdown(): Promise<void> {}
    }
    const reader = new PullReader();
    const meter = new MeterProvider({ readers: [reader] }).getMeter('test');
    const sink = setUp({ all: [{ bucket: { rate: 100, burst: 100 } }, SINK] });
    const metrics = prometheus(sink.api);
    instrument(sink.api, { meter });
    traffic(sink);
    const { resourceMetrics } = await reader.collect();
    const found = resourceMetrics.scopeMetrics.flatMap((scope) => scope.metrics);
    for (const name of ['sluice.concurrency.limit', 'sluice.concurrency.in_flight']) {
      const metric = found.find(({ descriptor }) => descriptor.name === name);
      expect(metric?.dataPointType).toBe(DataPointType.HISTOGRAM);
      const [point] = metric?.dataPoints ?? [];
      const { buckets, count } = point.value as {
        buckets: { boundaries: number[]; counts: number[] };
        count: number;
      };
      expect(point.attributes).toEqual({ limit: 'sink' });
      expect(count).toBe(3);
      let total = 0;
      for (const [n, bound] of buckets.boundaries.entries()) {
        total += buckets.counts[n];
        const labels = { limit: 'sink', le: String(bound) };
        const bucket = `${name.replaceAll('.', '_')}_bucket`;
        expect(sampleValue(metrics.text(), bucket, labels)).toBe(total);
      }
    }
  });
});

describe('log line of a decreased limit', () => {
  test('logLimiting: back-pressure is logged at a bounded rate, latency is not', () => {
    const sink = setUp(SINK);
    const lines: string[] = [];
    const fields: object[] = [];
    const stop = logLimiting(sink.api, {
      warn(message, logged) {
        lines.push(message);
        fields.push(logged);
      },
    });
    warmUp(sink);
    for (const outcome of ['busy', 'timeout', 'busy'] as const) {
      const permit = sink.api.tryAcquire('db') as Permit;
      sink.clock.advance(100);
      permit.settle({ outcome });
    }
    sink.clock.advance(5_000);
    const slow = sink.api.tryAcquire('db') as Permit;
    sink.clock.advance(10_000);
    slow.settle();
    stop();
    expect(lines).toEqual([
      'limit "sink": decreased by back-pressure; last key "db", from 10 to 5',
      'limit "sink": decreased by back-pressure 2 times within 0.1 s; last key "db", from 2 to 1',
    ]);
    expect(fields[0]).toMatchObject({ limit: 'sink', decreased: 1, key: 'db', from: 10, to: 5 });
  });
});

describe('the rule of an `all` limit that refused', () => {
  const LIMIT: Limit = {
    all: [
      { bucket: { rate: '10/s', burst: 2 } },
      { all: [{ bucket: { rate: '1/s', burst: 3 } }, { concurrency: 3 }] },
    ],
  };

  test('decision, refusal, event, statistics, metric and inspect name the same rule', async () => {
    const { api, clock, eventsOf, listen } = setUp(LIMIT, 'api');
    listen();
    for (let n = 0; n < 3; n++) {
      expect(api.check('alice').verdict).toBe('allow');
      clock.advance(100);
    }
    expect(api.check('alice')).toEqual({ verdict: 'deny', retryAfterMs: 700, rule: 'bucket-2' });
    expect(api.inspect('alice').by).toBe('api.bucket-2');
    expect(api.tryAcquire('alice')).toMatchObject({ limit: 'api', rule: 'bucket-2' });
    expect(await api.acquire('alice', 1, { wait: 10 })).toMatchObject({
      reason: 'too-long',
      rule: 'bucket-2',
    });
    expect(api.peek('alice')).toMatchObject({ rule: 'bucket-2' });
    clock.advance(5_000);
    const held = [1, 2, 3].map(() => api.tryAcquire('bob'));
    expect(held[2]).toMatchObject({ verdict: 'deny', rule: 'bucket' });
    expect(api.stats().deniedByRule).toEqual({ 'bucket-2': 3, bucket: 1 });
    const denials = eventsOf('decision').filter(
      (event) => event.type === 'decision' && event.decision.verdict === 'deny',
    );
    expect(denials).toHaveLength(4);
    expect(denials[0]).toMatchObject({ decision: { rule: 'bucket-2' } });
    const text = prometheus(api).text();
    const labels = { limit: 'api', rule: 'bucket-2' };
    expect(sampleValue(text, 'sluice_rule_denials_total', labels)).toBe(3);
  });

  test('a rule that waits for a call to settle is named too', () => {
    const { api } = setUp(LIMIT, 'api');
    const lone = setUp({ all: [{ bucket: { rate: 100, burst: 100 } }, { concurrency: 1 }] }, 'two');
    lone.api.tryAcquire('a');
    expect(lone.api.check('a')).toEqual({ verdict: 'deny', retryAfterMs: 0, rule: 'concurrency' });
    expect(api.stats().deniedByRule).toEqual({});
  });

  test('takeUpTo that takes nothing names the rule, and when one unit fits', () => {
    const { api, eventsOf, listen } = setUp(LIMIT, 'api');
    listen();
    const lines: string[] = [];
    logLimiting(api, { warn: (message) => lines.push(message) });
    expect(api.takeUpTo('a', 5)).toBe(2);
    expect(api.takeUpTo('a', 5)).toBe(0);
    expect(api.stats()).toMatchObject({ denied: 1, deniedByRule: { bucket: 1 } });
    const decision = { verdict: 'deny', retryAfterMs: 100, rule: 'bucket' };
    expect(eventsOf('decision').at(-1)).toMatchObject({ decision });
    expect(lines).toEqual(['limit "api": 1 denied; last key "a", by bucket, retry in 100 ms']);
    expect(api.takeUpTo('a', 0)).toBe(0); // asks for nothing
    expect(api.stats().denied).toBe(1);
  });

  test('a limit with one rule names none; combined limiters add their rules', () => {
    const one = setUp({ bucket: { rate: 1, burst: 1 } }, 'one');
    one.api.check('a');
    expect(one.api.check('a')).toEqual({ verdict: 'deny', retryAfterMs: 1000 });
    expect(prometheus(one.api).text()).not.toContain('sluice_rule_denials');
    const two = setUp(LIMIT, 'two');
    const both = all([one.api, two.api]);
    for (let n = 0; n < 3; n++) two.api.check('b');
    expect(both.stats().deniedByRule).toEqual({ bucket: 1 });
  });

  test('logLimiting: names the rule of the last denial', () => {
    const { api } = setUp(LIMIT, 'api');
    const lines: string[] = [];
    logLimiting(api, { warn: (message) => lines.push(message) });
    for (let n = 0; n < 3; n++) api.check('alice');
    expect(lines).toEqual(['limit "api": 1 denied; last key "alice", by bucket, retry in 100 ms']);
  });
});
