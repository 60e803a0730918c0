import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { afterAll, describe, expect, test } from 'vitest';
import { createTempDir } from '../../../test/support/daemon.ts';
import { runCliAtAsync } from '../../../test/support/terminal.ts';
import { limiter } from '../../limiter/limiter.ts';
import { VirtualClock } from '../../testing/virtual-clock.ts';
import { run } from '../run.ts';
import { Progress } from './progress.ts';
import type { ReplayReport } from './report.ts';

const place = createTempDir();
afterAll(() => place.remove());

const MONTHS = 'Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec'.split(' ');
const START = Date.UTC(2026, 9, 10, 12);

/** The time in an access log, `seconds` after `START`. */
function clf(seconds: number): string {
  const [date, time] = new Date(START + seconds * 1000).toISOString().split('T');
  const [year, month, day] = date.split('-');
  return `${day}/${MONTHS[Number(month) - 1]}/${year}:${time.slice(0, 8)} +0000`;
}

const access = (ip: string, seconds: number, request = 'GET / HTTP/1.1', user = '-'): string =>
  `${ip} - ${user} [${clf(seconds)}] "${request}" 200 512 "-" "curl/8"`;

const lines = (...all: string[]): string => `${all.join('\n')}\n`;

async function replay(...words: string[]) {
  const { code, out, err } = await runCliAtAsync(100, ['replay', ...words]);
  return { code, out: out.join('\n'), err: err.join('\n') };
}

/** The report as JSON; the command must succeed. */
async function reportOf(...words: string[]): Promise<ReplayReport & Record<string, unknown>> {
  const { code, out, err } = await replay(...words, '--json');
  expect({ code, err: code === 0 ? '' : err }).toEqual({ code: 0, err: '' });
  return JSON.parse(out);
}

let files = 0;
/** A log file with this content. */
function log(content: string | Buffer): string {
  const path = join(place.path, `log-${++files}`);
  writeFileSync(path, content);
  return path;
}

/** alice sends 5 calls at once and 1 a minute later, bob one. */
const BURST = lines(
  ...Array.from({ length: 5 }, () => access('10.0.0.1', 0)),
  access('10.0.0.2', 1),
  access('10.0.0.1', 60),
);

const ONE_IN_30_S = 'bucket 1/30s burst 2';

describe('sluice replay: report', () => {
  test('says who was denied, how often and when', async () => {
    const report = await reportOf(log(BURST), '--limit', ONE_IN_30_S);
    expect(report).toMatchObject({
      limit: 'bucket 1/30s burst 2',
      key: 'ip',
      calls: 7,
      allowed: 4,
      denied: 3,
      keys: 2,
      deniedKeys: 1,
      from: '2026-10-10T12:00:00.000+00:00',
      to: '2026-10-10T12:01:00.000+00:00',
      callsPerKey: { p50: 1, p95: 6, max: 6 },
      top: [
        {
          key: '10.0.0.1',
          calls: 6,
          denied: 3,
          share: 0.5,
          firstDenied: '2026-10-10T12:00:00.000+00:00',
        },
      ],
    });
  });

  test('as text: summary, chart and table of keys', async () => {
    const { code, out, err } = await replay(log(BURST), '--limit', ONE_IN_30_S);
    expect(code).toBe(0);
    expect(out).toContain(
      '7 calls of 2 keys in 60 s, 2026-10-10 12:00:00 to 2026-10-10 12:01:00 +00:00',
    );
    expect(out).toMatch(/^denied +3, 42\.9 %$/m);
    expect(out).toMatch(/^denied keys +1 of 2, 50\.0 %$/m);
    expect(out).toMatch(/calls\/s {2}█ denied {2}░ calls/);
    expect(out).toMatch(/^10\.0\.0\.1 +6 +3 +50\.0 % +2026-10-10 12:00:00 +2026-10-10 12:00:00$/m);
    expect(err).toContain('times have whole seconds');
    for (const line of out.split('\n')) expect(line.length).toBeLessThanOrEqual(100);
  });

  test('--csv: a line for each denied key, and no formula for a spreadsheet', async () => {
    const calls = Array.from({ length: 2 }, () => access('10.0.0.1', 0, 'GET / HTTP/1.1', '=1+1'));
    const { out } = await replay(
      log(lines(...calls)),
      '--limit',
      'bucket 1/h burst 1',
      '--csv',
      '--key',
      'user',
    );
    expect(out.split('\n')).toEqual([
      'key,calls,denied,share,firstDenied,lastDenied',
      "'=1+1,2,1,0.5,2026-10-10T12:00:00.000+00:00,2026-10-10T12:00:00.000+00:00",
    ]);
  });

  test('timeline: counts every call, in at most 480 steps for a week', async () => {
    const week = Array.from({ length: 2000 }, (_, n) => access(`10.0.0.${n % 9}`, n * 302));
    const { timeline } = await reportOf(log(lines(...week)), '--limit', 'bucket 1/h burst 1');
    expect(timeline.calls.length).toBeLessThanOrEqual(480);
    expect(timeline.calls.reduce((sum, calls) => sum + calls, 0)).toBe(2000);
    expect(timeline.stepMs).toBe(1_800_000);
  });
});

describe('sluice replay: input', () => {
  test('gzip is recognised by its first bytes', async () => {
    const report = await reportOf(log(gzipSync(BURST)), '--limit', ONE_IN_30_S);
    expect(report).toMatchObject({ calls: 7, denied: 3 });
  });

  test('gzip of several members is read to its end', async () => {
    const [first, second] = [BURST.slice(0, 200), BURST.slice(200)];
    const report = await reportOf(
      log(Buffer.concat([gzipSync(first), gzipSync(second)])),
      '--limit',
      ONE_IN_30_S,
    );
    expect(report.calls).toBe(7);
  });

  test('truncated gzip: what was read is reported, and --max-bad 0 fails', async () => {
    const calls = Array.from({ length: 5000 }, (_, n) => access(`10.0.${n % 250}.${n % 7}`, n));
    const whole = gzipSync(lines(...calls));
    const path = log(whole.subarray(0, whole.length - 2000));
    const { code, err, out } = await replay(path, '--limit', ONE_IN_30_S, '--json');
    expect(code).toBe(0);
    expect(err).toContain('the gzip file is truncated or damaged (unexpected end of file)');
    expect(JSON.parse(out).calls).toBeGreaterThan(100);
    expect(await replay(path, '--limit', ONE_IN_30_S, '--max-bad', '0')).toMatchObject({ code: 1 });
  });

  test('a short truncated gzip file: the lines before its end are decided', async () => {
    const text = Array.from({ length: 300 }, (_, n) => access(`10.0.${n % 250}.${n % 7}`, n));
    const whole = gzipSync(lines(...text));
    const report = await reportOf(
      log(whole.subarray(0, whole.length - 10)),
      '--limit',
      ONE_IN_30_S,
    );
    expect(report.calls).toBeGreaterThan(250);
    expect(report.lines).toMatchObject({ bad: expect.any(Number) });
    expect(report.lines.problems.join()).toContain('truncated or damaged');
  });

  test('damaged gzip: what precedes the damage is decided, and the report says so', async () => {
    const text = Array.from({ length: 20_000 }, (_, n) => access(`10.0.${n % 250}.${n % 7}`, n));
    const whole = gzipSync(lines(...text));
    const path = log(Buffer.concat([whole, Buffer.from('no gzip')]));
    const report = await reportOf(path, '--limit', ONE_IN_30_S);
    expect(report.calls).toBeGreaterThan(5000);
    expect(report.lines.problems.join()).toContain('truncated or damaged (incorrect header check)');
  });

  test('CRLF, a byte order mark, blank lines and a last line without an end are read', async () => {
    const text = `\uFEFF${BURST.trimEnd().replaceAll('\n', '\r\n\r\n')}`;
    expect(await reportOf(log(text), '--limit', ONE_IN_30_S)).toMatchObject({
      calls: 7,
      denied: 3,
      lines: { bad: 0 },
    });
  });

  test('empty file: no calls, exit code 0', async () => {
    const { code, out } = await replay(log(''), '--limit', ONE_IN_30_S);
    expect(code).toBe(0);
    expect(out).toMatch(/^no calls\n/);
  });

  test('a line of 3 MB is skipped and counted, the next one is read', async () => {
    const long = access('10.0.0.1', 0, `GET /${'x'.repeat(3_000_000)} HTTP/1.1`);
    const path = log(lines(access('10.0.0.1', 0), long, access('10.0.0.1', 1)));
    const report = await reportOf(path, '--limit', ONE_IN_30_S);
    expect(report).toMatchObject({ calls: 2, lines: { read: 3, bad: 1 } });
    expect(report.lines.problems[0]).toBe(`${path}:2: longer than 1048576 bytes`);
  });

  test('binary junk between lines is counted, with line numbers of the first five', async () => {
    const junk = Buffer.from(Array.from({ length: 400 }, (_, n) => (n * 197) % 256)).toString(
      'latin1',
    );
    const bad = junk.replaceAll('\n', '').replaceAll('\r', '');
    const text = lines(
      access('10.0.0.1', 0),
      ...Array(6).fill(bad),
      access('10.0.0.1', 1),
      access('10.0.0.1', 2),
    );
    const path = log(Buffer.from(text, 'latin1'));
    const { code, err } = await replay(path, '--limit', ONE_IN_30_S, '--max-bad', '70%');
    expect(code).toBe(0);
    expect(err).toContain('6 of 9 lines cannot be read:');
    expect(err).toContain(`${path}:2: expected`);
    expect(err).toContain(`${path}:6: expected`);
    expect(err).not.toContain(`${path}:7:`);
    expect(err).toContain('and 1 more');
    expect((await replay(path, '--limit', ONE_IN_30_S)).code).toBe(1);
  });

  test('nothing but binary junk is a usage error that names --format', async () => {
    const { code, err } = await replay(
      log(Buffer.from([0, 1, 2, 255, 254, 10, 3])),
      '--limit',
      ONE_IN_30_S,
    );
    expect(code).toBe(2);
    expect(err).toMatch(/^sluice replay: .*cannot tell its format .*--format/);
  });

  test('another compression is a usage error that names its tool', async () => {
    const path = log(Buffer.from('\xfd7zXZ\0\0', 'latin1'));
    const { code, err } = await replay(path, '--limit', ONE_IN_30_S);
    expect(code).toBe(2);
    expect(err).toContain(`use: xzcat ${path} | sluice … -`);
  });

  test('several logs are merged by time, whatever their order', async () => {
    const hosts = [
      log(lines(access('a', 40), access('a', 80))),
      log(lines(access('a', 0), access('a', 60))),
      log(gzipSync(lines(access('a', 20), access('a', 100)))),
    ];
    // One call every 20 s, in time order: a limit of one in 20 s denies none.
    const report = await reportOf(...hosts, '--limit', 'spacing 20s', '--reorder', '0ms');
    expect(report).toMatchObject({ calls: 6, denied: 0, lines: { late: 0 } });
  });

  test('a file that does not exist, or is a directory, is a usage error', async () => {
    const missing = await replay(join(place.path, 'none'), '--limit', ONE_IN_30_S);
    expect(missing).toMatchObject({
      code: 2,
      err: expect.stringMatching(/cannot read .*none: ENOENT/),
    });
    const folder = await replay(place.path, '--limit', ONE_IN_30_S);
    expect(folder).toMatchObject({ code: 2, err: expect.stringContaining('it is a directory') });
  });
});

describe('sluice replay: formats', () => {
  test('common log format, and users with spaces', async () => {
    const common = `10.0.0.1 - John Doe [${clf(0)}] "GET /x HTTP/1.0" 200 12`;
    const report = await reportOf(
      log(lines(common, common)),
      '--limit',
      'bucket 1/h burst 1',
      '--key',
      'user',
    );
    expect(report.top).toMatchObject([{ key: 'John Doe', calls: 2, denied: 1 }]);
  });

  test('path has no query, url has it; escaped quotes do not end a request', async () => {
    const request = 'GET /a\\"b?c=1 HTTP/1.1';
    const path = log(lines(access('x', 0, request), access('x', 0, request)));
    const keyOf = async (key: string) =>
      (await reportOf(path, '--limit', 'bucket 1/h burst 1', '--key', key)).top[0].key;
    expect(await keyOf('path')).toBe('/a\\"b');
    expect(await keyOf('url')).toBe('/a\\"b?c=1');
    expect(await keyOf('{method} {status} {agent}')).toBe('GET 200 curl/8');
  });

  test('JSON lines: paths, numbers as keys, times in ISO and Unix', async () => {
    const text = lines(
      '{"ts":1791633600.5,"user":{"id":7}}',
      '{"ts":1791633600500,"user":{"id":7}}',
      '{"timestamp":"2026-10-10T14:00:00.500+02:00","user":{"id":7}}',
      '{"timestamp":"2026-10-10 12:00:00,5","user":{"id":7}}',
      '{"user":{"id":7}}',
      '[1]',
    );
    const report = await reportOf(log(text), '--limit', 'bucket 1/h burst 3', '--key', 'user.id');
    expect(report).toMatchObject({
      calls: 4,
      denied: 1,
      from: '2026-10-10T12:00:00.500+00:00',
      to: '2026-10-10T12:00:00.500+00:00',
      top: [{ key: '7' }],
      lines: { bad: 2 },
    });
    expect(report.lines.problems[0]).toContain('expected a field time (name it with --time)');
  });

  test('CSV with a header: names, quotes, another delimiter', async () => {
    const text = lines(
      'when;client;n',
      '2026-10-10T12:00:00Z;"a;""b""";2',
      '2026-10-10T12:00:01Z;"a;""b""";2',
    );
    const words = [
      '--limit',
      'bucket 1/h burst 3',
      '--key',
      'client',
      '--time',
      'when',
      '--cost',
      'n',
    ];
    const report = await reportOf(log(text), ...words);
    expect(report).toMatchObject({
      calls: 2,
      denied: 1,
      top: [{ key: 'a;"b"' }],
      lines: { bad: 0 },
    });
  });

  test('CSV without a header: column numbers, the time is found', async () => {
    const text = lines('a,1791633600', 'a,1791633601', 'b,1791633602');
    const report = await reportOf(log(text), '--limit', 'bucket 1/h burst 1', '--key', '1');
    expect(report).toMatchObject({ calls: 3, denied: 1, top: [{ key: 'a' }] });
  });

  test.each([
    [
      ['--key', 'ipp'],
      /expected a field of an access log, one of ip, user, .*got "ipp"; did you mean/,
    ],
    [['--key', '{ip'], /expected `--key` to be a template/],
    [['--key', ''], /expected `--key` to be fields such as ip/],
    [['--time', 'when'], /expected no `--time`/],
    [['--where', 'status'], /expected `--where` to be FIELD=VALUE/],
    [['--zone', 'Berlin'], /expected `--zone` to be an offset/],
    [['--format', 'xml'], /expected `--format` to be one of/],
    [['--max-bad', 'many'], /expected `--max-bad` to be a whole number or a percentage/],
    [['--reorder', 'soon'], /expected `--reorder` to be a time/],
    [['--limit', 'concurrency: 5'], /a log does not say when calls end/],
    [
      ['--config', 'x.yaml'],
      /expected one of --limit, --config and --suggest, got --limit and --config/,
    ],
  ])('%j is a usage error in one line, exit code 2', async (words, message) => {
    const { code, err } = await replay(log(BURST), '--limit', ONE_IN_30_S, ...words);
    expect(err).toMatch(message);
    expect(err.split('\n')).toHaveLength(1);
    expect(code).toBe(2);
  });

  test.each([
    ['bucket 10/s burst 20', 0],
    ['bucket: { rate: 10/s, burst: 20 }', 0],
    ['{ "bucket": { "rate": "1/h", "burst": 1 } }', 5],
    ['window 2 per 1m', 4],
    ['spacing 1s', 4],
    ['quota 2 per minute', 3],
    ['quota 2 per day', 4],
    ['lockout 3 lock 30s', 2],
  ])('--limit %j is read, and denies %i calls', async (text, denied) => {
    expect((await reportOf(log(BURST), '--limit', text)).denied).toBe(denied);
  });

  test('--limit: several must all allow', async () => {
    const words = ['--limit', 'bucket 10/s burst 20', '--limit', 'bucket 1/h burst 4'];
    expect(await reportOf(log(BURST), ...words)).toMatchObject({ denied: 2 });
  });

  test('--limit: a misspelt rule or option, and a duration without a unit, is named', async () => {
    const err = async (text: string) => (await replay(log(BURST), '--limit', text)).err;
    expect(await err('bucket 10/s brst 20')).toMatch(/`--limit.bucket.brst`/);
    expect(await err('buckt 10/s')).toMatch(/expected `--limit` to be a limit such as/);
    expect(await err('bucket')).toMatch(/expected `--limit` to have options after bucket/);
    for (const text of ['window 100 per 60', 'window: { limit: 100, per: 60 }'])
      expect(await err(text)).toMatch(
        /expected `--limit.window.per` to be a duration with a unit, got 60; .* write "60s" or "60ms"/,
      );
  });
});

describe('sluice replay: keys and conditions', () => {
  const mixed = lines(
    access('10.0.0.1', 0, 'GET /api/a HTTP/1.1', 'alice'),
    access('10.0.0.1', 0, 'GET /img/b HTTP/1.1', 'alice'),
    access('10.0.0.1', 0, 'POST /api/a HTTP/1.1'),
    access('10.0.0.1', 0, 'POST /api/a HTTP/1.1'),
  );

  test('a line without the field has no key and is counted; user|ip takes the first', async () => {
    const strict = ['--limit', 'bucket 1/h burst 1', '--key'];
    expect(await reportOf(log(mixed), ...strict, 'user')).toMatchObject({
      calls: 2,
      lines: { withoutKey: 2 },
    });
    const either = await reportOf(log(mixed), ...strict, 'user|ip');
    expect(either.top.map(({ key }) => key)).toEqual(['alice', '10.0.0.1']);
  });

  test('--key *: one key for all lines', async () => {
    const report = await reportOf(log(BURST), '--limit', 'bucket 1/h burst 4', '--key', '*');
    expect(report).toMatchObject({ keys: 1, denied: 3, top: [{ key: '*' }] });
  });

  test('no line has the key: a usage error that names the fields of the first line', async () => {
    const text = lines('{"ts":1791633600,"remote_addr":"10.0.0.1"}');
    const { code, err } = await replay(log(text), '--limit', ONE_IN_30_S);
    expect(code).toBe(2);
    expect(err).toContain('got none; the first line has ts, remote_addr');
  });

  test('--where leaves lines out; all conditions must hold', async () => {
    const words = ['--limit', ONE_IN_30_S, '--where', 'path=/api/*', '--where', 'method!=GET'];
    expect(await reportOf(log(mixed), ...words)).toMatchObject({ calls: 2, lines: { leftOut: 2 } });
  });

  test('--max-keys: calls of further keys are left out and counted', async () => {
    const many = Array.from({ length: 3000 }, (_, n) => access(`10.0.${n >> 8}.${n & 255}`, n));
    const report = await reportOf(
      log(lines(...many, ...many.slice(0, 5))),
      '--limit',
      ONE_IN_30_S,
      '--max-keys',
      '2000',
    );
    expect(report).toMatchObject({ calls: 2005, keys: 2000, lines: { ofFurtherKeys: 1000 } });
  });

  test('keys in UTF-8 are shown as text, control characters are not obeyed', async () => {
    const evil = '{"ts":1791633600,"ip":"grüße\\u001b[2J"}';
    const { out } = await replay(log(lines(evil, evil)), '--limit', 'bucket 1/h burst 1');
    expect(out).toContain('grüße\\u001b[2J');
  });
});

describe('sluice replay: time', () => {
  test('zones: the same instant in another zone is the same time; the report keeps the zone of the first line', async () => {
    const at = (time: string) => `x - - [${time}] "GET / HTTP/1.1" 200 1`;
    const text = lines(
      at('10/Oct/2026:23:59:59 +0200'),
      at('10/Oct/2026:14:59:59 -0700'),
      at('10/Oct/2026:22:00:00 +0000'),
    );
    const report = await reportOf(log(text), '--limit', 'spacing 1s');
    expect(report).toMatchObject({
      denied: 1,
      spanMs: 1000,
      to: '2026-10-11T00:00:00.000+02:00',
    });
  });

  test('daylight saving time: the repeated hour is two hours', async () => {
    const at = (time: string) => `x - - [${time}] "GET / HTTP/1.1" 200 1`;
    const text = lines(
      at('25/Oct/2026:02:59:59 +0200'),
      at('25/Oct/2026:02:00:00 +0100'),
      at('25/Oct/2026:02:59:59 +0100'),
    );
    const report = await reportOf(log(text), '--limit', 'spacing 1h');
    expect(report).toMatchObject({ denied: 1, spanMs: 3_600_000, lines: { late: 0 } });
  });

  test('--zone is for times that have none', async () => {
    const text = lines('{"time":"2026-10-10T12:00:00","ip":"a"}');
    const report = await reportOf(log(text), '--limit', ONE_IN_30_S, '--zone=-07:00');
    expect(report.from).toBe('2026-10-10T12:00:00.000-07:00');
  });

  test('lines out of order within --reorder are sorted, and decide as if they were', async () => {
    const order = [0, 2, 1, 4, 3, 9, 5, 8, 6, 7];
    const text = lines(...order.map((second) => access('x', second)));
    const sorted = await reportOf(log(text), '--limit', 'spacing 1s');
    expect(sorted).toMatchObject({ calls: 10, denied: 0, lines: { late: 0 } });
  });

  test('a line further back is decided late, counted and reported', async () => {
    const text = lines(access('x', 3600), access('x', 3700), access('x', 0), access('x', 3800));
    const { out, err } = await replay(log(text), '--limit', 'spacing 50s', '--json');
    expect(JSON.parse(out)).toMatchObject({
      calls: 4,
      denied: 1,
      lines: { late: 1, furthestLateMs: 3_700_000 },
    });
    expect(err).toContain(
      '1 line further out of order than --reorder, up to 61.7 min: decided late',
    );
  });

  test.each([
    '32/Oct/2026:12:00:00 +0000',
    '10/Foo/2026:12:00:00 +0000',
    '10/Oct/2026:24:00:00 +0000',
    '10/Oct/2026:12:60:00 +0000',
    '10/Oct/2026:12:00:00',
  ])('the time %s is a bad line', async (time) => {
    const text = lines(access('x', 0), access('x', 1), `x - - [${time}] "GET / HTTP/1.1" 200 1`);
    expect(await reportOf(log(text), '--limit', ONE_IN_30_S)).toMatchObject({
      calls: 2,
      lines: { bad: 1 },
    });
  });
});

describe('sluice replay: decisions', () => {
  const limits = [
    { text: 'bucket 2/s burst 3', limit: { bucket: { rate: '2/s', burst: 3 } } },
    { text: 'window 4 per 2s', limit: { window: { limit: 4, per: '2s' } } },
    { text: 'spacing 300ms', limit: { spacing: { every: '300ms' } } },
    { text: 'ramp min 1 max 5 over 10s', limit: { ramp: { min: 1, max: 5, over: '10s' } } },
  ] as const;
  const call = fc.record({
    gapMs: fc.integer({ min: 0, max: 700 }),
    key: fc.constantFrom('a', 'b', 'c', 'ü'),
    cost: fc.integer({ min: 0, max: 3 }),
  });

  test.each(limits)('$text: equal a limiter on a virtual clock fed line by line', async (own) => {
    await fc.assert(
      fc.asyncProperty(fc.array(call, { minLength: 1, maxLength: 60 }), async (calls) => {
        const clock = new VirtualClock(START);
        const api = limiter({ limit: own.limit, clock });
        const denied = new Map<string, number>();
        const text = calls.map(({ gapMs, key, cost }) => {
          clock.advance(gapMs);
          if (api.check(key, cost).verdict === 'deny') denied.set(key, (denied.get(key) ?? 0) + 1);
          return JSON.stringify({ time: clock.now(), key, cost });
        });
        const words = ['--limit', own.text, '--key', 'key', '--cost', 'cost'];
        const report = await reportOf(log(lines(...text)), ...words);
        expect(new Map(report.top.map((row) => [row.key, row.denied]))).toEqual(denied);
      }),
      { numRuns: 25 },
    );
  });

  test('a shuffle within --reorder changes no decision', async () => {
    const arbitrary = fc.array(fc.integer({ min: 0, max: 5000 }), { minLength: 1, maxLength: 60 });
    await fc.assert(
      fc.asyncProperty(arbitrary, async (times) => {
        const line = (at: number) => JSON.stringify({ time: START + at, ip: 'x' });
        const words = ['--limit', 'bucket 5/s burst 2'];
        const inOrder = times.toSorted((a, b) => a - b);
        const sorted = await reportOf(log(lines(...inOrder.map(line))), ...words);
        const shuffled = await reportOf(log(lines(...times.map(line))), ...words);
        expect(shuffled.denied).toBe(sorted.denied);
        expect(shuffled.lines.late).toBe(0);
      }),
      { numRuns: 25 },
    );
  });

  test('reservations wait instead of being denied', async () => {
    const report = await reportOf(log(BURST), '--limit', 'spacing every 2s reserve 2');
    expect(report).toMatchObject({ denied: 2, waited: 2, allowed: 5 });
  });
});

describe('sluice replay --config', () => {
  const config = (name: string, text: string): string => place.file(name, text);
  const traffic = lines(
    ...Array.from({ length: 4 }, () => access('10.0.0.1', 0)),
    ...Array.from({ length: 4 }, () => access('10.0.0.2', 0)),
    access('10.0.0.3', 0),
  );

  test('routes by key: override, deny list, always limit, shadow', async () => {
    const file = config(
      'routes.yaml',
      `deny: [ip:10.0.0.3]
limits:
  per-ip:
    match: ip:*
    bucket: { rate: 1/h, burst: 2 }
    overrides: [{ match: ip:10.0.0.2, bucket: { rate: 1/h, burst: 3 } }]
  total: { bucket: { rate: 100/s, burst: 100 }, always: true, per: limit }
  trial: { match: ip:*, bucket: { rate: 1/h, burst: 1 }, always: true, shadow: true }
`,
    );
    const report = await reportOf(log(traffic), '--config', file, '--key', 'ip:{ip}');
    expect(report).toMatchObject({ calls: 9, denied: 4, deniedKeys: 3 });
    expect(Object.fromEntries(report.top.map(({ key, denied }) => [key, denied]))).toEqual({
      'ip:10.0.0.1': 2,
      'ip:10.0.0.2': 1,
      'ip:10.0.0.3': 1,
    });
    expect(report.limits).toEqual([
      expect.objectContaining({ name: 'per-ip', denied: 2 }),
      expect.objectContaining({ name: expect.stringMatching(/^per-ip\[/), denied: 1 }),
      expect.objectContaining({ name: 'total', denied: 0 }),
      expect.objectContaining({ name: 'trial', denied: 3, shadow: true }),
      { name: 'deny-list', allowed: 0, denied: 1 },
    ]);
  });

  test('a limit on a remote backend decides here, without a connection', async () => {
    const file = config(
      'redis.yaml',
      'limits: { a: { bucket: { rate: 1/h, burst: 3 }, redis: "redis://127.0.0.1:1" } }\n',
    );
    const { code, err, out } = await replay(log(traffic), '--config', file, '--json');
    expect({ code, err: code === 0 ? '' : err }).toEqual({ code: 0, err: '' });
    expect(JSON.parse(out)).toMatchObject({ denied: 2 });
  });

  test('a limit on calls in flight is not replayed, and says so', async () => {
    const file = config('flight.yaml', 'limits: { a: { concurrency: 1 } }\n');
    const { code, out } = await replay(log(traffic), '--config', file);
    expect(code).toBe(0);
    expect(out).toContain('a (calls in flight, not replayed)');
    expect(out).toContain('no key was denied');
  });

  test('a configuration with mistakes is a usage error with line and column', async () => {
    const file = config('bad.yaml', 'limits: { a: { bucket: { rate: 0 } } }\n');
    const { code, err } = await replay(log(traffic), '--config', file);
    expect(code).toBe(2);
    expect(err).toMatch(/bad\.yaml:1:\d+: expected `limits\.a\.bucket\.rate`/);
  });
});

describe('sluice replay --suggest', () => {
  test('throttles at most so many of the keys, as the replay of the suggestion shows', async () => {
    // 100 clients: number n makes n calls at once, every ten minutes.
    const calls = [0, 600, 1200].flatMap((second) =>
      Array.from({ length: 100 }, (_, n) => Array(n + 1).fill(access(`c${n}`, second))).flat(),
    );
    for (const percent of [0, 1, 5, 20]) {
      const report = await reportOf(log(lines(...calls)), '--suggest', `${percent}%`);
      expect(report.deniedKeys).toBeLessThanOrEqual(percent);
      // A lower burst at this rate would throttle more: the suggestion is tight.
      const { rate, burst } = report.suggestion as { rate: string; burst: number };
      const tighter = await reportOf(
        log(lines(...calls)),
        '--limit',
        `bucket ${rate} burst ${burst - 1}`,
      );
      expect(tighter.deniedKeys).toBeGreaterThan(percent);
    }
  });

  test('prints the suggestion and its verification', async () => {
    const { code, out } = await replay(log(BURST), '--suggest', '0%');
    expect(code).toBe(0);
    expect(out).toMatch(
      /^suggestion: bucket 1\/h burst 5$|^suggestion: bucket \d+\/\w burst \d+$/m,
    );
    expect(out).toContain('verified by replaying it: 0 of 2 keys denied, 0.0 %');
  });

  test.each([
    [['--suggest', '100%'], /expected `--suggest` to be a percentage/],
    [['--suggest', 'few'], /expected `--suggest` to be a percentage/],
  ])('%j is a usage error', async (words, message) => {
    expect(await replay(log(BURST), ...words)).toMatchObject({
      code: 2,
      err: expect.stringMatching(message),
    });
  });

  test('standard input cannot be read twice: a usage error', async () => {
    expect(await replay('-', '--suggest', '1%')).toMatchObject({
      code: 2,
      err: expect.stringContaining('reads the log twice'),
    });
  });

  test('a log without calls is a usage error', async () => {
    expect(await replay(log(''), '--suggest', '1%')).toMatchObject({ code: 2 });
  });
});

describe('sluice replay: progress', () => {
  const shownBy = (sizes: readonly (number | undefined)[]) => {
    const clock = new VirtualClock();
    const shown: string[] = [];
    const progress = new Progress({ progress: (words) => shown.push(words), columns: 100 }, clock);
    const logs = sizes.map((size) => ({ size, done: 0 }));
    return { clock, shown, progress, logs };
  };

  test('on a terminal: bytes done, lines per second, time left; ten times a second at most', () => {
    const { clock, shown, progress, logs } = shownBy([3_000_000, 1_000_000]);
    for (let n = 1; n <= 40; n++) {
      clock.advance(50);
      logs[0].done = n * 25_000;
      progress.update('replay', logs, n * 5000);
    }
    progress.end();
    expect(shown).toHaveLength(21);
    expect(shown[19]).toBe(
      'replay █████░░░░░░░░░░░░░░░ 25 %  1.0 MB of 4.0 MB, 100,000 lines/s, 6 s left',
    );
    expect(shown[20]).toBe('');
  });

  test('of a pipe, whose length is unknown: bytes and lines per second', () => {
    const { clock, shown, progress, logs } = shownBy([undefined]);
    clock.advance(1000);
    logs[0].done = 2_500_000_000;
    progress.update('replay', logs, 700_000);
    expect(shown).toEqual(['replay  2.5 GB, 700,000 lines/s']);
  });

  test('the bar is removed before the report', async () => {
    const shown: string[] = [];
    const code = await run(['replay', log(BURST), '--limit', ONE_IN_30_S], {
      print: (line) => shown.push(line),
      error: () => {},
      log: () => {},
      progress: (words) => shown.push(words),
      columns: 100,
      version: '',
    });
    expect(code).toBe(0);
    expect(shown.slice(0, 2)).toEqual(['', expect.stringMatching(/^7 calls of 2 keys/)]);
  });
});
