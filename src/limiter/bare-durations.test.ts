import { expect, test, vi } from 'vitest';
import { bareDurations } from './bare-durations.ts';
import { limiter } from './limiter.ts';

const pathsIn = (options: object) => bareDurations(options).map(({ error }) => error.field);

test('bare durations: numbers below 1,000 in options of seconds and more', () => {
  expect(pathsIn({ limit: { window: { limit: 5, per: 60 } } })).toEqual(['limit.window.per']);
  expect(pathsIn({ limit: { quota: { limit: 5, per: 999 } } })).toEqual(['limit.quota.per']);
  expect(pathsIn({ limit: { ramp: { min: 1, max: 9, over: 30, coolDown: 5 } } })).toEqual([
    'limit.ramp.over',
    'limit.ramp.coolDown',
  ]);
  const lockout = { after: 3, within: 900, lock: [60, '5m', 300] };
  expect(pathsIn({ limit: { all: [{ lockout }] }, permitTimeout: 30 })).toEqual([
    'limit.all[0].lockout.within',
    'limit.all[0].lockout.lock[0]',
    'limit.all[0].lockout.lock[2]',
    'permitTimeout',
  ]);
});

test('bare durations: 1 s and more, units, and options of milliseconds are not found', () => {
  expect(pathsIn({ limit: { window: { limit: 5, per: 1000 } } })).toEqual([]);
  expect(pathsIn({ limit: { window: { limit: 5, per: '60ms' } } })).toEqual([]);
  expect(pathsIn({ limit: { spacing: { every: 60 } } })).toEqual([]);
  expect(pathsIn({ limit: { quota: { limit: 5, per: 'day' } }, permitTimeout: Infinity })).toEqual(
    [],
  );
});

test('limiter: a bare duration is one process warning for each option, with both readings', () => {
  const emit = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
  try {
    for (let n = 0; n < 3; n++) limiter({ limit: { window: { limit: 5, per: 60 } } });
    limiter({ limit: { ramp: { min: 1, max: 9, over: 30 } } });
    expect(emit.mock.calls.map(([text]) => text)).toEqual([
      'expected `limit.window.per` to be a duration with a unit, got 60; a bare number is milliseconds: write "60s" or "60ms"',
      'expected `limit.ramp.over` to be a duration with a unit, got 30; a bare number is milliseconds: write "30s" or "30ms"',
    ]);
  } finally {
    emit.mockRestore();
  }
});
