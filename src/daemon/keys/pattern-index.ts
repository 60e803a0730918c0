import { runAtOnce, type Steps } from '../../core/steps.ts';
import type { Pattern } from './pattern.ts';
import { PatternTable } from './pattern-table.ts';

export class PatternIndex<T> {
  readonly #items: readonly T[];
  readonly #table: PatternTable;

  /** The item at a position has the pattern of that number. */
  private constructor(items: readonly T[], table: PatternTable) {
    this.#items = items;
    this.#table = table;
  }

  static of<T>(items: Iterable<T>, patternOf: (item: T) => Pattern): PatternIndex<T> {
    return runAtOnce(PatternIndex.inSteps(items, patternOf));
  }

  static *inSteps<T>(items: Iterable<T>, patternOf: (item: T) => Pattern): Steps<PatternIndex<T>> {
    const all = [...items];
    return new PatternIndex(all, yield* PatternTable.inSteps(all.map(patternOf)));
  }

  best(key: string): T | undefined {
    const number = this.#table.best(key);
    return number < 0 ? undefined : this.#items[number];
  }
}
