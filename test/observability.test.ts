import { DataPointType, MeterProvider, MetricReader } from '@opentelemetry/sdk-metrics';
import { describe, expect, test } from 'vitest';
import { logLimiting } from '../src/adapters/metrics/log.ts';
import { prometheus } from '../src/adapters/metrics/prometheus.ts';
import { instrument } from '../src/adapters/opentelemetry.ts';
import { all } from '../src/limiter/composite-limiter.ts';
import type { LimitChangedEvent, LimitEvent } from '../src/limiter/events.ts';
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

const SINK: Limit = { adaptive: { rule: 'aimd', initial: 10, decreaseRatio: 0.5 } };

/** A first success, so that the limit has a mean round-trip time of 100 ms. */
function warmUp({ api, clock }: ReturnType<typeof setUp>): void {
  const permit = api.tryAcquire('db') as Permit;
  clock.advance(100);
  permit.settle();
}

class PullReader extends MetricReader {
  protected override async onForceFlush(): Promise<void> {}
  protected override async onShutdown(): Promise<void> {}
}

/** A meter of OpenTelemetry, and what it has collected. */
function meterOf() {
  const reader = new PullReader();
  const meter = new MeterProvider({ readers: [reader] }).getMeter('test');
  const collect = async () => {
    const { resourceMetrics } = await reader.collect();
    return resourceMetrics.scopeMetrics.flatMap((scope) => scope.metrics);
  };
  return { meter, collect };
}

describe('event of an adjusted limit', () => {
  test('aimd: a busy reply decreases the limit, cause back-pressure', () => {
    const sink = setUp(SINK);
    warmUp(sink);
    sink.listen();
    const permit = sink.api.tryAcquire('db') as Permit;
    sink.clock.advance(100);
    permit.settle({ outcome: 'busy' });
    const about = { limit: 'sink', key: 'db', cost: 1, at: sink.clock.now() };
    expect(sink.eventsOf('limit-changed')).toEqual([
      { type: 'limit-changed', ...about, from: 10, to: 5, cause: 'back-pressure' },
    ]);
  });

  test('aimd: back-pressure of an earlier call is the cause, whichever call closes the window', () => {
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
    expect(sink.eventsOf('limit-changed')).toMatchObject([
      { from: 10, to: 5, cause: 'back-pressure' },
    ]);
  });

  test('aimd: slower calls decrease the limit, cause latency', () => {
    const sink = setUp(SINK);
    warmUp(sink);
    sink.listen();
    const permit = sink.api.tryAcquire('db') as Permit;
    sink.clock.advance(900);
    permit.settle();
    expect(sink.eventsOf('limit-changed')).toMatchObject([{ from: 10, to: 5, cause: 'latency' }]);
  });

  test('aimd: an increase has the cause success', () => {
    const sink = setUp({ adaptive: { rule: 'aimd' } });
    warmUp(sink);
    sink.listen();
    const permit = sink.api.tryAcquire('db') as Permit;
    sink.clock.advance(100);
    permit.settle();
    expect(sink.eventsOf('limit-changed')).toMatchObject([{ from: 1, to: 2, cause: 'success' }]);
  });

  test('busy: a busy reply decreases the rate', () => {
    const sink = setUp({ busy: {} });
    sink.listen();
    const permits = Array.from({ length: 8 }, () => sink.api.tryAcquire('db') as Permit);
    sink.clock.advance(10);
    permits[0].settle({ outcome: 'busy' });
    const [event] = sink.eventsOf('limit-changed');
    expect(event).toMatchObject({ key: 'db', cause: 'back-pressure' });
    const { from, to } = event as LimitChangedEvent;
    expect(to).toBeLessThan(from);
  });

  test('no event: a fixed limit, an ignored call, a limit that does not change', () => {
    const fixed = setUp({ concurrency: 2 });
    fixed.listen();
    (fixed.api.tryAcquire('db') as Permit).settle({ outcome: 'busy' });
    expect(fixed.eventsOf('limit-changed')).toEqual([]);
    for (const rule of ['delay', 'aimd'] as const) {
      const sink = setUp({ adaptive: { rule } });
      sink.listen();
      warmUp(sink);
      (sink.api.tryAcquire('db') as Permit).settle({ outcome: 'ignored' });
      expect(sink.eventsOf('limit-changed')).toEqual([]);
    }
  });
});

describe('adaptive, rule delay: what an operator sees', () => {
  type Outcome = 'ok' | 'busy' | 'timeout';
  const TOOK_MS: Readonly<Record<Outcome, number>> = { ok: 50, busy: 1, timeout: 1500 };

  /** A sender that always has a next call, up to an instant. Calls take 50 ms, refused ones 1 ms; the timeout is 1.5 s. */
  function send(
    { api, clock }: ReturnType<typeof setUp>,
    until: number,
    reply: () => Outcome = () => 'ok',
  ): void {
    const sendAll = (): void => {
      for (let n = 0; n < 1000 && clock.now() < until; n++) {
        const permit = api.tryAcquire('db');
        if (permit.verdict === 'deny') return;
        const outcome = reply();
        clock.wakeAt(clock.now() + TOOK_MS[outcome], () => {
          (permit as Permit).settle({ outcome });
          sendAll();
        });
      }
    };
    while (clock.now() < until) {
      sendAll();
      clock.advance(10);
    }
    clock.advance(60);
  }

  const adjusted = (sink: ReturnType<typeof setUp>) =>
    sink.eventsOf('limit-changed') as LimitChangedEvent[];

  test('adjusted: every change has its cause, and begins where the last one ended', () => {
    const sink = setUp({ adaptive: { max: 40 } });
    sink.listen();
    send(sink, 35_000);
    const events = adjusted(sink);
    expect(events[0]).toMatchObject({ limit: 'sink', key: 'db', from: 1, to: 2, cause: 'start' });
    expect(events[0].knee).toBeUndefined();
    for (const [n, { from, to }] of events.entries()) {
      if (n > 0) expect(from).toBe(events[n - 1].to);
      expect(to).not.toBe(from);
    }
    expect(events.at(-1)?.to).toBe(sink.api.inspect('db').limit);
    // The start leaves the round trip without a queue two standard errors too long; the tests find it.
    const begins = events.findLast(({ cause, from, to }) => cause === 'test' && to < from);
    expect(begins?.baseRttMs).toBeCloseTo(50, 0);
    expect(begins?.knee).toBeGreaterThan(0);
    expect(begins?.ratePerSecond).toBeGreaterThan(0);
    expect(events.some(({ cause, from, to }) => cause === 'test' && to > from)).toBe(true);
  });

  test('adjusted: a pace that refusals set, and its end, although the limit stays', () => {
    const sink = setUp({ adaptive: { max: 40 } });
    sink.listen();
    send(sink, 5_000);
    const known = adjusted(sink).length;
    send(sink, 7_000, () => 'busy');
    const cuts = adjusted(sink).slice(known);
    expect(new Set(cuts.map(({ cause }) => cause))).toEqual(new Set(['refusal']));
    expect(cuts.some(({ from, to }) => from === to)).toBe(true);
    expect(cuts[0].pacePerSecond).toBeGreaterThan(0);
    expect(sink.api.inspect('db').pacePerSecond).toBeLessThan(cuts[0].pacePerSecond as number);
    send(sink, 60_000);
    expect(sink.api.inspect('db').pacePerSecond).toBeUndefined();
    const paces = adjusted(sink).slice(known + cuts.length);
    const lifted = paces.filter(({ pacePerSecond }) => pacePerSecond === undefined);
    expect(lifted[0]).toMatchObject({ key: 'db', cause: 'success' });
  });

  test('adjusted: silence halves the limit', () => {
    const sink = setUp({ adaptive: { max: 40 } });
    send(sink, 5_000);
    const { limit = 0 } = sink.api.inspect('db');
    sink.listen();
    send(sink, 7_000, () => 'timeout');
    const [first] = adjusted(sink);
    expect(first).toMatchObject({ from: limit, cause: 'silence' });
    expect(first.to).toBeLessThanOrEqual(limit / 2);
  });

  test('prometheus: adjustments by cause, base RTT, knee and pace; opentelemetry: the same', async () => {
    const sink = setUp({ adaptive: { max: 40 } });
    const metrics = prometheus(sink.api);
    const { meter, collect } = meterOf();
    instrument(sink.api, { meter });
    send(sink, 15_000); // with a test
    send(sink, 17_000, () => 'busy');
    const text = metrics.text();
    parseExposition(text);
    const { baseRttMs = 0, knee, pacePerSecond } = sink.api.inspect('db');
    const key = { limit: 'sink', key: 'db' };
    expect(sampleValue(text, 'sluice_base_rtt_seconds', key)).toBe(baseRttMs / 1000);
    expect(sampleValue(text, 'sluice_knee', key)).toBe(knee);
    expect(sampleValue(text, 'sluice_pace', key)).toBe(pacePerSecond);
    const adjustments = (cause: string) =>
      sampleValue(text, 'sluice_limit_adjustments_total', { limit: 'sink', cause });
    expect(adjustments('start')).toBeGreaterThan(2);
    expect(adjustments('refusal')).toBeGreaterThan(0);
    const found = await collect();
    const points = (name: string) =>
      found.find(({ descriptor }) => descriptor.name === name)?.dataPoints ?? [];
    expect(points('sluice.knee')).toMatchObject([{ attributes: key, value: knee }]);
    expect(
      points('sluice.limit_adjustments').map(({ attributes, value }) => ({ attributes, value })),
    ).toContainEqual({
      attributes: { limit: 'sink', cause: 'refusal' },
      value: adjustments('refusal'),
    });
  });

  test('prometheus: a limit of another kind has none of these series', () => {
    const sink = setUp({ concurrency: 4 });
    const metrics = prometheus(sink.api);
    send(sink, 100);
    expect(metrics.text()).not.toMatch(/sluice_(base_rtt|knee|pace|limit_adjustments)/);
  });

  test('logLimiting: refusals and silence are logged with the pace, tests are not', () => {
    const sink = setUp({ adaptive: { max: 40 } });
    const lines: string[] = [];
    const stop = logLimiting(
      sink.api,
      { warn: (message) => lines.push(message) },
      { events: ['decreased'] },
    );
    send(sink, 25_000);
    expect(lines).toEqual([]);
    send(sink, 27_000, () => 'busy');
    stop();
    expect(lines[0]).toMatch(
      /^limit "sink": decreased by back-pressure; last key "db", from \d+ to \d+, pace [\d.]+\/s$/,
    );
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
    const { meter, collect } = meterOf();
    const sink = setUp({ all: [{ bucket: { rate: 100, burst: 100 } }, SINK] });
    const metrics = prometheus(sink.api);
    instrument(sink.api, { meter });
    traffic(sink);
    const found = await collect();
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
  const SETTLED = { willSettle: true } as const;
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
      expect(api.check('alice', 1, SETTLED).verdict).toBe('allow');
      clock.advance(100);
    }
    expect(api.check('alice', 1, SETTLED)).toEqual({
      verdict: 'deny',
      retryAfterMs: 700,
      rule: 'bucket-2',
    });
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
    expect(lone.api.check('a', 1, SETTLED)).toEqual({
      verdict: 'deny',
      retryAfterMs: 0,
      rule: 'concurrency',
    });
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
    for (let n = 0; n < 3; n++) two.api.check('b', 1, SETTLED);
    expect(both.stats().deniedByRule).toEqual({ bucket: 1 });
  });

  test('logLimiting: names the rule of the last denial', () => {
    const { api } = setUp(LIMIT, 'api');
    const lines: string[] = [];
    logLimiting(api, { warn: (message) => lines.push(message) });
    for (let n = 0; n < 3; n++) api.check('alice', 1, SETTLED);
    expect(lines).toEqual(['limit "api": 1 denied; last key "alice", by bucket, retry in 100 ms']);
  });
});
