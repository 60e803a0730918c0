import { afterEach, expect, test } from 'vitest';
import { virtualDaemons } from '../../../test/support/virtual-daemon.ts';
import { VirtualClock } from '../../testing/index.ts';
import type { ControlRecord } from './control-record.ts';
import { ControlTable, MAX_PASSING } from './control-table.ts';

const { start, end } = virtualDaemons();
afterEach(end);

const ONE = 'limits: { a: { bucket: { rate: 1/h, burst: 20 } } }';
const HOUR = 3_600_000;

type Started = Awaited<ReturnType<typeof start>>;

/** Both get what the other has, as in a fleet. */
const exchange = (one: Started, other: Started): void => {
  other.controls.merge(one.controls.records);
  one.controls.merge(other.controls.records);
};

test('unban: a daemon that was down for hours does not bring the ban back', async () => {
  const a = await start(ONE, undefined, 'a');
  const b = await start(ONE, a.clock, 'b');
  a.controls.ban({ key: 'eve', for: '1d', note: 'scraper' });
  a.controls.override({ key: 'zoe', rate: '90/h', for: '1d' });
  exchange(a, b);
  await b.stop();
  expect(a.controls.unban({ key: 'eve' })).toBe(true);
  expect(a.controls.removeOverride({ key: 'zoe' })).toBe(true);
  a.clock.advance(3 * HOUR);
  const returned = await start(ONE, a.clock, 'b');
  expect(returned.controls.list()).toHaveLength(2);
  exchange(a, returned);
  for (const { controls, isAllowed } of [a, returned]) {
    expect(controls.list()).toEqual([]);
    expect(isAllowed('eve')).toBe(true);
  }
  a.clock.advance(24 * HOUR);
  expect(a.controls.records).toEqual([]);
});

test('ban: a shorter one that replaced a longer one is not followed by it', async () => {
  const a = await start(ONE, undefined, 'a');
  const b = await start(ONE, a.clock, 'b');
  a.controls.ban({ key: 'eve', for: '10d' });
  exchange(a, b);
  await b.stop();
  a.controls.ban({ key: 'eve', for: '1h' });
  await a.stop();
  a.clock.advance(2 * HOUR); // it ends while its daemon is down, too
  const [one, other] = [await start(ONE, a.clock, 'a'), await start(ONE, a.clock, 'b')];
  expect(other.isAllowed('eve')).toBe(false);
  exchange(one, other);
  expect(other.isAllowed('eve')).toBe(true);
  one.controls.ban({ key: 'eve', for: '1h' });
  expect(one.controls.unban({ key: 'eve' })).toBe(true);
  expect(one.controls.records[0].until).toBeGreaterThan(one.clock.now() + 200 * HOUR);
});

test('control table: of too many removals those that end first are dropped, and no resets', () => {
  const clock = new VirtualClock(0);
  const table = new ControlTable(clock, { onSet() {}, onEnd() {}, onChange() {} });
  const removal = (n: number): ControlRecord => ({
    kind: 'ban',
    key: `k${n}`,
    until: HOUR + n,
    setAt: 1,
    isRemoved: true,
  });
  table.put([{ kind: 'reset', key: 'alice', until: 30_000, setAt: 1 }]);
  table.put(Array.from({ length: MAX_PASSING }, (_, n) => removal(MAX_PASSING - n)));
  table.put([removal(0)]);
  expect(table.records.length).toBeLessThanOrEqual(MAX_PASSING + 1);
  const keys = new Set(table.records.map(({ key }) => key));
  expect(['alice', 'k0', 'k1', 'k5000'].map((key) => keys.has(key))).toEqual([
    true,
    true,
    false,
    true,
  ]);
  table.close();
});
