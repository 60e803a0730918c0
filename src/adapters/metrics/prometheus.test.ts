import { describe, expect, test, vi } from 'vitest';
import { parseExposition, sampleValue } from '../../../test/support/exposition.ts';
import { ConfigError } from '../../core/errors.ts';
import { counter, gauge } from '../../core/metric-family.ts';
import { limiter } from '../../limiter/limiter.ts';
import type { Limiter } from '../../limiter/limiter-interface.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { prometheus, renderMetricFamilies } from './prometheus.ts';

const bucket = { bucket: { rate: '10/s', burst: 3 } } as const;
const make = (name: string, clock = new VirtualClock()): Limiter =>
  limiter({ name, limit: bucket, clock });
const learner = (name = 'sink', clock = new VirtualClock()): Limiter =>
  limiter({ name, limit: { adaptive: { initial: 4 } }, clock });

/** One call from check to settle. */
function call(api: Limiter, key: string, rttMs = 10): void {
  api.check(key, 1, { willSettle: true });
  api.settle(key, { rttMs });
}

/** The lines of one family, without its buckets. */
const linesOf = (text: string, family: string): string[] =>
  text.split('\n').filter((line) => line.startsWith(family) && !line.includes('_bucket'));

describe('prometheus', () => {
  test('ramp and spacing: tokens, use, reservations and configured limits', () => {
    const clock = new VirtualClock();
    const ramp = limiter({
      name: 'ramp',
      limit: { ramp: { min: 10, max: 60, over: '10s' } },
      clock,
    });
    const spaced = limiter({
      name: 'spaced',
      limit: {
        all: [{ spacing: { every: '1s', reserve: 5 } }, { bucket: { rate: '9/s', burst: 9 } }],
      },
      clock,
    });
    const slots = limiter({
      name: 'slots',
      limit: { spacing: { every: '1s', reserve: 5 } },
      clock,
    });
    const metrics = prometheus([ramp, spaced, slots]);
    ramp.check('topic', 4);
    for (let n = 0; n < 3; n++) slots.check('job');
    const text = metrics.text();
    for (const line of [
      'sluice_ramp_tokens{limit="ramp",key="topic"} 10',
      'sluice_ramp_used{limit="ramp",key="topic"} 4',
      'sluice_spacing_reserved{limit="slots",key="job"} 2',
      'sluice_quota{limit="spaced",rule="bucket"} 9',
      'sluice_quota{limit="spaced",rule="spacing"} 1',
    ])
      expect(text).toContain(`${line}\n`);
    expect(linesOf(text, 'sluice_limit{')).toEqual([]);
  });

  test('encodes all metrics of a limiter exactly as in the golden text', async () => {
    const clock = new VirtualClock();
    const api = limiter({ name: 'api', limit: bucket, clock });
    const metrics = prometheus(api);

    api.check('alice', 3); //                       allowed
    api.check('alice', 1); //                       denied: the bucket is empty
    const late = api.acquire('alice', 2); //      waits 200 ms
    const cancel = new AbortController();
    const cancelled = api.acquire('alice', 1, { signal: cancel.signal }).catch(() => 'cancelled');
    await clock.advanceAsync(50);
    cancel.abort();
    expect(await cancelled).toBe('cancelled');
    await clock.advanceAsync(150);
    const permit = await late; //                 allowed after a wait
    await clock.advanceAsync(30);
    if (permit.verdict === 'allow') permit.settle(); // ok, after 30 ms
    api.tryAcquire('bob'); //                     allowed, and held

    expect(parseExposition(metrics.text()).length).toBe(14);
    expect(metrics.text()).toBe(GOLDEN.replace('BYTES', String(api.stats().bytes)));
    expect(metrics.contentType).toBe('text/plain; version=0.0.4; charset=utf-8');
  });

  test('counts the slots that check reserved ahead, and not the calls that waited', async () => {
    const clock = new VirtualClock();
    const limit = { spacing: { every: '1s', reserve: 2 } } as const;
    const token = limiter({ name: 'token', limit, clock });
    const metrics = prometheus(token);
    for (let n = 0; n < 4; n++) token.check('a'); // allow, wait, wait, deny
    const late = token.acquire('b', 1);
    const later = token.acquire('b', 1);
    await clock.advanceAsync(2000);
    expect((await Promise.all([late, later])).map(({ verdict }) => verdict)).toEqual([
      'allow',
      'allow',
    ]);
    expect(sampleValue(metrics.text(), 'sluice_reserved_total', { limit: 'token' })).toBe(2);
  });

  test('histogram buckets are cumulative and include their bound', () => {
    const sink = learner();
    const metrics = prometheus(sink);
    for (const rttMs of [0.4, 1, 1.1, 99, 70_000]) call(sink, 'db', rttMs);
    const text = metrics.text();
    const name = 'sluice_rtt_duration_seconds';
    const below = (le: string): number =>
      sampleValue(text, `${name}_bucket`, { limit: 'sink', outcome: 'ok', le });
    expect([below('0.001'), below('0.0025'), below('0.05'), below('0.1')]).toEqual([2, 3, 3, 4]);
    expect([below('60'), below('+Inf')]).toEqual([4, 5]);
    const ok = { limit: 'sink', outcome: 'ok' };
    expect(sampleValue(text, `${name}_count`, ok)).toBe(5);
    expect(sampleValue(text, `${name}_sum`, ok)).toBeCloseTo(70.1015, 9);
  });

  test('exports round-trip times of every outcome that has occurred, and of ok', () => {
    const api = limiter({ name: 'api', limit: bucket, clock: new VirtualClock() });
    const metrics = prometheus(api);
    const name = 'sluice_rtt_duration_seconds';
    const outcomes = (): unknown[] =>
      linesOf(metrics.text(), `${name}_count`).map((line) => /outcome="(\w+)"} (\d+)/.exec(line));
    expect(outcomes()).toMatchObject([{ 1: 'ok', 2: '0' }]);
    for (const outcome of ['busy', 'timeout', 'timeout', 'failed', 'ignored'] as const)
      api.settle('db', { outcome, rttMs: 1000 });
    api.settle('db', { outcome: 'busy' }); // not timed
    expect(outcomes()).toMatchObject([
      { 1: 'ok', 2: '0' },
      { 1: 'busy', 2: '1' },
      { 1: 'timeout', 2: '2' },
      { 1: 'failed', 2: '1' },
      { 1: 'ignored', 2: '1' },
    ]);
    const timeouts = { limit: 'api', outcome: 'timeout' };
    expect(sampleValue(metrics.text(), `${name}_sum`, timeouts)).toBe(2);
  });

  test('exports a limit that learns for each key', () => {
    const sink = learner();
    const metrics = prometheus(sink);
    call(sink, 'db');
    call(sink, 'cache');
    sink.check('cache', 1, { willSettle: true });
    expect(linesOf(metrics.text(), 'sluice_limit{')).toEqual([
      'sluice_limit{limit="sink",key="db"} 4',
      'sluice_limit{limit="sink",key="cache"} 4',
    ]);
    expect(linesOf(metrics.text(), 'sluice_in_flight{')).toEqual([
      'sluice_in_flight{limit="sink",key="db"} 0',
      'sluice_in_flight{limit="sink",key="cache"} 1',
    ]);
  });

  test('busy: exports a limit for each key, and permits in total', () => {
    const peer = limiter({ name: 'peer', limit: { busy: {} }, clock: new VirtualClock() });
    const metrics = prometheus(peer);
    peer.tryAcquire('b');
    for (let n = 0; n < 8; n++) peer.check('a', 1, { willSettle: true });
    peer.settle('a', { outcome: 'busy' });
    expect(linesOf(metrics.text(), 'sluice_limit{')).toEqual([
      'sluice_limit{limit="peer",key="a"} 4',
    ]);
    expect(linesOf(metrics.text(), 'sluice_in_flight')).toEqual([
      'sluice_in_flight{limit="peer"} 1',
    ]);
  });

  test('reports at most maxKeys keys, and none for 0', () => {
    const sink = learner();
    const some = prometheus(sink, { maxKeys: 2 });
    const none = prometheus(sink, { maxKeys: 0 });
    for (let n = 0; n < 50; n++) call(sink, `key ${n}`);
    const keys = linesOf(some.text(), 'sluice_limit{');
    expect(keys.map((line) => /key="(.*)"/.exec(line)?.[1])).toEqual(['key 0', 'key 1']);
    expect(linesOf(none.text(), 'sluice_limit{')).toEqual([]);
    expect(linesOf(none.text(), 'sluice_in_flight{')).toEqual(['sluice_in_flight{limit="sink"} 0']);
  });

  test('escapes label values: every name and key is decoded unchanged', () => {
    const names = ['say "hi"', 'C:\\new', 'two\nlines', '日本', '{a="b"} 1', '\\n', '\\'];
    const sinks = names.map((name) => learner(name));
    const metrics = prometheus(sinks);
    for (const sink of sinks) for (const key of names) call(sink, key);
    const family = parseExposition(metrics.text()).find(({ name }) => name === 'sluice_limit');
    const expected = names.flatMap((limit) => names.map((key) => ({ limit, key })));
    expect(family?.samples.map(({ labels }) => labels)).toEqual(expected);
  });

  test('attaches listeners only to limits that learn; with maxKeys 0 for their histograms alone', () => {
    const [plain, sink] = [make('api'), learner()];
    const [onPlain, onSink] = [vi.spyOn(plain, 'on'), vi.spyOn(sink, 'on')];
    const rates = limiter({ name: 'busy', limit: { busy: {} }, clock: new VirtualClock() });
    const onRates = vi.spyOn(rates, 'on');
    prometheus([plain, sink]);
    prometheus([sink, rates], { maxKeys: 0 });
    expect(onPlain).not.toHaveBeenCalled();
    expect(onRates).toHaveBeenCalledTimes(1); // busy has a histogram too
    expect(onSink).toHaveBeenCalledTimes(2);
  });

  test('adds and removes limiters', () => {
    const [one, other] = [learner('one'), learner('other')];
    const metrics = prometheus([]);
    expect(metrics.text()).toBe('');
    metrics.add(one);
    metrics.add(other);
    call(one, 'a');
    expect(linesOf(metrics.text(), 'sluice_waiting')).toHaveLength(2);
    metrics.remove(one);
    expect(linesOf(metrics.text(), 'sluice_waiting')).toEqual(['sluice_waiting{limit="other"} 0']);
    metrics.add(one);
    expect(linesOf(metrics.text(), 'sluice_limit{')).toEqual([]); // its keys are forgotten
    metrics.stop();
    expect(metrics.text()).toBe('');
  });

  test('remove: detaches the listener once', () => {
    const sink = learner();
    const stop = vi.fn();
    vi.spyOn(sink, 'on').mockReturnValue(stop);
    const metrics = prometheus(sink);
    metrics.remove(sink);
    metrics.remove(sink);
    expect(stop).toHaveBeenCalledTimes(1);
  });

  test('refuses a second limiter of the same name', () => {
    const same =
      /expected `limiters\[1\]\.name` to be a name that no other exported limiter has, got "api"/;
    expect(() => prometheus([make('api'), make('api')])).toThrow(same);
    const metrics = prometheus(make('api'));
    expect(() => metrics.add(make('api'))).toThrow(ConfigError);
    expect(() => prometheus([make('a\ud800'), make('a\udfff')])).toThrow(ConfigError);
    parseExposition(metrics.text());
  });

  test('detaches all listeners when it throws', () => {
    const sink = learner('api');
    const stop = vi.fn();
    vi.spyOn(sink, 'on').mockReturnValue(stop);
    expect(() => prometheus([sink, make('api')])).toThrow(ConfigError);
    expect(stop).toHaveBeenCalledTimes(1);
  });

  test.each([
    ['an object that is no limiter', [{}], {}, /`limiters\[0\]` to be a limiter/],
    ['undefined', undefined, {}, /`limiters\[0\]` to be a limiter, got undefined/],
    ['a misspelt option', [], { maxKey: 3 }, /`maxKey` to be one of maxKeys/],
    ['a negative maxKeys', [], { maxKeys: -1 }, /`maxKeys` to be a whole number of at least 0/],
  ])('refuses %s', (_what, limiters, options, message) => {
    expect(() => prometheus(limiters as never, options as never)).toThrow(message);
  });
});

describe('renderMetricFamilies', () => {
  test('escapes labels and help texts, and leaves out families without samples', () => {
    const families = [
      counter('a_total', 'Two\nlines, one \\.', [[{ peer: 'say "hi" \\ \n' }, 2]]),
      gauge('b', 'One.', 1),
      gauge('c', 'None.', []),
      gauge('d', 'Unbounded.', Number.POSITIVE_INFINITY),
    ];
    expect(renderMetricFamilies(families).split('\n')).toEqual([
      String.raw`# HELP a_total Two\nlines, one \\.`,
      '# TYPE a_total counter',
      String.raw`a_total{peer="say \"hi\" \\ \n"} 2`,
      '# HELP b One.',
      '# TYPE b gauge',
      'b 1',
      '# HELP d Unbounded.',
      '# TYPE d gauge',
      'd +Inf',
      '',
    ]);
  });
});

describe('parseExposition, which these tests rely on', () => {
  const head = '# HELP a_total What.\n# TYPE a_total counter\n';
  const histogram = '# HELP h What.\n# TYPE h histogram\n';
  const sumAndCount = 'h_sum 1\nh_count 2\n';

  test('accepts valid text', () => {
    const text = `${head}a_total{x="\\\\ \\" \\n"} 1\na_total{x="}"} 2.5e+21\n`;
    expect(parseExposition(text)[0].samples.map(({ labels, value }) => [labels.x, value])).toEqual([
      ['\\ " \n', 1],
      ['}', 2.5e21],
    ]);
    parseExposition(`${histogram}h_bucket{le="1"} 1\nh_bucket{le="+Inf"} 2\n${sumAndCount}`);
  });

  test.each([
    ['a line without an end', `${head}a_total 1`],
    ['values without a head', 'a_total 1\n'],
    ['a head without values', head],
    ['a family torn apart', `${head}a_total{x="1"} 1\n${head}a_total{x="2"} 1\n`],
    ['a series twice', `${head}a_total{x="1",y="2"} 1\na_total{y="2",x="1"} 1\n`],
    ['a label twice', `${head}a_total{x="1",x="2"} 1\n`],
    ['a quote in a label', `${head}a_total{x="""} 1\n`],
    ['an unknown escape', `${head}a_total{x="\\t"} 1\n`],
    ['a value that is none', `${head}a_total Infinity\n`],
    ['a counter below zero', `${head}a_total -1\n`],
    ['a counter by another name', '# HELP a What.\n# TYPE a counter\na 1\n'],
    ['buckets without +Inf', `${histogram}h_bucket{le="1"} 2\n${sumAndCount}`],
    [
      'buckets that shrink',
      `${histogram}h_bucket{le="1"} 3\nh_bucket{le="+Inf"} 2\n${sumAndCount}`,
    ],
    ['bounds that shrink', `${histogram}h_bucket{le="+Inf"} 1\nh_bucket{le="1"} 2\n${sumAndCount}`],
    ['a count unlike its last bucket', `${histogram}h_bucket{le="+Inf"} 1\n${sumAndCount}`],
    ['a histogram without sum', `${histogram}h_bucket{le="+Inf"} 1\nh_count 1\n`],
  ])('refuses %s', (_what, text) => {
    expect(() => parseExposition(text)).toThrow(/expected|end/);
  });
});

const GOLDEN = `\
# HELP sluice_decisions_total Decisions by verdict: allow (at once), wait (allowed after a wait), deny.
# TYPE sluice_decisions_total counter
sluice_decisions_total{limit="api",verdict="allow"} 2
sluice_decisions_total{limit="api",verdict="wait"} 1
sluice_decisions_total{limit="api",verdict="deny"} 1
# HELP sluice_limited_total Calls that were not allowed at once: they waited, were denied or cancelled.
# TYPE sluice_limited_total counter
sluice_limited_total{limit="api"} 3
# HELP sluice_reserved_total Slots that checks reserved ahead: decided wait.
# TYPE sluice_reserved_total counter
sluice_reserved_total{limit="api"} 0
# HELP sluice_cancelled_total Calls cancelled in the queue: their signal aborted.
# TYPE sluice_cancelled_total counter
sluice_cancelled_total{limit="api"} 1
# HELP sluice_expired_permits_total Permits that expired: not settled within permitTimeout.
# TYPE sluice_expired_permits_total counter
sluice_expired_permits_total{limit="api"} 0
# HELP sluice_settled_total Calls settled, by outcome.
# TYPE sluice_settled_total counter
sluice_settled_total{limit="api",outcome="ok"} 1
sluice_settled_total{limit="api",outcome="busy"} 0
sluice_settled_total{limit="api",outcome="timeout"} 0
sluice_settled_total{limit="api",outcome="failed"} 0
sluice_settled_total{limit="api",outcome="ignored"} 0
# HELP sluice_quota The configured limit of each rule: calls per window, or at once where there is no window.
# TYPE sluice_quota gauge
sluice_quota{limit="api",rule="bucket"} 10
# HELP sluice_in_flight Calls in flight: by key where the limit counts them, else all unsettled permits.
# TYPE sluice_in_flight gauge
sluice_in_flight{limit="api"} 1
# HELP sluice_waiting Calls that wait in the queue.
# TYPE sluice_waiting gauge
sluice_waiting{limit="api"} 0
# HELP sluice_keys Keys with state in memory.
# TYPE sluice_keys gauge
sluice_keys{limit="api"} 2
# HELP sluice_evicted_keys_total Keys evicted while in use: if this grows, maxKeys is too small.
# TYPE sluice_evicted_keys_total counter
sluice_evicted_keys_total{limit="api"} 0
# HELP sluice_memory_bytes Memory used for the state of keys.
# TYPE sluice_memory_bytes gauge
sluice_memory_bytes{limit="api"} BYTES
# HELP sluice_wait_duration_seconds How long calls waited that were allowed after a wait.
# TYPE sluice_wait_duration_seconds histogram
sluice_wait_duration_seconds_bucket{limit="api",le="0.001"} 0
sluice_wait_duration_seconds_bucket{limit="api",le="0.0025"} 0
sluice_wait_duration_seconds_bucket{limit="api",le="0.005"} 0
sluice_wait_duration_seconds_bucket{limit="api",le="0.01"} 0
sluice_wait_duration_seconds_bucket{limit="api",le="0.025"} 0
sluice_wait_duration_seconds_bucket{limit="api",le="0.05"} 0
sluice_wait_duration_seconds_bucket{limit="api",le="0.1"} 0
sluice_wait_duration_seconds_bucket{limit="api",le="0.25"} 1
sluice_wait_duration_seconds_bucket{limit="api",le="0.5"} 1
sluice_wait_duration_seconds_bucket{limit="api",le="1"} 1
sluice_wait_duration_seconds_bucket{limit="api",le="2.5"} 1
sluice_wait_duration_seconds_bucket{limit="api",le="5"} 1
sluice_wait_duration_seconds_bucket{limit="api",le="10"} 1
sluice_wait_duration_seconds_bucket{limit="api",le="30"} 1
sluice_wait_duration_seconds_bucket{limit="api",le="60"} 1
sluice_wait_duration_seconds_bucket{limit="api",le="+Inf"} 1
sluice_wait_duration_seconds_sum{limit="api"} 0.2
sluice_wait_duration_seconds_count{limit="api"} 1
# HELP sluice_rtt_duration_seconds Round-trip times of settled calls, by outcome; of another than ok from the first one on.
# TYPE sluice_rtt_duration_seconds histogram
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="0.001"} 0
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="0.0025"} 0
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="0.005"} 0
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="0.01"} 0
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="0.025"} 0
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="0.05"} 1
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="0.1"} 1
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="0.25"} 1
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="0.5"} 1
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="1"} 1
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="2.5"} 1
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="5"} 1
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="10"} 1
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="30"} 1
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="60"} 1
sluice_rtt_duration_seconds_bucket{limit="api",outcome="ok",le="+Inf"} 1
sluice_rtt_duration_seconds_sum{limit="api",outcome="ok"} 0.03
sluice_rtt_duration_seconds_count{limit="api",outcome="ok"} 1
`;
