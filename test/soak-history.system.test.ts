import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';

const run = promisify(execFile);

test('history: memory and the size of /history stay bounded over hours and reloads', {
  timeout: 300_000,
}, async () => {
  const words = ['--hours', '2', '--limits', '110', '--calls', '10', '--json'];
  const { stdout } = await run(process.execPath, [
    ...['--expose-gc', 'bench/soak/history.mjs'],
    ...words,
  ]).catch((error: { stdout: string }) => error);
  const { results, problems } = JSON.parse(stdout);
  expect(problems).toEqual([]);
  expect(results).toMatchObject([
    { samples: 720, limits: 100 },
    { samples: 720, limits: 100 },
  ]);
  expect(results[1].historyBytes).toBeGreaterThan(100_000);
});
