/**
 * Whatever anybody sends to the daemon's conversations, nothing is thrown, answers come in order and do not
 * depend on how the bytes were cut; and whatever is sent to a node of a fleet by somebody without its key
 * changes no bucket. A short play of what `npm run soak:fuzz` and `npm run soak:peers-fuzz` do a million times.
 */

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';

const run = promisify(execFile);

test('nonsense is survived', { timeout: 60_000 }, async () => {
  const args = ['--expose-gc', 'bench/soak/fuzz.mjs', '--inputs', '20000', '--seed', '7'];
  const { stdout } = await run(process.execPath, args, { timeout: 50_000 });
  expect(stdout).toMatch(
    /\n\| RESP \| 20,000 \|.*\n\| line protocol \| 20,000 \|.*\nnothing was thrown/,
  );
});

test('a fleet survives forgeries, echoes and noise', { timeout: 60_000 }, async () => {
  const args = ['--expose-gc', 'bench/soak/peers-fuzz.mjs', '--datagrams', '50000', '--seed', '7'];
  const { stdout } = await run(process.execPath, args, { timeout: 50_000 });
  expect(stdout).toMatch(/^50,000 datagrams .*: nothing was thrown, no bucket was changed/);
});
