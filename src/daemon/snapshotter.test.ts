import { mkdirSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, expect, test, vi } from 'vitest';
import { createTempDir } from '../../test/support/daemon.ts';
import { GcraTable } from '../backends/local/gcra-table.ts';
import { createHasher } from '../core/hash.ts';
import type { Log } from '../core/log.ts';
import { VirtualClock } from '../testing/index.ts';
import { parseConfigText } from './config/file.ts';
import { LimiterRegistry } from './router/limiter-registry.ts';
import { readSnapshot } from './snapshot.ts';
import { loadSnapshot, Snapshotter } from './snapshotter.ts';

const place = createTempDir();
afterAll(() => place.remove());

function setUp(limits = '{}', clock = new VirtualClock(1_000_000)) {
  const hasher = createHasher([1, 2]);
  const registry = new LimiterRegistry({
    hasher,
    batchClock: clock,
    clock,
    backendFor: () => undefined,
  });
  const loaded = parseConfigText('test.yaml', `limits: ${limits}`);
  if ('config' in loaded) registry.apply(loaded.config.limits);
  const logged: string[] = [];
  const levels: string[] = [];
  const log: Log = (level, message, { failures } = {}) => {
    levels.push(level);
    logged.push(failures === undefined ? message : `${message}, failures: ${failures}`);
  };
  const snapshotter = new Snapshotter(registry, new GcraTable({ hasher, clock }), {
    seed: [1, 2, 3, 4],
    clock,
    log,
  });
  return { clock, logged, levels, snapshotter, registry };
}

const at = (file: string) => ({ file: join(place.path, file), everyMs: 1000, maxAgeMs: Infinity });

test('snapshotter: saves at the interval, and after stopSaving only on request', async () => {
  const { clock, logged, levels, snapshotter } = setUp();
  await snapshotter.configure(at('state'));
  for (const times of [1, 2]) {
    clock.advance(1000);
    await vi.waitFor(() => expect(logged).toHaveLength(times));
  }
  snapshotter.stopSaving();
  clock.advance(10_000);
  await snapshotter.save();
  expect(logged).toEqual(Array.from({ length: 3 }, () => 'snapshot written'));
  expect(levels).toEqual(['debug', 'debug', 'info']);
});

test('snapshotter: warns on configuration that the file is not writable', async () => {
  const { logged, snapshotter } = setUp();
  await snapshotter.configure(at('nowhere/state'));
  expect(logged).toEqual(['snapshot file is not writable']);
});

test('snapshotter: logs the first failure, the recovery and the failure of the last write', async () => {
  const { logged, snapshotter } = setUp();
  const later = at('later/state');
  await snapshotter.configure(later);
  for (let n = 0; n < 3; n++) await snapshotter.save();
  mkdirSync(dirname(later.file));
  for (let n = 0; n < 2; n++) await snapshotter.save();
  rmSync(dirname(later.file), { recursive: true });
  for (let n = 0; n < 2; n++) await snapshotter.save();
  snapshotter.stopSaving();
  await snapshotter.save();
  expect(logged).toEqual([
    'snapshot file is not writable',
    'snapshot not written',
    'snapshot written again, failures: 3',
    'snapshot written',
    'snapshot not written',
    'snapshot not written', // the last write
  ]);
});

test.each([
  ['resumes a ramp within resumeFor of its last call', 60_000, 30],
  ['begins a ramp again at min if its last call is longer ago than resumeFor', 61_000, 10],
])('snapshotter: %s', async (_title, pauseMs, expected) => {
  const limits = '{ jobs: { ramp: { min: 10, max: 110, over: 10s, resumeFor: 60s } } }';
  const takeAll = ({ registry }: ReturnType<typeof setUp>) =>
    registry.get('jobs')?.limiter.takeUpTo('x', Infinity);
  const before = setUp(limits);
  const target = at(`ramp-${pauseMs}`);
  await before.snapshotter.configure(target);
  before.snapshotter.stopSaving();
  expect(takeAll(before)).toBe(10);
  before.clock.advance(1000);
  expect(takeAll(before)).toBe(20);
  await before.snapshotter.save();
  before.clock.advance(pauseMs);
  const read = await readSnapshot(target.file, before.clock.now(), Infinity);
  if (!('snapshot' in read)) return expect.unreachable(read.reason);
  const after = setUp(limits, before.clock);
  after.snapshotter.restore({ previous: read.snapshot, isUnused: false });
  expect(takeAll(after)).toBe(expected);
});

test('snapshot at the start: one that cannot be read is reported, a missing one is not', async () => {
  const { clock, snapshotter } = setUp();
  const load = (file: string) => {
    const loaded = parseConfigText('test.yaml', `snapshot: '${file}'`);
    if ('problems' in loaded) throw new Error(loaded.problems.join());
    return loadSnapshot(loaded.config, clock, () => {});
  };
  expect(snapshotter.status.isUnused).toBe(false);
  snapshotter.restore(await load(join(place.path, 'missing')));
  expect(snapshotter.status.isUnused).toBe(false);
  snapshotter.restore(await load(place.file('damaged', 'not a snapshot')));
  expect(snapshotter.status.isUnused).toBe(true);
});
