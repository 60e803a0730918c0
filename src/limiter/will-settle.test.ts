/** `check` on a limit that needs settling: a program that never settles is warned when the limit is full. */

import { afterEach, beforeEach, expect, type MockInstance, test, vi } from 'vitest';
import { VirtualClock } from '../testing/virtual-clock.ts';
import { all } from './composite-limiter.ts';
import { limiter } from './limiter.ts';

let emit: MockInstance<typeof process.emitWarning>;
beforeEach(() => {
  emit = vi.spyOn(process, 'emitWarning').mockImplementation(() => {});
});
afterEach(() => emit.mockRestore());

const two = (name: string) =>
  limiter({ name, limit: { concurrency: 2 }, clock: new VirtualClock() });

test('check: the first refusal of a limit that was never settled is one warning', () => {
  const db = two('db');
  for (let n = 0; n < 2; n++) expect(db.check('k').verdict).toBe('allow');
  expect(emit).not.toHaveBeenCalled();
  for (let n = 0; n < 3; n++) expect(db.check('k').verdict).toBe('deny');
  expect(emit).toHaveBeenCalledTimes(1);
  expect(emit.mock.lastCall).toEqual([
    expect.stringMatching(/^limit "db" refuses .* Use throttle, acquire or tryAcquire/),
    expect.objectContaining({ code: 'SLUICE_NEVER_SETTLED' }),
  ]);
});

test('check of all with such a limit: warns too, and not if another part refuses', () => {
  const both = all([two('inner'), limiter({ limit: { bucket: { rate: '1/h', burst: 9 } } })]);
  for (let n = 0; n < 3; n++) both.check('k');
  expect(emit.mock.calls.map(([text]) => String(text).slice(0, 13))).toEqual(['limit "inner"']);
  const narrow = limiter({ name: 'narrow', limit: { bucket: { rate: '1/h', burst: 1 } } });
  const other = all([two('wide'), narrow]);
  for (let n = 0; n < 3; n++) other.check('k');
  expect(emit).toHaveBeenCalledTimes(1);
});

test('check: a program that settles, or only holds permits, is not warned', () => {
  const settling = two('settling');
  for (let n = 0; n < 2; n++) settling.check('k');
  settling.settle('k');
  for (let n = 0; n < 3; n++) settling.check('k');
  const holding = two('holding');
  for (let n = 0; n < 2; n++) holding.tryAcquire('k');
  expect(holding.check('k').verdict).toBe('deny');
  expect(emit).not.toHaveBeenCalled();
});
