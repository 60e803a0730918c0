/** Keys of controls: exact keys that read like patterns, addresses in other spellings. Daemons on virtual time. */

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
