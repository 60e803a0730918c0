import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { borrowRedis } from '../../test/support/borrowed-servers.ts';
import { createTempDir } from '../../test/support/daemon.ts';
import { redisServer } from '../../test/support/services.ts';
import { VirtualClock } from '../testing/index.ts';
import { parseConfigText } from './config/file.ts';
import { Daemon } from './daemon.ts';

const folder = createTempDir();
const file = join(folder.path, 'sluice.yaml');
const cleanups: (() => unknown)[] = [folder.remove];

afterEach(async () => {
  for (const cleanup of cleanups.splice(1).reverse()) await cleanup();
});

function write(limits: string): void {
  const listen = `listen: { line: '${join(folder.path, 'line.sock')}', resp: off, http: off }`;
  const snapshot = `snapshot: { file: '${join(folder.path, 'state')}' }`;
  writeFileSync(file, `${listen}\n${snapshot}\nlimits: ${limits}\n`);
}

/** Without the clock of a daemon before it, without its snapshot too. */
async function start(limits: string, before?: VirtualClock) {
  const clock = before ?? new VirtualClock(1_700_000_000_000);
  if (!before) rmSync(join(folder.path, 'state'), { force: true });
  write(limits);
  const load = () => parseConfigText(file, readFileSync(file, 'utf8'));
  const loaded = load();
  if ('problems' in loaded) throw new Error(loaded.problems.join('\n'));
  const logged: string[] = [];
  const log = (_: string, message: string, fields: object = {}): void =>
    void logged.push(`${message} ${JSON.stringify(fields)}`);
  const daemon = await Daemon.start(loaded.config, { log, load, version: '0.0.0', clock });
  const stop = async (): Promise<void> => {
    const stopped = daemon.stop();
    const timer = setInterval(() => clock.advance(100), 1);
    await stopped;
    clearInterval(timer);
  };
  cleanups.push(stop);
  const change = async (next: string) => {
    write(next);
    return daemon.reload();
  };
  /** The number of allowed checks, out of `count`. */
  const take = async (count: number, key = 'alice'): Promise<number> => {
    let allowed = 0;
    for (let n = 0; n < count; n++)
      if ((await daemon.router.check({ key, cost: 1 }))?.decision.verdict === 'allow') allowed++;
    return allowed;
  };
  return { daemon, clock, logged, change, take, stop };
}

test('reload: another rate and burst keep what was consumed', async () => {
  const { change, take } = await start('{ a: { bucket: { rate: 1/h, burst: 20 } } }');
  expect(await take(10)).toBe(10);
  const result = await change('{ a: { bucket: { rate: 2/h, burst: 40 } } }');
  expect(result).toMatchObject({ ok: true, limits: 1, kept: 1 });
  expect(await take(100)).toBe(30);
});

test('reload: an override with other numbers and another pattern beside its own keeps what was consumed', async () => {
  const withOverride = (burst: number, match: string) =>
    `{ a: { bucket: { rate: 1/h }, overrides: [{ match: ${match}, bucket: { rate: 1/h, burst: ${burst} } }] } }`;
  const { change, take } = await start(withOverride(10, '[vip]'));
  expect(await take(8, 'vip')).toBe(8);
  await change(withOverride(15, '[other, vip]'));
  expect(await take(20, 'vip')).toBe(7);
});

test('restart: an override with other numbers keeps what was consumed', async () => {
  const withOverride = (burst: number) =>
    `{ a: { bucket: { rate: 1/h }, overrides: [{ match: vip, bucket: { rate: 1/h, burst: ${burst} } }, { match: x, bucket: { rate: 1/d } }] } }`;
  const { clock, take, stop } = await start(withOverride(10));
  expect(await take(8, 'vip')).toBe(8);
  await stop();
  const next = await start(withOverride(15), clock);
  expect(await next.take(20, 'vip')).toBe(7);
});

test('reload: an override with other numbers keeps what was consumed', async () => {
  const rule = (burst: number) =>
    `{ a: { bucket: { rate: 1/h }, overrides: [{ match: vip, bucket: { rate: 1/h, burst: ${burst} } }] } }`;
  const { change, take } = await start(rule(20));
  expect(await take(15, 'vip')).toBe(15);
  await change(rule(18));
  expect(await take(100, 'vip')).toBe(3);
});

test('reload: permits of clients stay in flight and settle with the new limit', async () => {
  const { change, daemon } = await start('{ a: { concurrency: 2 } }');
  const acquire = async () =>
    daemon.router.check({ key: 'alice', cost: 1, wantsPermit: true, limit: 'a' });
  const first = await acquire();
  await acquire();
  await change('{ a: { concurrency: 3 } }');
  expect((await acquire())?.decision.verdict).toBe('allow');
  expect((await acquire())?.decision.verdict).toBe('deny');
  daemon.router.permits.settle(first?.permit ?? '', {});
  expect((await acquire())?.decision.verdict).toBe('allow');
});

test('reload: other maxKeys beside another rate keep what was consumed', async () => {
  const { change, take } = await start('{ a: { bucket: { rate: 1/h, burst: 20 } } }');
  await take(10);
  await change('{ a: { bucket: { rate: 1/h, burst: 15 }, maxKeys: 1000 } }');
  expect(await take(100)).toBe(5);
});

test.each([
  ['stays for a third key', ['x', 'y', 'z'], [20, 30, 10]],
  ['ends', ['x', 'y'], [20, 30]],
])(
  'reload: an override that becomes two others and %s keeps what was consumed',
  async (_name, keys, left) => {
    const bursts: Readonly<Record<string, number>> = { x: 30, y: 40, z: 20 };
    const limits = (overrides: readonly string[]): string =>
      `{ a: { bucket: { rate: 1/h, burst: 5 }, overrides: [${overrides.join()}] } }`;
    const override = (match: string, burst: number): string =>
      `{ match: ${match}, bucket: { rate: 1/h, burst: ${burst} } }`;
    const { change, take } = await start(limits([override(`[${keys.join()}]`, 20)]));
    for (const key of keys) expect(await take(10, key)).toBe(10);
    await change(limits(keys.map((key) => override(key, bursts[key]))));
    const found: number[] = [];
    for (const key of keys) found.push(await take(99, key));
    expect(found).toEqual(left);
  },
);

test('reload: a rule of another kind starts anew, and the log says so', async () => {
  const { change, take, logged } = await start('{ a: { bucket: { rate: 1/h, burst: 20 } } }');
  await take(20);
  const result = await change('{ a: { window: { limit: 20, per: 1h } } }');
  const warning = 'limit starts anew: its rule is of another kind';
  expect(result).toMatchObject({ ok: true, kept: 0, warnings: [{ limit: 'a', warning }] });
  expect(await take(100)).toBe(20);
  expect(logged).toContain('limit starts anew: its rule is of another kind {"limit":"a"}');
});

test('reload: a renamed limit starts anew, and the result and the log name both', async () => {
  const limit = 'bucket: { rate: 1/h, burst: 20 }';
  const { change, logged } = await start(`{ a: { ${limit} }, z: { ${limit} } }`);
  expect(await change(`{ b: { ${limit} }, c: { ${limit} }, z: { ${limit} } }`)).toMatchObject({
    ...{ ok: true, limits: 3, kept: 1 },
    ...{ added: ['b', 'c'], removed: ['a'] },
  });
  const changes = 'limits removed: a; new: b, c start anew';
  expect(logged).toContain(`reloaded ${JSON.stringify({ limits: 3, kept: 1, changes })}`);
  expect(await change(`{ b: { ${limit} }, c: { ${limit} }, z: { ${limit} } }`)).toMatchObject({
    ...{ kept: 3, added: [], removed: [], warnings: [] },
  });
  expect(logged.at(-1)).toBe('reloaded {"limits":3,"kept":3}');
});

test('reload: the warning of a limit with another backend names both backends', async () => {
  const redis = ", redis: 'redis://127.0.0.1:1'";
  const etcd = ", etcd: { endpoints: ['http://127.0.0.1:1'] }";
  const limit = (backend = '') => `{ a: { bucket: { rate: 1/h, burst: 20 } ${backend} } }`;
  const { change } = await start(limit());
  const warningsOf = (warning: string) => ({
    ...{ ok: true, kept: 0, added: [], removed: [] },
    warnings: [{ limit: 'a', warning: `limit starts anew: ${warning}` }],
  });
  expect(await change(limit(redis))).toMatchObject(
    warningsOf('its backend was local and is redis, and counts stay where they are'),
  );
  expect(await change(limit(etcd))).toMatchObject(
    warningsOf('its backend was redis and is etcd, and counts stay where they are'),
  );
  expect(await change(limit())).toMatchObject(
    warningsOf('its backend was etcd and is local, and counts stay where they are'),
  );
});

test('reload: a configuration that is refused changes no rate', async () => {
  const { change, take } = await start('{ a: { bucket: { rate: 1/h, burst: 20 } } }');
  await take(10);
  const bad =
    "{ a: { bucket: { rate: 1/h, burst: 99 } }, b: { bucket: { rate: 1/h }, etcd: { endpoints: ['https://127.0.0.1:1'], tls: { ca: /nonexistent/ca.pem } } } }";
  expect(await change(bad)).toMatchObject({ ok: false });
  expect(await take(100)).toBe(10);
});

test('restart: another rate and burst keep what was consumed before the snapshot', async () => {
  const first = await start(
    '{ a: { bucket: { rate: 1/h, burst: 20 } }, w: { window: { limit: 10, per: 10h }, match: w } }',
  );
  await first.take(10);
  await first.take(8, 'w');
  await first.stop();
  const second = await start(
    '{ a: { bucket: { rate: 2/h, burst: 40 } }, w: { window: { limit: 9, per: 10h, steps: 5 }, match: w } }',
    first.clock,
  );
  expect(await second.take(100)).toBe(30);
  expect(await second.take(100, 'w')).toBe(1);
});

test('reload: a quota with another limit and another period keeps what was used', async () => {
  const { change, take } = await start('{ a: { quota: { limit: 10, per: day } } }');
  expect(await take(8)).toBe(8);
  expect(await change('{ a: { quota: { limit: 12, per: day } } }')).toMatchObject({ kept: 1 });
  expect(await take(2)).toBe(2);
  const monthly =
    '{ a: { quota: { limit: 15, per: month, timeZone: Europe/Berlin, anchor: 31 } } }';
  expect(await change(monthly)).toMatchObject({ kept: 1 });
  expect(await take(100)).toBe(5);
});

test('restart: a quota keeps what was used until its period ends', async () => {
  const limits = '{ a: { quota: { limit: 10, per: day } } }'; // the clock begins at 22:13:20
  const first = await start(limits);
  expect(await first.take(8)).toBe(8);
  await first.stop();
  const second = await start(limits, first.clock);
  expect(await second.take(9)).toBe(2);
  await second.stop();
  second.clock.advance(2 * 3_600_000);
  const third = await start(limits, second.clock);
  expect(await third.take(100)).toBe(10);
});

test.skipIf(!redisServer())(
  'reload: a Redis that hangs delays it by one deadline, whatever the number of changed limits',
  async () => {
    const redis = await borrowRedis();
    cleanups.push(() => redis.stop());
    const limits = (rate: number): string => {
      const rule = `bucket: { rate: ${rate}/h, burst: 9 }, redis: { url: 'redis://127.0.0.1:${redis.port}', onUnavailable: deny }`;
      return `{ a: { match: 'a', ${rule} }, b: { match: 'b', ${rule} }, c: { match: 'c', ${rule} } }`;
    };
    const { change, clock, take } = await start(limits(1));
    for (const key of ['a', 'b', 'c']) {
      const isConnected = (): Promise<number> => {
        clock.advance(50); // for the probe of a limit that was not connected, less than its deadline
        return take(1, key);
      };
      await expect.poll(isConnected, { timeout: 15_000 }).toBe(1);
    }
    redis.pause();
    const [begunAt, reloaded] = [clock.now(), change(limits(2))];
    const timer = setInterval(() => clock.advance(50), 1);
    const result = await reloaded;
    clearInterval(timer);
    redis.resume();
    const warning = expect.stringContaining('were not converted');
    const warnings = ['a', 'b', 'c'].map((limit) => ({ limit, warning }));
    expect(result).toMatchObject({ ok: true, warnings });
    expect(clock.now() - begunAt).toBeLessThan(3000);
  },
);
