import type { CheckedExpectation } from '../../simulator/scenario/expectations.ts';
import { alignColumns } from '../chart/table.ts';
import { countOf } from '../framework/command.ts';
import { formatFigure, rangeText, type ScenarioReport, subjectOf } from './scenario-report.ts';

/** Runs of one scenario. */
export const MAX_SEEDS = 1000;

/** The expectations of one seed. The run itself is not kept: it holds every decision. */
export interface SeedResult {
  readonly seed: number;
  readonly expectations: readonly CheckedExpectation[];
}

export const seedResultOf = ({ run, expectations }: ScenarioReport): SeedResult => ({
  seed: run.scenario.seed,
  expectations,
});

/** The lowest, median and highest value of each expectation, and the seeds that missed it. */
export function seedLines(name: string, results: readonly SeedResult[]): string[] {
  const [first] = results;
  const rows = first.expectations.map(({ expectation }, n) => {
    const checked = results.map(({ expectations }) => expectations[n]);
    const values = checked.map(({ value }) => value).sort((a, b) => a - b);
    const shown = [values[0], values[values.length >> 1], values[values.length - 1]];
    const missed = results.filter(({ expectations }) => !expectations[n].isMet);
    return [
      missed.length === 0 ? 'met' : 'MISSED',
      subjectOf(expectation),
      rangeText(expectation),
      ...shown.map((value) => formatFigure(expectation.figure, value)),
      missed.map(({ seed }) => seed).join(', '),
    ];
  });
  const held = results.filter(areMet).length;
  const last = results[results.length - 1];
  return [
    `${name}: seeds ${first.seed} to ${last.seed}, ${held} of ${countOf(results.length, 'run')} met every expectation`,
    '',
    ...alignColumns(
      [
        ['', 'expectation', 'range', 'lowest', 'median', 'highest', 'seeds that missed it'],
        ...rows,
      ],
      '  ',
      3,
    ).map((line) => line.trimEnd()),
  ];
}

export const areMet = ({ expectations }: Pick<SeedResult, 'expectations'>): boolean =>
  expectations.every(({ isMet }) => isMet);
