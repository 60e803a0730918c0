/** `sluice simulate adaptive FILE`: compares the adaptive limit with expected ranges, on simulated servers. */

import { type CaseResult, runCase } from '../../simulator/adaptive/run.ts';
import { type Case, readSuites, type Suite } from '../../simulator/adaptive/suite.ts';
import {
  type Command,
  CommandError,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  numberFlag,
  onlyPositional,
  readArgs,
  readJsonFile,
  SWITCH,
  TEXT,
  type Terminal,
} from '../framework/command.ts';

const help = `usage: sluice simulate adaptive FILE [--case NAME] [--seed N] [--json]

Runs every case of FILE on virtual time: a client with an adaptive concurrency
limit sends to a simulated server. Calls in flight, rate, limit and round-trip
times, weighted by time, are compared with the expected ranges of the file.
Prints the ranges that are missed; with --case all ranges.

FILE has suites of cases. The layering of a suite places the limiter:

  retry(limiter(timeout(server)))           one permit per attempt
  limiter(retry(timeout(server)))           one permit and one timing per call
  limiter(retry(measure(timeout(server))))  one permit per call, every attempt
                                            timed

  --case NAME   only the cases of this name, with every range
  --seed N      seed of the servers' jitter (default 1)
  --json        one line per case: {suite, case, ok, held, of,
                missed: [{range, lo, hi, got}]}

Exit code 0 if every range holds, 1 if one is missed, 2 if the file is invalid.

example:
  sluice simulate adaptive test/vectors/arc-cases.json --case slow-link`;

export const simulateAdaptive: Command = {
  name: 'adaptive',
  summary: 'adaptive concurrency against servers, with expected ranges',
  help,

  run(args, terminal) {
    const { values, positionals } = readArgs(args, {
      case: TEXT,
      seed: TEXT,
      json: SWITCH,
    });
    const file = onlyPositional(positionals, 'FILE of cases');
    const seed = numberFlag(values, 'seed', 1);
    const suites = readSuites(readJsonFile(file));

    let allHold = true;
    let count = 0;
    for (const suite of suites) {
      for (const test of suite.cases) {
        if (values.case !== undefined && test.name !== values.case) continue;
        const result = runCase(suite, test, seed);
        const ok = result.failed.length === 0 && result.isFinished;
        if (values.json) terminal.print(jsonLine(suite, test, ok, result));
        else
          printCase(`${suite.id} / ${test.name}`, ok, result, values.case !== undefined, terminal);
        allHold &&= ok;
        count++;
      }
    }
    if (count === 0)
      throw new CommandError(
        noCasesMessage(
          values.case,
          suites.flatMap(({ cases }) => cases),
        ),
      );
    return allHold ? EXIT_OK : EXIT_CHECK_FAILED;
  },
};

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
