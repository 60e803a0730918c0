import { afterEach, describe, expect, test } from 'vitest';
import { virtualDaemons } from '../../test/support/virtual-daemon.ts';
import { VirtualClock } from '../testing/index.ts';

const { start, end } = virtualDaemons();
afterEach(end);

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
/** Middle of a minute, an hour and a day. */
const NOW = Date.UTC(2026, 4, 20, 12, 30, 30);

/** Each allows 20 at once, and all of them again after the time beside it. */
const LIMITS: readonly (readonly [limit: string, freshAfterMs: number])[] = [
  ['bucket: { rate: 20/h, burst: 20 }', HOUR],
  ['window: { limit: 20, per: 1h }', HOUR + HOUR / 16 + SECOND],
  ['quota: { limit: 20, per: hour }', HOUR],
  ['lockout: { after: 20, within: 1m, lock: 10m }', 10 * MINUTE],
  ['all: [{ window: { limit: 20, per: 1h } }, { quota: { limit: 30, per: day } }]', 2 * DAY],
];

describe.each([10, 2 * SECOND, 30 * SECOND, HOUR, 500 * DAY])('clock set back by %d ms', (back) => {
  test.each(LIMITS)('%s: a restart keeps what was spent, for no longer', async (limit, freshMs) => {
    const config = `limits: { a: { ${limit} } }`;
    const first = await start(config, new VirtualClock(NOW + back));
    expect(first.count('spent')).toBe(20);
    expect(first.count('part', 8)).toBe(8);
    await first.stop();
    const second = await start(config, new VirtualClock(NOW));
    expect(second.count('spent')).toBe(0);
    expect(second.count('part')).toBe(12);
    expect(second.count('new')).toBe(20);
    const setBack = 'snapshot is from the future: the clock was set back, it counts as written now';
    expect(second.logged.includes(setBack)).toBe(back > 5000);
    expect(second.logged).not.toContain('snapshot not used');
    second.clock.advance(freshMs);
    expect(second.count('spent')).toBe(20);
  });
});

test('clock set back: a ramp keeps its level, a spacing its interval, busy its paces', async () => {
  const config = `limits:
  ramp: { ramp: { min: 10, max: 110, over: 10s, mode: only-if-used }, match: 'ramp:*' }
  spacing: { spacing: { every: 10m }, match: 'spacing:*' }
  busy: { busy: { max: 5 }, match: 'busy:*' }`;
  const first = await start(config, new VirtualClock(NOW + HOUR));
  expect(first.count('ramp:a')).toBe(10);
  first.clock.advance(SECOND);
  expect(first.count('ramp:a')).toBe(20);
  expect(first.count('spacing:a')).toBe(1);
  expect(first.count('busy:a')).toBe(5);
  await first.stop();
  const second = await start(config, new VirtualClock(NOW));
  expect(second.count('spacing:a')).toBe(0);
  second.clock.advance(2 * SECOND);
  expect(second.count('ramp:a')).toBe(30);
  expect(second.count('busy:a')).toBe(5);
  second.clock.advance(10 * MINUTE);
  expect(second.count('spacing:a')).toBe(1);
});

test('clock set back: a reset that the snapshot does not contain is repeated once', async () => {
  const config = 'limits: { a: { bucket: { rate: 1/h, burst: 20 } } }';
  const first = await start(config, new VirtualClock(NOW + HOUR));
  expect(first.count('alice')).toBe(20);
  await first.stop();
  const crashed = await start(config, first.clock);
  await crashed.controls.reset({ key: 'alice' });
  await crashed.controls.saved();
  const second = await start(config, new VirtualClock(NOW));
  expect(second.count('alice', 15)).toBe(15);
  await second.stop();
  const third = await start(config, second.clock);
  expect(third.count('alice')).toBe(5);
});
