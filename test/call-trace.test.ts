/**
 * The road of a request, walked with a debugger: down once, up once, and nothing is found out twice on the way.
 */

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { expect, test } from 'vitest';

const run = promisify(execFile);

interface Step {
  readonly file: string;
  readonly name: string;
}

async function walk(road: string): Promise<readonly Step[]> {
  const args = ['bench/call-trace/run.mjs', road, '--json'];
  const { stdout } = await run(process.execPath, args, { timeout: 60_000 });
  const roads = JSON.parse(stdout) as Readonly<Record<string, readonly Step[]>>;
  return Object.values(roads)[0];
}

const filesOf = (steps: readonly Step[]): string[] => [...new Set(steps.map(({ file }) => file))];

const timesIn = (steps: readonly Step[], name: string): number =>
  steps.filter((step) => step.name === name).length;

test('an ask goes from the engine to its share, the rule and back', async () => {
  const steps = await walk('library: ask');
  expect(steps[0]).toMatchObject({ file: 'sync-limiter.ts', name: 'ask' });
  expect(filesOf(steps)).toEqual([
    ...['sync-limiter.ts', 'validate.ts', 'policies/cost.ts', 'cooldowns.ts'],
    ...['backends/local/backend.ts', 'clock.ts', 'backends/local/table.ts', 'core/hash.ts'],
    ...['policies/bucket.ts', 'decision.ts', 'telemetry.ts', 'stats.ts'],
  ]);
  expect(timesIn(steps, 'hash')).toBe(1);
});

test('a permit is checked once when it is asked for, and once when it is settled', async () => {
  const steps = await walk('library: tryAcquire and settle');
  expect(timesIn(steps, 'requireKey')).toBe(1);
  expect(timesIn(steps, 'requireResult')).toBe(1);
  expect(timesIn(steps, 'look'), 'looks at the clock').toBe(2);
});

test('a check over HTTP looks at its key once more, to tell how it stands', async () => {
  const steps = await walk('daemon: HTTP');
  expect(timesIn(steps, '#copyOf')).toBe(1);
});
