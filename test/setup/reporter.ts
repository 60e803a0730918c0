/**
 * After the results: the machine during each failed test, the ten slowest files and the total of each folder.
 * scripts/test.mjs passes the file for the results of the run in SLUICE_TEST_RESULTS.
 */

import { writeFileSync } from 'node:fs';
import { relative, sep } from 'node:path';
import type { Reporter, TestModule } from 'vitest/node';

const SLOWEST = 10;

/** One file of a run. */
export interface FileResult {
  readonly file: string;
  readonly seconds: number;
  readonly hasFailed: boolean;
}

const seconds = (value: number): string => `${value.toFixed(1).padStart(7)} s`;

/** The slowest files, and the sum of each folder: below `src/backends/` one folder a backend. */
export function slowestAndFolders(results: readonly FileResult[]): string {
  const bySeconds = results.toSorted((a, b) => b.seconds - a.seconds);
  const folders = new Map<string, number>();
  for (const { file, seconds: own } of results) {
    const parts = file.split('/').slice(0, -1);
    const folder = parts.slice(0, parts[1] === 'backends' ? 3 : 2).join('/');
    folders.set(folder, (folders.get(folder) ?? 0) + own);
  }
  const sums = [...folders].toSorted(([, a], [, b]) => b - a);
  return [
    `\nThe ${SLOWEST} slowest files:`,
    ...bySeconds.slice(0, SLOWEST).map(({ file, seconds: own }) => `${seconds(own)}  ${file}`),
    'By folder:',
    ...sums.map(([folder, own]) => `${seconds(own)}  ${folder}`),
    `${seconds(results.reduce((sum, { seconds: own }) => sum + own, 0))}  in all files\n`,
  ].join('\n');
}

const resultOf = (module: TestModule): FileResult => {
  const { collectDuration, setupDuration, duration } = module.diagnostic();
  return {
    file: relative(process.cwd(), module.moduleId).split(sep).join('/'),
    seconds: Math.round(collectDuration + setupDuration + duration) / 1000,
    hasFailed: module.state() === 'failed',
  };
};

/** One line for each failed test that says how the machine was meanwhile. */
const machineLines = (module: TestModule): string[] =>
  [...module.children.allTests('failed')].map((test) => {
    const { machine } = test.meta();
    const state =
      machine === undefined
        ? 'not measured'
        : `load ${machine.load.toFixed(1)}, longest stall of its process ${Math.round(machine.stallMs)} ms`;
    return `  ${module.relativeModuleId} > ${test.fullName}: ${state}`;
  });

export class MachineReporter implements Reporter {
  onTestRunEnd(modules: readonly TestModule[]): void {
    const failed = modules.flatMap(machineLines);
    if (failed.length > 0) console.log(`\nThe machine during failed tests:\n${failed.join('\n')}`);
    const results = modules.map(resultOf);
    if (results.length > 1) console.log(slowestAndFolders(results));
    const file = process.env.SLUICE_TEST_RESULTS;
    if (file !== undefined) writeFileSync(file, JSON.stringify(results));
  }
}
