import { mkdirSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, expect, test, vi } from 'vitest';
import { folder } from '../../test/support/daemon.ts';
import { Cells } from '../backends/local/gcra-table.ts';
import { hasher } from '../core/hash.ts';
import type { Log } from '../core/log.ts';
import { VirtualClock } from '../testing/index.ts';
import { Shelf } from './router/limiter-registry.ts';
import { Estate } from './snapshotter.ts';

const place = folder();
afterAll(() => place.remove());

function setUp() {
  const clock = new VirtualClock();
  const hash = hasher([1, 2]);
  const shelf = new Shelf({ hasher: hash, held: clock, clock, shareOf: () => undefined });
  const said: string[] = [];
  const log: Log = (_, message, { failures } = {}) =>
    void said.push(failures === undefined ? message : `${message}, failures: ${failures}`);
  const estate = new Estate(shelf, new Cells({ hasher: hash, clock }), {
    seed: [1, 2],
    clock,
    log,
  });
  return { clock, said, estate };
}

const at = (file: string) => ({ file: join(place.path, file), everyMs: 1000, ageMsMax: Infinity });

test('saves every so often, and when it is over only if it is asked to', async () => {
  const { clock, said, estate } = setUp();
  await estate.change(at('state'));
  for (const times of [1, 2]) {
    clock.advance(1000);
    await vi.waitFor(() => expect(said).toHaveLength(times));
  }
  estate.saveNoMore();
  clock.advance(10_000);
  await estate.save();
  expect(said).toEqual(Array.from({ length: 3 }, () => 'snapshot written'));
});

test('says at once that a place cannot be written to', async () => {
  const { said, estate } = setUp();
  await estate.change(at('nowhere/state'));
  expect(said).toEqual(['snapshot cannot be written there']);
});

test('a state that cannot be saved is told of once, when it can again, and in the end', async () => {
  const { said, estate } = setUp();
  const later = at('later/state');
  await estate.change(later);
  for (let n = 0; n < 3; n++) await estate.save();
  mkdirSync(dirname(later.file));
  for (let n = 0; n < 2; n++) await estate.save();
  rmSync(dirname(later.file), { recursive: true });
  for (let n = 0; n < 2; n++) await estate.save();
  estate.saveNoMore();
  await estate.save();
  expect(said).toEqual([
    'snapshot cannot be written there',
    'snapshot not written',
    'snapshot written again, failures: 3',
    'snapshot written',
    'snapshot not written',
    'snapshot not written', // and this was the last try
  ]);
});
