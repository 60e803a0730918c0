/** Starts the files that took longest first, by the committed table of durations, so that no long file ends the run alone. */

import { readFileSync } from 'node:fs';
import { relative } from 'node:path';
import { BaseSequencer, type TestSpecification } from 'vitest/node';

const { basic, system } = JSON.parse(readFileSync('test/durations.json', 'utf8'));
const known: Readonly<Record<string, number>> = { ...basic.files, ...system.files };

/** A file that the table does not have yet comes first. */
const secondsOf = ({ moduleId }: TestSpecification): number =>
  known[relative(process.cwd(), moduleId)] ?? Number.POSITIVE_INFINITY;

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    return files.toSorted(
      (a, b) => secondsOf(b) - secondsOf(a) || a.moduleId.localeCompare(b.moduleId),
    );
  }
}
