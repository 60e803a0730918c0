import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';

const run = promisify(execFile);

test('line and RESP fuzz: nothing throws, responses keep order and ignore chunk boundaries', async () => {
  const args = ['--expose-gc', 'bench/soak/fuzz.mjs', '--inputs', '20000', '--seed', '7'];
  const { stdout } = await run(process.execPath, args, { timeout: 200_000 });
  expect(stdout).toMatch(/\n\| RESP \| 20,000 \|.*\n\| line protocol \| 20,000 \|.*\nno exception/);
});

test('peers fuzz: forged, replayed and random datagrams change no bucket', async () => {
  const args = ['--expose-gc', 'bench/soak/peers-fuzz.mjs', '--datagrams', '50000', '--seed', '7'];
  const { stdout } = await run(process.execPath, args, { timeout: 200_000 });
  expect(stdout).toMatch(/^50,000 such datagrams, .*: no exception, no changed bucket,/);
});
