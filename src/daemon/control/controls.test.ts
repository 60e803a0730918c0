import { afterEach, expect, test } from 'vitest';
import { virtualDaemons } from '../../../test/support/virtual-daemon.ts';
import { MAX_CONTROLS } from './control-table.ts';

const { start, end } = virtualDaemons();
afterEach(end);

const ONE = 'limits: { a: { bucket: { rate: 1/h, burst: 20 } } }';

test('ban: acts at once where all keys have one route, and ends at its time', async () => {
  const { controls, isAllowed, check, clock } = await start(ONE);
  expect(isAllowed('alice')).toBe(true);
  controls.ban({ key: 'alice', for: '1h' });
  expect(isAllowed('alice')).toBe(false);
  expect(isAllowed('bob')).toBe(true);
  clock.advance(1_800_000);
  expect(await check('alice')).toMatchObject({
    decision: { verdict: 'deny', retryAfterMs: 1_800_000 },
    staticVerdict: { reason: 'banned' },
  });
  expect((await check('alice', 'a'))?.decision.verdict).toBe('deny');
  clock.advance(1_800_000);
  expect(isAllowed('alice')).toBe(true);
  expect((await check('alice', 'a'))?.decision.verdict).toBe('allow');
  expect(controls.list()).toEqual([]);
});

test('ban: acts at once on a cached route, comes before an allow list, and can be taken back', async () => {
  const { controls, isAllowed } = await start(`allow: [vip]\n${ONE}`);
  expect(isAllowed('vip')).toBe(true);
  controls.ban({ key: 'vip', for: '1h' });
  expect(isAllowed('vip')).toBe(false);
  expect(controls.unban({ key: 'vip' })).toBe(true);
  expect(controls.unban({ key: 'vip' })).toBe(false);
  expect(isAllowed('vip')).toBe(true);
});

test('ban: a pattern bans all its keys, and * is refused', async () => {
  const { controls, isAllowed } = await start(ONE);
  controls.ban({ key: 'ip:10.0.*', for: '1h', note: 'scraper' });
  expect(isAllowed('ip:10.0.7.1')).toBe(false);
  expect(isAllowed('ip:10.1.7.1')).toBe(true);
  expect(controls.list()).toMatchObject([{ kind: 'ban', key: 'ip:10.0.*', note: 'scraper' }]);
  expect(() => controls.ban({ key: '*', for: '1h' })).toThrow('does not match all keys');
});

test('controls: invalid arguments are errors that name the field', async () => {
  const { controls } = await start(ONE);
  expect(() => controls.ban({ key: 'a' })).toThrow('`for`');
  expect(() => controls.ban({ key: 'a', for: '9999d' })).toThrow('366 days');
  expect(() => controls.ban({ key: '', for: '1h' })).toThrow('`key`');
  expect(() => controls.ban({ key: 'a', for: '1h', notes: '' })).toThrow('note');
  expect(() => controls.override({ key: 'a', for: '1h', rate: 'fast' })).toThrow('`rate`');
  expect(() => controls.override({ key: 'a', for: '1h', rate: '1/s', limit: 'b' })).toThrow(
    '`limit`',
  );
  await expect(controls.reset({ key: 'a', limit: 'b' })).rejects.toThrow('`limit`');
});

test('override: another rate for one key, which keeps what it has consumed, until it expires', async () => {
  const { controls, clock, count } = await start(ONE);
  expect(count('alice', 15)).toBe(15);
  controls.override({ key: 'alice', rate: '100/h', for: '1s' });
  expect(count('alice')).toBe(85);
  expect(count('bob')).toBe(20);
  clock.advance(1000);
  expect(count('alice')).toBe(0);
});

test('override: a limit by name, a burst, and its removal', async () => {
  const { controls, count, daemon } = await start(
    `${ONE.slice(0, -2)}, b: { window: { limit: 5, per: 1h }, match: 'b:*' } }`,
  );
  controls.override({ key: 'b:1', rate: '7/h', for: '1d' });
  expect(count('b:1')).toBe(7);
  controls.override({ key: 'alice', limit: 'a', rate: '1/h', burst: 30, for: '1d' });
  expect(count('alice')).toBe(30);
  expect(daemon.router.registry.all.map(({ name }) => name).join()).not.toContain('alice');
  expect(controls.removeOverride({ key: 'alice' })).toBe(true);
  expect(controls.removeOverride({ key: 'alice' })).toBe(false);
  expect(daemon.router.registry.all.map(({ name }) => name)).toHaveLength(3);
});

test('override: a reload keeps it, and one that removes its limit ends it', async () => {
  const { controls, count, reload, logged } = await start(ONE);
  controls.override({ key: 'alice', rate: '100/h', for: '1d' });
  expect(count('alice', 60)).toBe(60);
  await reload('limits: { a: { bucket: { rate: 2/h, burst: 30 } } }');
  expect(count('alice')).toBe(40);
  await reload('limits: { c: { bucket: { rate: 2/h, burst: 3 } } }');
  expect(count('alice')).toBe(3);
  expect(controls.list()).toEqual([]);
  expect(logged).toContain('run-time override ends with its limit');
});

test('reset: a key starts anew in one limit or in all, others do not', async () => {
  const { controls, count } = await start(ONE);
  count('alice');
  count('bob');
  expect(await controls.reset({ key: 'alice' })).toEqual({ reset: ['a'], failed: [] });
  expect(count('alice')).toBe(20);
  expect(count('bob')).toBe(0);
  expect(await controls.reset({ key: 'alice', limit: 'a' })).toEqual({ reset: ['a'], failed: [] });
  expect(count('alice')).toBe(20);
});

test('reset: a key that other keys have evicted starts anew too', async () => {
  const { controls, count } = await start(
    'limits: { a: { bucket: { rate: 1/h, burst: 20 }, maxKeys: 100 } }',
  );
  count('alice');
  for (let n = 0; n < 3000; n++) count(`other ${n}`, 20);
  expect(count('alice')).toBe(0);
  await controls.reset({ key: 'alice' });
  expect(count('alice')).toBe(20);
});

test('snapshot: bans, overrides and removals outlive a restart', async () => {
  const first = await start(ONE);
  first.controls.ban({ key: 'mallory', for: '1h', note: 'scraper' });
  first.controls.ban({ key: 'bob', for: '1h' });
  first.controls.unban({ key: 'bob' });
  first.controls.override({ key: 'alice', rate: '100/h', for: '1h' });
  expect(first.count('alice', 30)).toBe(30);
  await first.stop();
  const second = await start(ONE, first.clock);
  expect(second.isAllowed('mallory')).toBe(false);
  expect(second.isAllowed('bob')).toBe(true);
  expect(second.count('alice')).toBe(70);
  expect(second.controls.list().map(({ key }) => key)).toEqual(['mallory', 'alice']);
});

test('controls: their number is bounded, and the error says what to do', async () => {
  const { controls, isAllowed } = await start(ONE);
  for (let n = 0; n < MAX_CONTROLS; n++) controls.ban({ key: `k${n}`, for: '1h' });
  expect(() => controls.ban({ key: 'one more', for: '1h' })).toThrow('remove some');
  controls.ban({ key: 'k7', for: '2h' }); // replaces one
  expect(isAllowed('k9999')).toBe(false);
  expect(isAllowed('one more')).toBe(true);
});

test('override: its end leaves a key empty at most, not in debt', async () => {
  const { controls, clock, count } = await start(
    'limits: { a: { bucket: { rate: 5/m, burst: 5 } } }',
  );
  controls.override({ key: 'alice', rate: '100/s', for: '3s' });
  expect(count('alice', 100)).toBe(100);
  clock.advance(2990);
  expect(count('alice', 100)).toBe(100);
  clock.advance(10);
  expect(count('alice')).toBe(0);
  clock.advance(12_000);
  expect(count('alice')).toBe(1);
});

test('override: a removal leaves a key empty at most, and what it has not spent stays', async () => {
  const { controls, count, clock } = await start(
    'limits: { a: { all: [{ bucket: { rate: 1/m, burst: 10 } }, { bucket: { rate: 1/s, burst: 1000 } }] } }',
  );
  const rule = {
    all: [{ bucket: { rate: '1/m', burst: 500 } }, { bucket: { rate: '1/s', burst: 1000 } }],
  };
  controls.override({ key: 'alice', rule, for: '1h' });
  expect(count('alice', 400)).toBe(400);
  controls.override({ key: 'bob', rule, for: '1h' });
  expect(count('bob', 4)).toBe(4);
  expect(controls.removeOverride({ key: 'alice' })).toBe(true);
  expect(controls.removeOverride({ key: 'bob' })).toBe(true);
  expect(count('bob')).toBe(6);
  expect(count('alice')).toBe(0);
  clock.advance(60_000);
  expect(count('alice')).toBe(1);
});

test('removals: as many bans as fit, all taken back, leave room for as many again', async () => {
  const { controls, isAllowed, count, clock } = await start(ONE);
  for (let n = 0; n < MAX_CONTROLS; n++) controls.ban({ key: `k${n}`, for: '1h' });
  expect(count('alice')).toBe(20);
  expect(await controls.reset({ key: 'alice' })).toMatchObject({ reset: ['a'] });
  expect(count('alice')).toBe(20);
  for (let n = 0; n < MAX_CONTROLS; n++) controls.unban({ key: `k${n}` });
  for (let n = 0; n < 2 * MAX_CONTROLS; n++) {
    controls.ban({ key: `x${n}`, for: n < 100 ? '2h' : '1h' });
    if (n >= 100) controls.unban({ key: `x${n}` });
  }
  expect(isAllowed('x7')).toBe(false);
  expect(controls.list()).toHaveLength(100);
  expect(controls.records.length).toBeLessThanOrEqual(2 * MAX_CONTROLS);
  clock.advance(90 * 60_000);
  expect(controls.records).toHaveLength(100);
});

test('removals: an older copy from a peer does not bring a ban back', async () => {
  const { controls, isAllowed } = await start(ONE);
  const ban = controls.ban({ key: 'eve', for: '1h' });
  controls.unban({ key: 'eve' });
  controls.merge([ban]);
  expect(isAllowed('eve')).toBe(true);
});

test('controls: override and reset take exact keys, and say so to a pattern', async () => {
  const { controls, count } = await start(ONE);
  for (const key of ['ip:10.0.0.0/8', 'api-*', 'a?']) {
    expect(() => controls.override({ key, rate: '1/s', for: '1h' })).toThrow('exact key');
    expect(() => controls.removeOverride({ key })).toThrow('exact key');
    await expect(controls.reset({ key })).rejects.toThrow('exact key');
  }
  controls.override({ key: { exact: 'api-*' }, rate: '1/h', burst: 30, for: '1h' });
  expect(count('api-*')).toBe(30);
  expect(count('api-1')).toBe(20);
  await controls.reset({ key: { exact: 'api-*' } });
  expect(count('api-*')).toBe(30);
  expect(controls.removeOverride({ key: { exact: 'api-*' } })).toBe(true);
});

test('override: a longer time for the same or another rule keeps what was consumed', async () => {
  const { controls, count } = await start(ONE);
  controls.override({ key: 'alice', rate: '100/h', for: '1h' });
  expect(count('alice', 60)).toBe(60);
  controls.override({ key: 'alice', rate: '100/h', for: '2h' });
  controls.override({ key: 'alice', rate: '90/h', for: '2h' });
  expect(count('alice')).toBe(30);
});

test('override: keeps what a key has consumed on a plan that requests name, and its end does too', async () => {
  const { controls, daemon } = await start(
    'limits: { a: { bucket: { rate: 1/h, burst: 20 }, plans: { gold: { bucket: { rate: 1/h, burst: 50 } } } } }',
  );
  const take = (cost: number): string | undefined => {
    const result = daemon.router.check({ key: 'alice', limit: 'a[gold]', cost });
    return result && 'decision' in result ? result.decision.verdict : undefined;
  };
  expect(take(45)).toBe('allow');
  controls.override({ key: 'alice', rate: '60/h', for: '1h' });
  expect(take(16)).toBe('deny');
  expect(take(15)).toBe('allow');
  controls.removeOverride({ key: 'alice' });
  expect(take(1)).toBe('deny');
});

test('override: of one IPv6 address leaves the count of its network to the others', async () => {
  const { controls, count } = await start(ONE);
  expect(count('ip:2001:db8::1', 15)).toBe(15);
  controls.override({ key: 'ip:2001:db8::1', rate: '100/h', for: '1h' });
  expect(count('ip:2001:db8::2', 2)).toBe(2);
  expect(count('ip:2001:db8::1')).toBe(85);
  controls.removeOverride({ key: 'ip:2001:db8::1' });
  expect(count('ip:2001:db8::2')).toBe(3);
});

test('reset: permits from before it do not free places of a concurrency limit', async () => {
  const { controls, daemon } = await start('limits: { a: { concurrency: 2 } }');
  const { router } = daemon;
  const hold = (): (string | undefined)[] =>
    Array.from({ length: 3 }, () => {
      const result = router.check({ key: 'alice', cost: 1, wantsPermit: true });
      return result && 'permit' in result ? result.permit : undefined;
    }).filter((permit) => permit !== undefined);
  const before = hold();
  expect(before).toHaveLength(2);
  await controls.reset({ key: 'alice' });
  const after = hold();
  expect(after).toHaveLength(2);
  for (const permit of before) router.permits.settle(permit ?? '', {});
  expect(hold()).toHaveLength(0);
  for (const permit of after) router.permits.settle(permit ?? '', {});
  expect(hold()).toHaveLength(2);
});

test('reset: without a limit, those that apply to the key or have counted it', async () => {
  const { controls, check, count } = await start(
    `${ONE.slice(0, -2)}, b: { bucket: { rate: 1/h, burst: 5 }, match: 'b:*' }, c: { bucket: { rate: 1/h }, match: 'c:*' }, all: { bucket: { rate: 100/h }, always: true } }`,
  );
  expect(await controls.reset({ key: 'b:1' })).toEqual({ reset: ['b', 'all'], failed: [] });
  expect(count('b:1')).toBe(5);
  await check('b:1', 'c');
  expect(await controls.reset({ key: 'b:1' })).toEqual({ reset: ['b', 'c', 'all'], failed: [] });
  controls.ban({ key: 'b:1', for: '1h' });
  expect(await controls.reset({ key: 'b:1' })).toMatchObject({ reset: ['b', 'all'] });
  expect(() => controls.override({ key: 'b:1', rate: '1/s', for: '1h' })).toThrow('unban');
});

test('snapshot: one that is too old for counts still restores bans', async () => {
  const first = await start(ONE);
  first.controls.ban({ key: 'mallory', for: '60d' });
  first.controls.ban({ key: 'eve', for: '1h' });
  expect(first.count('alice')).toBe(20);
  await first.stop();
  first.clock.advance(30 * 24 * 3_600_000);
  const second = await start(ONE, first.clock);
  expect(second.logged).toContain('snapshot not used');
  expect(second.controls.list().map(({ key }) => key)).toEqual(['mallory']);
  expect(second.isAllowed('mallory')).toBe(false);
});

test('override: rules without effect in a daemon are refused as in the configuration', async () => {
  const { controls } = await start(
    `limits: { a: { spacing: { every: 1s } }, b: { concurrency: 2 }, s: { bucket: { rate: 1/s }, shadow: true } }`,
  );
  const set = (limit: string, rule: unknown) => () =>
    controls.override({ key: 'alice', limit, rule, for: '1h' });
  expect(set('a', { spacing: { every: '1s', reserve: '5s' } })).toThrow('reserve');
  expect(set('b', { concurrency: { limit: 2, priorities: ['x', 'y'] } })).toThrow('priorities');
  expect(set('s', { concurrency: 2 })).toThrow('shadow');
});

test('override: a duration without a unit is refused as in the configuration', async () => {
  const { controls } = await start('limits: { w: { window: { limit: 5, per: 1s } } }');
  const set = (per: unknown) => () =>
    controls.override({ key: 'alice', rule: { window: { limit: 9, per } }, for: '1h' });
  expect(set(60)).toThrow(
    'expected `rule.window.per` to be a duration with a unit, got 60; a bare number is milliseconds: write "60s" or "60ms"',
  );
  expect(controls.list()).toEqual([]);
  for (const per of ['60ms', 60_000]) set(per)();
  controls.override({ key: 'bob', rate: '5/100ms', for: '1h' }); // a rate has its unit
  expect(controls.list()).toHaveLength(2);
});

test('override: a rate for a concurrency limit, the error shows what was given', async () => {
  const { controls } = await start('limits: { b: { concurrency: 2 } }');
  const set = () => controls.override({ key: 'alice', rate: '5/s', for: '1h' });
  expect(set).toThrow('expected `rule.concurrency` to be a whole number of at least 1');
  expect(set).toThrow('got "5/s"');
});

test('controls: a key that is not UTF-8 is its bytes, over a restart too', async () => {
  const first = await start(ONE);
  const bytes = 'k\xff\xfe';
  const isAllowed = ({ daemon }: typeof first, key: string): unknown =>
    daemon.router.isAllowed(Buffer.from(key, 'latin1'), 0, key.length);
  first.controls.ban({ key: { bytes }, for: '1h' });
  expect(isAllowed(first, bytes)).toBe(false);
  expect(isAllowed(first, 'k\xff\xfd')).toBe(true);
  first.controls.ban({ key: { bytes: 'caf\xc3\xa9' }, for: '1h' });
  expect(first.controls.unban({ key: 'café' })).toBe(true);
  first.controls.override({ key: { bytes: 'o\xff' }, rate: '1/h', burst: 2, for: '1h' });
  await first.stop();
  const second = await start(ONE, first.clock);
  expect(isAllowed(second, bytes)).toBe(false);
  expect([1, 2, 3].map(() => isAllowed(second, 'o\xff'))).toEqual([true, true, false]);
  expect(await second.controls.reset({ key: { bytes: 'o\xff' } })).toMatchObject({ reset: ['a'] });
  expect(isAllowed(second, 'o\xff')).toBe(true);
  expect(second.controls.unban({ key: { bytes } })).toBe(true);
  expect(isAllowed(second, bytes)).toBe(true);
  expect(() => second.controls.ban({ key: { bytes: '\u0100' }, for: '1h' })).toThrow('byte');
  expect(() => second.controls.ban({ key: 'x'.repeat(1001), for: '1h' })).toThrow(
    '1000 characters',
  );
});

test('reset: a limit with one count for all keys is named as the reason, and reset only by its name', async () => {
  const { controls, count, logged } = await start(
    "limits: { g: { match: 'g:*', per: limit, bucket: { rate: 1/h, burst: 20 } }, a: { match: 'a:*', bucket: { rate: 1/h, burst: 20 } } }",
  );
  count('g:1');
  await expect(controls.reset({ key: 'g:1' })).rejects.toThrow(
    'expected `limit` to be g, to reset its one count for all keys (per: limit)',
  );
  expect(logged).not.toContain('key reset');
  expect(await controls.reset({ key: 'g:1', limit: 'g' })).toEqual({ reset: ['g'], failed: [] });
  expect(count('g:2')).toBe(20);
  expect(await controls.reset({ key: 'none' })).toEqual({ reset: [], failed: [] });
  expect(logged.filter((message) => message === 'key reset')).toHaveLength(1);
});

test('override: of a key on a list, the warning says that it has no effect', async () => {
  const { controls } = await start(
    "deny: [bad]\nallow: ['good*']\nlimits: { a: { allow: [own], bucket: { rate: 1/h, burst: 20 } } }",
  );
  const warningsOf = async (key: string) =>
    controls.warningsOf(controls.override({ key, rate: '9/s', for: '1h' }));
  const noEffect = 'the override has no effect: ';
  expect(await warningsOf('bad')).toEqual([`${noEffect}always denied: the deny list has bad`]);
  expect(await warningsOf('good-1')).toEqual([
    `${noEffect}always allowed: the allow list has good*`,
  ]);
  expect(await warningsOf('own')).toEqual([
    `${noEffect}always allowed: limit a's allow list has own`,
  ]);
  expect(await warningsOf('alice')).toEqual([]);
});

test('metrics: count bans and overrides in effect', async () => {
  const { controls, clock } = await start(ONE);
  expect(controls.counts).toEqual({ ban: 0, override: 0 });
  controls.ban({ key: 'bob', for: '1h' });
  controls.ban({ key: 'evil*', for: '2h' });
  controls.override({ key: 'alice', rate: '9/s', for: '1h' });
  expect(controls.counts).toEqual({ ban: 2, override: 1 });
  clock.advance(3_600_001);
  expect(controls.counts).toEqual({ ban: 1, override: 0 });
});

test('override: the error of a key that no limit counts by itself says so', async () => {
  const { controls } = await start(
    "limits: { a: { bucket: { rate: 1/s }, match: 'a:*' }, g: { bucket: { rate: 9/s }, per: limit, match: 'g:*' } }",
  );
  const override = (key: string, limit?: string) => () =>
    controls.override({ key, rate: '1/s', for: '1h', ...(limit && { limit }) });
  expect(override('unmatched')).toThrow(
    'expected `key` to be a key that a limit matches, or `limit` as one of a, g: none matches the key, got "unmatched"',
  );
  expect(override('g:1')).toThrow(/`key` .*only g applies .* one count for all keys, got "g:1"/);
  expect(override('g:1', 'g')).toThrow('expected `limit` to be a limit that counts each key');
});
