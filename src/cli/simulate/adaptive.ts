/** `sluice simulate adaptive FILE`: the adaptive limit against simulated servers. */

import { type CaseResult, runCase } from '../../simulator/adaptive/run.ts';
import { type Case, readSuites, type Suite } from '../../simulator/adaptive/suite.ts';
import {
  type Command,
  EXIT_CHECK_FAILED,
  EXIT_OK,
  numberFlag,
  readArgs,
  readJsonFile,
  type Terminal,
  UsageError,
} from '../framework/command.ts';

const help = `usage: sluice simulate adaptive FILE [--case NAME] [--seed N] [--json]

Runs every case of FILE on virtual time: the adaptive limit sends to a
simulated server, and what came out (calls in flight, rate, limit, round-trip
times, all weighted by time) is compared with the ranges the file expects.
What is missed is told; with --case what holds is told as well.

FILE holds suites of cases; a suite's layering says where the limiter stands:
retry(limiter(timeout(server))), limiter(retry(timeout(server))) or
limiter(retry(measure(timeout(server)))).

  --case NAME   only the cases of this name, with every figure
  --seed N      another seed for the servers' jitter (default 1)
  --json        one line a case: {suite, case, ok, held, of,
                missed: [{range, lo, hi, got}]}

Exit code 0 if every range holds, 1 if any is missed, 2 if the file makes no
sense.

  sluice simulate adaptive test/vectors/arc-cases.json --case slow-link`;

export const simulateAdaptive: Command = {
  name: 'adaptive',
  summary: 'the adaptive limit against simulated servers',
  help,

  run(args, terminal) {
    const { values, positionals } = readArgs(args, {
      case: { type: 'string' },
      seed: { type: 'string' },
      json: { type: 'boolean' },
    });
    const [file, ...others] = positionals;
    if (file === undefined || others.length > 0)
      throw new UsageError('expected one FILE of cases; see --help');
    const seed = numberFlag('seed', values.seed, 1);
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
      throw new UsageError(
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
    const came = Number.isFinite(got) ? `got ${got}` : 'but nothing was measured';
    terminal.print(`       ${range}: expected ${lo} to ${hi}, ${came}`);
  }
  if (!isFinished) terminal.print('       gave up after a day of virtual time');
}

function noCasesMessage(wanted: string | undefined, cases: readonly { name: string }[]): string {
  if (wanted === undefined) return 'expected FILE to hold cases, got none';
  const names = [...new Set(cases.map(({ name }) => name))].join(', ');
  return `expected \`--case\` to be one of ${names}, got "${wanted}"`;
}
