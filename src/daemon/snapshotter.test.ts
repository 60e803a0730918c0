import { mkdirSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, expect, test, vi } from 'vitest';
import { createTempDir } from '../../test/support/daemon.ts';
import { GcraTable } from '../backends/local/gcra-table.ts';
import { createHasher } from '../core/hash.ts';
import type { Log } from '../core/log.ts';
import { VirtualClock } from '../testing/index.ts';
import { LimiterRegistry } from './router/limiter-registry.ts';
import { Snapshotter } from './snapshotter.ts';

const place = createTempDir();
afterAll(() => place.remove());

function setUp() {
  const clock = new VirtualClock();
  const hasher = createHasher([1, 2]);
  const registry = new LimiterRegistry({
    hasher,
    batchClock: clock,
    clock,
    backendFor: () => undefined,
  });
  const said: string[] = [];
  const log: Log = (_, message, { failures } = {}) =>
    void said.push(failures === undefined ? message : `${message}, failures: ${failures}`);
  const snapshotter = new Snapshotter(registry, new GcraTable({ hasher, clock }), {
    seed: [1, 2],
    clock,
    log,
  });
  return { clock, said, estate: snapshotter };
}

const at = (file: string) => ({ file: join(place.path, file), everyMs: 1000, maxAgeMs: Infinity });

test('saves every so often, and when it is over only if it is asked to', async () => {
  const { clock, said, estate } = setUp();
  await estate.configure(at('state'));
  for (const times of [1, 2]) {
    clock.advance(1000);
    await vi.waitFor(() => expect(said).toHaveLength(times));
  }
  estate.stopSaving();
  clock.advance(10_000);
  await estate.save();
  expect(said).toEqual(Array.from({ length: 3 }, () => 'snapshot written'));
});

test('says at once that a place cannot be written to', async () => {
  const { said, estate } = setUp();
  await estate.configure(at('nowhere/state'));
  expect(said).toEqual(['snapshot cannot be written there']);
});

test('a state that cannot be saved is told of once, when it can again, and in the end', async () => {
  const { said, estate } = setUp();
  const later = at('later/state');
  await estate.configure(later);
  for (let n = 0; n < 3; n++) await estate.save();
  mkdirSync(dirname(later.file));
  for (let n = 0; n < 2; n++) await estate.save();
  rmSync(dirname(later.file), { recursive: true });
  for (let n = 0; n < 2; n++) await estate.save();
  estate.stopSaving();
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
