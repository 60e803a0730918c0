import { afterEach, expect, test } from 'vitest';
import { virtualDaemons } from '../../../test/support/virtual-daemon.ts';

const { start, end } = virtualDaemons();
afterEach(end);

const ONE = 'limits: { a: { bucket: { rate: 1/h, burst: 20 } } }';

test('ban: exact and bytes take a key literally, beside the pattern of the same text, over a restart too', async () => {
  const first = await start(ONE);
  first.controls.ban({ key: { exact: 'user:*' }, for: '1h' });
  first.controls.ban({ key: { bytes: 'a?' }, for: '1h' });
  first.controls.ban({ key: { exact: '10.0.0/8' }, for: '1h' });
  first.controls.ban({ key: { exact: 'plain' }, for: '1h' });
  await first.stop();
  const { controls, isAllowed } = await start(ONE, first.clock);
  expect(['user:*', 'a?', '10.0.0/8', 'plain'].map(isAllowed)).toEqual(Array(4).fill(false));
  expect(['user:7', 'ab'].map(isAllowed)).toEqual([true, true]);
  expect(controls.unban({ key: 'plain' })).toBe(true); // the same key
  expect(controls.unban({ key: 'user:*' })).toBe(false);
  controls.ban({ key: 'user:*', for: '1h' });
  expect(isAllowed('user:7')).toBe(false);
  expect(controls.unban({ key: { exact: 'user:*' } })).toBe(true);
  expect(isAllowed('user:*')).toBe(false); // by the pattern
  expect(controls.unban({ key: 'user:*' })).toBe(true);
  expect(isAllowed('user:*')).toBe(true);
  expect(() => controls.ban({ key: { exact: 'é*'.repeat(400) }, for: '1h' })).toThrow('bytes');
});

test('override: bytes and exact are the same key', async () => {
  const { controls } = await start(ONE);
  controls.override({ key: { bytes: 'user:*' }, rate: '9/h', for: '1h' });
  controls.override({ key: { exact: 'user:*' }, rate: '8/h', for: '1h' });
  expect(controls.list()).toHaveLength(1);
});

test('unban: an IPv6 address or network in any spelling', async () => {
  const { controls, isAllowed } = await start(ONE);
  const spellings = [
    ['2001:DB8:0::1', '2001:db8::1', '2001:db8:0:0:0:0:0:1'],
    ['ip:2001:DB8::/32', 'ip:2001:db8::7', 'ip:2001:db8:0::/32'],
    ['::ffff:10.0.0.1', '10.0.0.1', '10.0.0.1'],
    ['10.0.0.2/32', '10.0.0.2', '::ffff:10.0.0.2'],
    ['fe80:2001:db8:0:0:0:0:0:1', 'fe80:2001:db8:0:0:0:0:0:1', 'fe80:2001:db8:0:0:0:0:0:1'],
  ];
  for (const [banned, checked, unbanned] of spellings) {
    controls.ban({ key: banned, for: '1h' });
    controls.ban({ key: unbanned, for: '2h' });
    expect(controls.list(), banned).toHaveLength(1);
    expect(isAllowed(checked), banned).toBe(false);
    expect(controls.unban({ key: unbanned }), banned).toBe(true);
    expect(isAllowed(checked), banned).toBe(true);
  }
});

test('override: of an IPv6 address acts on every spelling, and one ends it', async () => {
  const { controls, count } = await start(ONE);
  controls.override({ key: 'ip:2001:DB8:0::1', rate: '30/h', for: '1h' });
  expect(count('ip:2001:db8::1')).toBe(30);
  expect(controls.removeOverride({ key: 'ip:2001:db8:0::1' })).toBe(true);
});

test('override: its end charges plans that the key has used, and no other', async () => {
  const plans =
    'plans: { free: { bucket: { rate: 1/h, burst: 5 } }, gold: { bucket: { rate: 1/h, burst: 50 } } }';
  const { controls, check, daemon } = await start(
    `limits: { a: { bucket: { rate: 1/h, burst: 20 }, ${plans} } }`,
  );
  const leftIn = (name: string): unknown => {
    const entry = daemon.router.registry.get(name);
    return (entry?.limiter.inspect('alice') as { remaining?: number } | undefined)?.remaining;
  };
  controls.override({ key: 'alice', rate: '100/h', for: '1h' });
  for (let n = 0; n < 30; n++) await check('alice');
  await check('alice', 'a[gold]');
  controls.removeOverride({ key: 'alice' });
  expect(['a', 'a[free]', 'a[gold]'].map(leftIn)).toEqual([0, 5, expect.closeTo(19, 1)]);
  controls.override({ key: 'alice', rate: '100/h', for: '1h' });
  for (let n = 0; n < 60; n++) await check('alice');
  controls.removeOverride({ key: 'alice' });
  expect(leftIn('a[free]')).toBe(5);
});
