import {
  existsSync,
  mkdirSync,
  readdirSync,
  renameSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { afterEach, expect, test } from 'vitest';
import { virtualDaemons } from '../../test/support/virtual-daemon.ts';
import { systemClock } from '../core/clock.ts';
import { InUseError } from '../core/errors.ts';
import { lockFile } from './files/file-lock.ts';

const { start, place, end } = virtualDaemons();
afterEach(end);

const ONE = 'limits: { a: { bucket: { rate: 1/h, burst: 20 } } }';
const lock = (file: string) => lockFile(file, systemClock);
const startLocked = (snapshot = 'state') => start(ONE, undefined, snapshot, lock);
const inUse = `a file of its own for each daemon: process ${process.pid} uses this one`;

/** A socket whose owner is gone. */
async function leaveStaleSocket(path: string): Promise<void> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(`${path}.moved`, resolve));
  renameSync(`${path}.moved`, path); // else the server would remove it
  await new Promise((resolve) => server.close(resolve));
  expect(existsSync(path)).toBe(true);
}

test('lock: one owner at a time, and a stale socket of a killed one is replaced', async () => {
  const file = place('state');
  await leaveStaleSocket(`${file}.lock`);
  const first = await lock(file);
  if (!('release' in first)) return expect.unreachable(JSON.stringify(first));
  expect(await lock(file)).toEqual({ owner: `process ${process.pid}` });
  await first.release();
  const second = await lock(file);
  expect(second).toHaveProperty('release');
  if ('release' in second) await second.release();
  expect(readdirSync(place('.'))).toEqual([]);
});

test('lock: no other file is removed, and a path that cannot be a socket is no error', async () => {
  writeFileSync(place('state.lock'), 'mine');
  expect(await lock(place('state'))).toEqual({ problem: expect.stringContaining('not a socket') });
  expect(existsSync(place('state.lock'))).toBe(true);
  symlinkSync(place('missing'), place('link.lock'));
  expect(await lock(place('link'))).toEqual({ problem: expect.stringContaining('not a socket') });
  expect(await lock(place('x'.repeat(200)))).toHaveProperty('problem');
  expect(await lock(place('missing/state'))).toHaveProperty('problem');
});

test('snapshot file: a second daemon is refused until the first has stopped', async () => {
  const first = await startLocked();
  await expect(startLocked()).rejects.toThrow(inUse);
  await expect(startLocked()).rejects.toBeInstanceOf(InUseError); // a later attempt may succeed
  expect(first.count('alice')).toBe(20);
  await first.stop();
  const second = await start(ONE, first.clock, 'state', lock);
  expect(second.count('alice')).toBe(0);
});

test('snapshot file: a reload takes another file and leaves the first to others', async () => {
  const first = await startLocked();
  const second = await startLocked('other');
  const refused = await second.reload(ONE, 'state');
  expect(refused).toEqual({ ok: false, problems: [expect.stringContaining(inUse)] });
  expect(await first.reload(ONE, 'third')).toMatchObject({ ok: true });
  expect(await second.reload(ONE, 'state')).toMatchObject({ ok: true });
  await expect(startLocked('third')).rejects.toThrow(inUse);
  const fourth = await startLocked('other');
  expect(fourth.count('alice')).toBe(20);
});

test('snapshot file: a reload to one that cannot be written is refused and leaves no file', async () => {
  const { reload, count } = await startLocked();
  mkdirSync(place('folder'));
  for (const bad of ['missing/state', 'folder']) {
    const result = await reload(ONE.replace('20', '40'), bad);
    const problem = expect.stringMatching(/snapshot.file.*a file that the daemon can write/);
    expect(result).toEqual({ ok: false, problems: [problem] });
  }
  expect(count('alice')).toBe(20);
  expect(readdirSync(place('.')).filter((name) => name.includes('trial'))).toEqual([]);
});
