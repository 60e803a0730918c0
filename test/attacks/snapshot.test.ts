import { chmodSync, chownSync, lstatSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, expect, test } from 'vitest';
import { randomHashSeed } from '../../src/core/hash.ts';
import { seededRandom } from '../../src/core/random.ts';
import { readSnapshot, type Snapshot } from '../../src/daemon/snapshot.ts';
import { createTempDir } from '../support/daemon.ts';
import { writeParts } from '../support/snapshot-file.ts';

const NOW = 1_700_000_000_000;
const SNAPSHOT: Snapshot = { savedAt: NOW, seed: randomHashSeed(seededRandom(1)), parts: [] };

const folders: ReturnType<typeof createTempDir>[] = [];
afterEach(() => {
  for (const folder of folders.splice(0)) folder.remove();
});

const folder = (): ReturnType<typeof createTempDir> => {
  const created = createTempDir();
  folders.push(created);
  return created;
};

/** A snapshot that would be used. */
async function written(): Promise<string> {
  const file = join(folder().path, 'state');
  await writeParts(file, SNAPSHOT);
  return file;
}

const read = (file: string) => readSnapshot(file, NOW, Infinity);

test('snapshot: a link in place of the unfinished file is removed, and its target stays as it is', async () => {
  const place = folder();
  const victim = place.file('victim', 'keys of another service');
  const file = join(place.path, 'state');
  symlinkSync(victim, `${file}.${process.pid}.unfinished`);
  await writeParts(file, SNAPSHOT);
  expect(readFileSync(victim, 'utf8')).toBe('keys of another service');
  expect(await read(file)).toEqual({ snapshot: SNAPSHOT });
});

test('snapshot: an unfinished file of a crashed process with the same id is replaced', async () => {
  const file = join(folder().path, 'state');
  writeFileSync(`${file}.${process.pid}.unfinished`, 'half', { mode: 0o666 });
  await writeParts(file, SNAPSHOT);
  expect(lstatSync(file).mode & 0o777).toBe(0o600);
  expect(await read(file)).toEqual({ snapshot: SNAPSHOT });
});

test('snapshot: a link in place of the file is replaced by a write, and its target stays as it is', async () => {
  const place = folder();
  const victim = place.file('victim', 'keys of another service');
  const file = join(place.path, 'state');
  symlinkSync(victim, file);
  await writeParts(file, SNAPSHOT);
  expect(readFileSync(victim, 'utf8')).toBe('keys of another service');
  expect(lstatSync(file).isFile()).toBe(true);
});

test('snapshot: a symbolic link is not read', async () => {
  const target = await written();
  const file = join(folder().path, 'state');
  symlinkSync(target, file);
  expect(await read(file)).toEqual({ reason: 'it is a symbolic link' });
});

test('snapshot: a file that every user can write is not read', async () => {
  const file = await written();
  chmodSync(file, 0o606);
  expect(await read(file)).toEqual({ reason: 'every user can write it: chmod o-w' });
});

test.runIf(process.geteuid?.() === 0)('snapshot: a file of another user is not read', async () => {
  const file = await written();
  chownSync(file, 12_345, 12_345);
  expect(await read(file)).toEqual({ reason: 'it belongs to another user (uid 12345)' });
});

test('snapshot: a file that its group can write is read, as a volume with an fsGroup is', async () => {
  const file = await written();
  chmodSync(file, 0o660);
  expect(await read(file)).toEqual({ snapshot: SNAPSHOT });
});
