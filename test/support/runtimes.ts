/**
 * Other runtimes from npm packages (test/runtimes/package.json), installed by `npm run test:system`.
 *
 * A program of test/runtimes/programs/ runs in a folder outside the repository, in which only the package `sluice` is
 * installed, and prints one line of JSON.
 */

import { execFile } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { promisify } from 'node:util';
import { skipOrFail } from './services.ts';

const PACKAGES = 'test/runtimes/node_modules';

/** The command of each runtime, relative to its packages, and the arguments before a program. */
const RUNTIMES: Readonly<Record<string, readonly [command: string, ...args: string[]]>> = {
  'Node 22': ['node22-linux-x64/bin/node'],
  'Node 24': ['node24-linux-x64/bin/node'],
  Bun: ['@oven/bun-linux-x64/bin/bun'],
  Deno: ['@deno/linux-x64-glibc/deno', 'run', '-A', '--node-modules-dir=manual'],
};

export const WORKERD: string = resolve(PACKAGES, '@cloudflare/workerd-linux-64/bin/workerd');

const JEST = resolve(PACKAGES, 'jest/bin/jest.js');
const areInstalled = (): boolean => existsSync(WORKERD) && existsSync(JEST);

/** The path of a runtime's command. */
export function runtimePath(runtime: string): string {
  const [command] = RUNTIMES[runtime] ?? [];
  if (command !== undefined) return resolve(PACKAGES, command);
  const known = RUNTIME_NAMES.join(', ');
  throw new Error(`expected a runtime of test/runtimes/package.json (${known}), got ${runtime}`);
}

/** Whether the runtimes are there. Only Linux on x64 has them; CI fails without. */
export function hasRuntimes(): boolean {
  const isThere = areInstalled();
  if (!isThere) skipOrFail('other runtimes are not installed: npm ci --prefix test/runtimes');
  return isThere;
}

/** A folder with the programs, in which the package is installed; removed by `remove`. */
export function consumerFolder(): { readonly path: string; remove(): void } {
  const path = mkdtempSync(join(tmpdir(), 'sluice-runtimes-'));
  cpSync('test/runtimes/programs', path, { recursive: true });
  mkdirSync(join(path, 'node_modules'));
  symlinkSync(resolve('.'), join(path, 'node_modules', 'sluice'), 'junction');
  writeFileSync(join(path, 'package.json'), '{ "type": "module" }');
  return { path, remove: () => rmSync(path, { recursive: true, force: true }) };
}

/** What a program prints, read as JSON, and its warnings. */
export async function runProgram(
  runtime: string,
  folder: string,
  program: string,
): Promise<{ readonly printed: unknown; readonly warnings: string }> {
  const [, ...args] = RUNTIMES[runtime];
  const { stdout, stderr } = await promisify(execFile)(runtimePath(runtime), [...args, program], {
    cwd: folder,
    timeout: 60_000,
    env: { ...process.env, NO_COLOR: '1' },
  });
  return { printed: JSON.parse(stdout), warnings: stderr };
}

/** Runs a suite with Jest on this Node; the numbers of its tests by result, and its messages. */
export async function runJest(folder: string, suite: string) {
  const config = JSON.stringify({ testMatch: [`**/${suite}`], transform: {} });
  const { stdout } = await promisify(execFile)(
    process.execPath,
    [JEST, '--rootDir', folder, '--config', config, '--ci', '--json', '--no-cache', '--runInBand'],
    { cwd: folder, timeout: 90_000 },
  ).catch((failed: { stdout: string }) => failed);
  const { numPassedTests, numTotalTests, testResults } = JSON.parse(stdout) as {
    readonly numPassedTests: number;
    readonly numTotalTests: number;
    readonly testResults: readonly { readonly message: string }[];
  };
  const messages = testResults.map(({ message }) => message).join('\n');
  return { numPassedTests, numTotalTests, messages };
}

export const RUNTIME_NAMES: readonly string[] = Object.keys(RUNTIMES);
