import { type CaseResult, runCase } from '../../simulator/adaptive/run.ts';
import { type Case, readSuites, type Suite } from '../../simulator/adaptive/suite.ts';
import {
  CommandError,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  numberFlag,
  readJsonFile,
  type Terminal,
} from '../framework/command.ts';

export interface CaseFlags {
  readonly case?: string | undefined;
  readonly seed?: string | undefined;
  readonly json?: boolean | undefined;
}

export function runCases(file: string, flags: CaseFlags, terminal: Terminal): number {
  const seed = numberFlag(flags, 'seed', 1);
  const suites = readSuites(readJsonFile(file));
  let allHold = true;
  let count = 0;
  for (const suite of suites) {
    for (const test of suite.cases) {
      if (flags.case !== undefined && test.name !== flags.case) continue;
      const result = runCase(suite, test, seed);
      const ok = result.failed.length === 0 && result.isFinished;
      if (flags.json) terminal.print(jsonLine(suite, test, ok, result));
      else printCase(`${suite.id} / ${test.name}`, ok, result, flags.case !== undefined, terminal);
      allHold &&= ok;
      count++;
    }
  }
  if (count === 0)
    throw new CommandError(
      noCasesMessage(
        flags.case,
        suites.flatMap(({ cases }) => cases),
      ),
    );
  return allHold ? EXIT_OK : EXIT_CHECK_FAILED;
}

function jsonLine(suite: Suite, test: Case, ok: boolean, result: CaseResult): string {
  const { passed, failed, isFinished } = result;
  const of = test.expect.length;
  const line = { suite: suite.id, case: test.name, ok, held: passed.length, of, missed: failed };
  return JSON.stringify(isFinished ? line : { ...line, finished: isFinished });
}

function printCase(
  title: string,
  ok: boolean,
  { passed, failed, seconds, isFinished }: CaseResult,
  isDetailed: boolean,
  terminal: Terminal,
): void {
  const of = passed.length + failed.length;
  const mark = ok ? 'ok  ' : 'MISS';
  terminal.print(`${mark} ${title.padEnd(44)} ${passed.length} of ${of} ranges, ${seconds} s`);
  for (const { range, lo, hi, got } of isDetailed ? passed : []) {
    terminal.print(`       ${range}: ${got}, within ${lo} to ${hi}`);
  }
  for (const { range, lo, hi, got } of failed) {
    const measured = Number.isFinite(got) ? `${got}` : 'no measurement';
    terminal.print(`       ${range}: expected ${lo} to ${hi}, got ${measured}`);
  }
  if (!isFinished) terminal.print('       not finished after one day of virtual time');
}

function noCasesMessage(wanted: string | undefined, cases: readonly { name: string }[]): string {
  if (wanted === undefined) return 'expected FILE to contain cases, got none';
  const names = [...new Set(cases.map(({ name }) => name))].join(', ');
  return `expected \`--case\` to be one of ${names}, got "${wanted}"`;
}
