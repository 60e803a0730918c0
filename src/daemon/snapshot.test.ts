import { execFileSync } from 'node:child_process';
import {
  mkdtempSync,
  readdirSync,
  readFileSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import { describe, expect, test } from 'vitest';
import { writeParts } from '../../test/support/snapshot-file.ts';
import { readSnapshot, type Snapshot } from './snapshot.ts';

const NOW = 1_700_000_000_000;
const DAY = 86_400_000;

const snapshot: Snapshot = {
  savedAt: NOW,
  seed: [-7, 12, 2 ** 31 - 1, -(2 ** 31)],
  parts: [
    {
      name: 'none',
      fingerprint: '{}',
      table: { entries: new Float64Array(0), debtUntil: undefined },
    },
    {
      name: 'api',
      fingerprint: '{"a":"\n"}',
      table: { entries: Float64Array.of(1.5, -2, NaN), debtUntil: Float64Array.of(-Infinity, 9) },
    },
  ],
};

const place = (): string => join(mkdtempSync(join(tmpdir(), 'sluice-')), 'state');

async function written(): Promise<string> {
  const file = place();
  await writeParts(file, snapshot);
  return file;
}

describe('snapshot', () => {
  test('reads back every bit that was written', async () => {
    const file = await written();
    expect(await readSnapshot(file, NOW + 1000, DAY)).toEqual({ snapshot });
  });

  test('is readable by its owner only, and leaves no other file', async () => {
    const file = await written();
    expect(statSync(file).mode & 0o777).toBe(0o600);
    expect(readdirSync(join(file, '..'))).toEqual(['state']);
  });

  test('a write during another write comes after it, and both are complete', async () => {
    const file = place();
    const large = { entries: new Float64Array(1_000_000).fill(7), debtUntil: undefined };
    const first = { ...snapshot, parts: [{ name: 'large', fingerprint: '', table: large }] };
    const second = { ...snapshot, savedAt: NOW + 1 };
    await Promise.all([writeParts(file, first), writeParts(file, second)]);
    expect(await readSnapshot(file, NOW + 1, DAY)).toEqual({ snapshot: second });
    expect(readdirSync(join(file, '..'))).toEqual(['state']);
  });

  test('replaces the previous file only when it is complete', async () => {
    const file = await written();
    await writeParts(file, { ...snapshot, savedAt: NOW + 5 });
    expect(await readSnapshot(file, NOW + 5, DAY)).toMatchObject({
      snapshot: { savedAt: NOW + 5 },
    });
    const nowhere = join(file, 'not-a-folder', 'state');
    await expect(writeParts(nowhere, snapshot)).rejects.toThrow(/ENOTDIR|ENOENT/);
  });

  test('a missing file is reported as missing', async () => {
    expect(await readSnapshot(place(), NOW, DAY)).toMatchObject({ isMissing: true });
  });

  test('reads a file from the future, refuses one that is too old', async () => {
    const file = await written();
    expect(await readSnapshot(file, NOW - 60_000, DAY)).toEqual({ snapshot });
    expect(await readSnapshot(file, NOW + DAY + 1, DAY)).toEqual({ reason: 'it is 86400 s old' });
  });

  test('refuses a file that is truncated or has a changed byte, at any position', async () => {
    const file = await written();
    const whole = readFileSync(file);
    for (let length = 0; length < whole.length; length++) {
      writeFileSync(file, whole.subarray(0, length));
      expect(await readSnapshot(file, NOW, DAY)).toHaveProperty('reason');
    }
    for (let at = 0; at < whole.length; at++) {
      const bent = Buffer.from(whole);
      bent[at] ^= 0x41;
      writeFileSync(file, bent);
      expect(await readSnapshot(file, NOW, DAY)).toHaveProperty('reason');
    }
  });

  test('refuses files of other kinds', async () => {
    const file = place();
    writeFileSync(file, 'hello');
    expect(await readSnapshot(file, NOW, DAY)).toEqual({ reason: 'it is not a snapshot' });
  });

  test('refuses a file of another version, and says so', async () => {
    const file = await written();
    const other = readFileSync(file, 'latin1').replace('snapshot 1', 'snapshot 2');
    writeFileSync(file, other, 'latin1');
    expect(await readSnapshot(file, NOW, DAY)).toEqual({
      reason: 'it is of version 2, and this daemon reads version 1: all keys start anew',
    });
  });

  test('does not read devices and oversized files', async () => {
    const file = place();
    execFileSync('mkfifo', [file]);
    expect(await readSnapshot(file, NOW, DAY)).toEqual({ reason: 'it is not a regular file' });
    expect(await readSnapshot('/dev/zero', NOW, DAY)).toEqual({
      reason: 'it is not a regular file',
    });
    const large = place();
    writeFileSync(large, 'sluice snapshot 1\n');
    truncateSync(large, 2 ** 31); // a sparse file: it uses no disk space
    expect(await readSnapshot(large, NOW, DAY)).toEqual({
      reason: 'it has more than 2147483647 bytes',
    });
    const empty = place();
    writeFileSync(empty, '');
    expect(await readSnapshot(empty, NOW, DAY)).toEqual({ reason: 'it is empty' });
  });

  test.each([-1, 1.5, 1, 1e12])(
    'refuses a header that claims %d numbers where there are none',
    async (entries) => {
      const part = { name: 'api', fingerprint: '', entries, freshAt: 0 };
      const head = JSON.stringify({ savedAt: NOW, seed: [1, 2, 3, 4], parts: [part] });
      const bytes = Buffer.from(`sluice snapshot 1\n${head}........`);
      bytes.writeUInt32LE(head.length, bytes.length - 8);
      bytes.writeUInt32LE(crc32(bytes.subarray(0, -4)), bytes.length - 4);
      const file = place();
      writeFileSync(file, bytes);
      expect(await readSnapshot(file, NOW, DAY)).toEqual({
        reason: expect.stringMatching(/^it(?: is corrupt|s header is invalid)$/),
      });
    },
  );
});
