/**
 * After the results: the machine during each failed test, the ten slowest files and the total of each folder.
 * scripts/test.mjs passes the file for the results of the run in SLUICE_TEST_RESULTS.
 */

import { readFileSync, writeFileSync } from 'node:fs';
import { relative, sep } from 'node:path';
import type { SerializedError } from 'vitest';
import type { Reporter, TestModule, TestSpecification } from 'vitest/node';

const SLOWEST = 10;

/** A run in which no test ends for so long hangs: a worker that stops before its first test has no timeout of its own. */
const HANG_MS = Number(process.env.SLUICE_TEST_HANG_MS ?? 600_000);
const LOOKS_PER_HANG = 20;

/** One file of a run. */
export interface FileResult {
  readonly file: string;
  readonly seconds: number;
  readonly hasFailed: boolean;
  /** False if its worker hung, and was killed. */
  readonly hasEnded: boolean;
}

/** What a run leaves for scripts/test.mjs. */
export interface RunResults {
  readonly files: readonly FileResult[];
  /** Errors outside of tests, without those of workers that were killed. */
  readonly errors: number;
}

const nameOf = (path: string): string => relative(process.cwd(), path).split(sep).join('/');

const read = (path: string): string => {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    return ''; // it has ended, or this is not Linux
  }
};

/** The worker processes of this run. */
const workers = (): number[] =>
  read(`/proc/self/task/${process.pid}/children`)
    .trim()
    .split(' ')
    .filter((pid) => /vitest.*forks/.test(read(`/proc/${pid}/cmdline`)))
    .map(Number);

/** The error of a killed worker. */
const isOfWorker = ({ message }: SerializedError): boolean => message.includes('[vitest-pool]');

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
    file: nameOf(module.moduleId),
    seconds: Math.round(collectDuration + setupDuration + duration) / 1000,
    hasFailed: module.state() === 'failed',
    hasEnded: true,
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
  readonly #unfinished = new Set<string>();
  #hasKilled = false;
  #timer: NodeJS.Timeout | undefined;
  #quietLooks = 0;

  onTestRunStart(specifications: readonly TestSpecification[]): void {
    for (const { moduleId } of specifications) this.#unfinished.add(nameOf(moduleId));
    this.#timer = setInterval(() => this.#killIfHung(), HANG_MS / LOOKS_PER_HANG).unref();
  }

  onTestModuleEnd({ moduleId }: TestModule): void {
    this.#unfinished.delete(nameOf(moduleId));
    this.#quietLooks = 0;
  }

  onTestCaseResult(): void {
    this.#quietLooks = 0;
  }

  /** Looks are counted, not time: they stop with this process. */
  #killIfHung(): void {
    if (++this.#quietLooks < LOOKS_PER_HANG) return;
    this.#quietLooks = 0;
    const pids = workers();
    console.log(`No test has ended for ${HANG_MS / 1000} s. Killing workers ${pids.join(', ')}.`);
    for (const pid of pids) process.kill(pid, 'SIGKILL');
    this.#hasKilled ||= pids.length > 0;
  }

  onTestRunEnd(modules: readonly TestModule[], unhandled: readonly SerializedError[]): void {
    clearInterval(this.#timer);
    const failed = modules.flatMap(machineLines);
    if (failed.length > 0) console.log(`\nThe machine during failed tests:\n${failed.join('\n')}`);
    const ended = modules.map(resultOf).filter(({ file }) => !this.#unfinished.has(file));
    if (ended.length > 1) console.log(slowestAndFolders(ended));
    const unfinished = [...this.#unfinished].map((file) => {
      console.log(`${file}: has not ended`);
      return { file, seconds: 0, hasFailed: true, hasEnded: false };
    });
    const errors = unhandled.filter((error) => !this.#hasKilled || !isOfWorker(error)).length;
    const results: RunResults = { files: [...ended, ...unfinished], errors };
    const path = process.env.SLUICE_TEST_RESULTS;
    if (path !== undefined) writeFileSync(path, JSON.stringify(results));
  }
}
